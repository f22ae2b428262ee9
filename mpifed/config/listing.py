"""The text of ``--list``: all names that a configuration can use, and the options of one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mpifed.components.registry import find, find_algorithm, load, source, summaries, summary
from mpifed.components.schema import describe, options_of, shown
from mpifed.components.tables import ALGORITHMS, EXCHANGES, LISTS, TABLES
from mpifed.config.configuration import SECTIONS, Configuration
from mpifed.config.experiments import DEFAULTS, experiment_names, read_experiment
from mpifed.errors import InputError
from mpifed.federation.participation import KINDS
from topologies.inputs import nearest

# How a configuration names one of a kind, where it is not ``kind=name``.
USES: Mapping[str, str] = {
    "surrogate": "algorithm.surrogate={}",
    "participation": "participation={{name: {}}}",
    "topology": "exchange.topology={}",
    "weights": "exchange.weights={}",
    "schedule": "exchange.schedule={}",
    "correction": "exchange.correction={}",
    "aggregator": "exchange.aggregator={}",
    "section": "{}.KEY=VALUE",
    "key": "{}=VALUE",
}


def listing(word: str) -> str:
    """Return the names of one kind of component, of all kinds, or the options of one component."""
    kinds = {"experiments": "experiment", **{name: kind for kind, name in LISTS.items()}}
    if word == "all":
        return "\n\n".join(f"{name}\n{_names_of(kind)}" for name, kind in kinds.items())
    if word in kinds:
        return _names_of(kinds[word])
    found = list(_sheets(word))
    if word in LISTS:
        found.append(("kind", f"{LISTS[word]}\n{_names_of(word)}"))
    if found:
        uses = [USES.get(kind, f"{kind}={{}}").format(word) for kind, _ in found]
        named = [kind for kind, _ in found if kind not in ("key", "kind")]
        several = f"{shown(word)} names {len(named)} things: {', '.join(uses)}"
        return "\n\n".join([*([several] if len(named) > 1 else []), *(text for _, text in found)])
    near = nearest(
        word, [*kinds, *itertools.chain(*_tables().values()), *options_of(Configuration)]
    )
    offer = f"did you mean '{near}'? " if near else ""
    allowed = f"allowed: {', '.join(kinds)}, the name of a component, or a key"
    raise InputError(f"--list is {shown(word)}; {offer}{allowed}")


def _tables() -> dict[str, Mapping[str, Any]]:
    """Return the tables of names of all kinds of components."""
    from topologies import FAMILIES, SCHEDULES, WEIGHTS

    graphs: dict[str, Mapping[str, Any]]
    graphs = {"topology": FAMILIES, "weights": WEIGHTS, "schedule": SCHEDULES}
    return {**TABLES, "participation": KINDS, "section": SECTIONS, **graphs}


def _names_of(kind: str) -> str:
    """Return the names of a kind, with a line about each."""
    if kind == "experiment":
        return _experiments()
    if kind == "algorithm":
        return _algorithms()
    table = _tables()[kind]
    if kind in TABLES:
        return _table([(name, summary(find(kind, name))) for name in table])
    if kind == "participation":
        return f"{_key(kind)}\n{_table([(name, summary(made)) for name, made in table.items()])}"
    return _table([(name, entry.summary) for name, entry in table.items()])


def _sheets(name: str) -> Iterator[tuple[str, str]]:
    """Yield kind and options of everything called ``name``; several kinds may have one."""
    if ":" in name:
        yield "component", _component_options("component", name, load(name, "--list"))
    for kind, table in _tables().items():
        if name not in table:
            continue
        if kind in TABLES:
            yield kind, _component_options(kind, name, find(kind, name))
        elif kind in ("participation", "section"):
            yield kind, _component_options(kind, name, table[name])
        else:
            parameters = table[name].parameters or {}
            rows = [
                (key, p.allowed, ... if p.required else p.default, p.summary)
                for key, p in parameters.items()
            ]
            yield kind, _sheet(f"{kind} {name}: {table[name].summary}", rows)
    if name in options_of(Configuration) and name not in SECTIONS:
        yield "key", _key(name)


def _key(name: str) -> str:
    """Return what a key of a configuration may be, beside sections that have options."""
    option = options_of(Configuration)[name]
    allowed, default = describe(option.annotation), _yaml(option.default)
    if name in LISTS:
        allowed, default = (
            f"a name or a mapping: see --list {LISTS[name]}",
            DEFAULTS.get(name, default),
        )
    return f"key {name}: {summaries(Configuration)[name]}\n  {allowed} (default {default})"


def _component_options(kind: str, name: str, component: Callable[..., Any]) -> str:
    lines = summaries(component)
    rows = [
        (
            option.name,
            describe(option.annotation),
            ... if option.required else option.default,
            lines.get(option.name, ""),
        )
        for option in options_of(component).values()
        if option.name != "name" or kind == "section"
    ]
    heading = summary(component).replace("``", "'")
    paper = source(component)
    return _sheet(f"{kind} {name}: {heading}" + (f"\n  {paper}" if paper else ""), rows)


def _sheet(heading: str, rows: Sequence[tuple[str, str, Any, str]]) -> str:
    """Return options as text: name, type, default (... if required) and a line about each."""
    lines = [heading]
    for name, allowed, default, about in rows:
        given = "required" if default is ... else f"default {_yaml(default)}"
        lines += [f"  {name}: {allowed} ({given})", *([f"      {about}"] if about else [])]
    return "\n".join(lines if rows else [*lines, "  no options"])


def _yaml(value: Any) -> str:
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join("  " + line.rstrip() for line in lines)


def _experiments() -> str:
    rows = []
    for name in experiment_names():
        mapping = read_experiment(name)
        rows.append((name, f"{mapping['algorithm']['name']} on {mapping['data']['name']}"))
    return _table(rows)


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
