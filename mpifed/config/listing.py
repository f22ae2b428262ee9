"""The text of ``--list``: all names that a configuration can use, and the options of one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from mpifed.components.registry import find, find_algorithm, load, source, summaries, summary
from mpifed.components.schema import describe, options_of, shown
from mpifed.components.tables import ALGORITHMS, EXCHANGES, LISTS, TABLES
from mpifed.config.configuration import SECTIONS, Configuration
from mpifed.config.experiments import DEFAULTS, experiment_names, read_experiment
from mpifed.errors import InputError
from mpifed.federation.participation import KINDS
from topologies.inputs import nearest


def listing(word: str) -> str:
    """Return the names of one kind of component, of all kinds, or the options of one component."""
    kinds = {"experiments": "experiment", **{name: kind for kind, name in LISTS.items()}}
    if word == "all":
        return "\n\n".join(f"{name}\n{_names_of(kind)}" for name, kind in kinds.items())
    if word in kinds:
        return _names_of(kinds[word])
    found = list(_sheets(word))
    if word in LISTS:
        found.append(f"{LISTS[word]}\n{_names_of(word)}")
    if not found:
        components = itertools.chain(*_tables().values())
        near = nearest(word, [*kinds, *components, *options_of(Configuration)])
        offer = f"did you mean '{near}'? " if near else ""
        allowed = f"allowed: {', '.join(kinds)}, the name of a component, or a key"
        raise InputError(f"--list is {shown(word)}; {offer}{allowed}")
    return "\n\n".join(found)


def _tables() -> dict[str, Mapping[str, Any]]:
    """Return the tables of names of all kinds of components."""
    from topologies import FAMILIES, SCHEDULES, WEIGHTS

    graphs: dict[str, Mapping[str, Any]]
    graphs = {"topology": FAMILIES, "weights": WEIGHTS, "schedule": SCHEDULES}
    return {**TABLES, "participation": KINDS, "section": SECTIONS, **graphs}


def _names_of(kind: str) -> str:
    """Return the names of a kind, with a line about each."""
    if kind == "experiment":
        experiments = {name: read_experiment(name) for name in experiment_names()}
        return _table(
            (name, f"{found['algorithm']['name']} on {found['data']['name']}")
            for name, found in experiments.items()
        )
    if kind == "algorithm":
        return _algorithms()
    table = _tables()[kind]
    if kind in TABLES:
        return _table((name, summary(find(kind, name))) for name in table)
    if kind == "participation":
        return f"{_key(kind)}\n{_table((name, summary(made)) for name, made in table.items())}"
    return _table((name, entry.summary) for name, entry in table.items())


def _sheets(name: str) -> Iterator[str]:
    """Yield the options of everything called ``name``; several kinds may have one."""
    if ":" in name:
        yield _component_options("component", name, load(name, "--list"))
    for kind, table in _tables().items():
        if name not in table:
            continue
        if kind in TABLES:
            yield _component_options(kind, name, find(kind, name))
        elif kind in ("participation", "section"):
            yield _component_options(kind, name, table[name])
        else:
            parameters = (table[name].parameters or {}).items()
            rows = ((key, each.allowed, each, each.summary) for key, each in parameters)
            yield _sheet(f"{kind} {name}: {table[name].summary}", rows)
    if name in options_of(Configuration) and name not in SECTIONS:
        yield _key(name)


def _key(name: str) -> str:
    """Return what a key of a configuration may be, beside sections that have options."""
    option = options_of(Configuration)[name]
    allowed, default = describe(option.annotation), _yaml(option.default)
    if name in LISTS:
        allowed = f"a name or a mapping: see --list {LISTS[name]}"
        default = DEFAULTS.get(name, default)
    return f"key {name}: {summaries(Configuration)[name]}\n  {allowed} (default {default})"


def _component_options(kind: str, name: str, component: Callable[..., Any]) -> str:
    lines, options = summaries(component), options_of(component).values()
    rows = (
        (option.name, describe(option.annotation), option, lines.get(option.name, ""))
        for option in options
        if option.name != "name" or kind == "section"
    )
    heading = summary(component).replace("``", "'")
    paper = source(component)
    return _sheet(f"{kind} {name}: {heading}" + (f"\n  {paper}" if paper else ""), rows)


def _sheet(heading: str, rows: Iterable[tuple[str, str, Any, str]]) -> str:
    """Return options as text: name, type, default and a line about each."""
    lines = []
    for name, allowed, option, about in rows:
        given = "required" if option.required else f"default {_yaml(option.default)}"
        lines += [f"  {name}: {allowed} ({given})", *([f"      {about}"] if about else [])]
    return "\n".join([heading, *(lines or ["  no options"])])


def _yaml(value: Any) -> str:
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def _table(lines: Iterable[tuple[str, ...]]) -> str:
    rows = list(lines)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ("  ".join(map(str.ljust, row, widths)) for row in rows)
    return "\n".join("  " + line.rstrip() for line in padded)


def _algorithms() -> str:
    rows: list[tuple[str, ...]] = [("name", *EXCHANGES, "compression", "unseen clients", "")]
    for name in ALGORITHMS:
        algorithm = find_algorithm(name)
        allowed = EXCHANGES if algorithm.exchanges is None else algorithm.exchanges
        yes = "yes" if algorithm.communicates else "nothing sent"
        exchanges = [yes if exchange in allowed else "no" for exchange in EXCHANGES]
        serves = "yes" if algorithm.serves_unseen_clients() else "no"
        rows.append((name, *exchanges, algorithm.compressors, serves, summary(algorithm)))
    return _table(rows)
