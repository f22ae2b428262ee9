"""The text of ``--list``: all names that a configuration can use, and the options of one."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mpifed.components.registry import find, find_algorithm, load, source, summaries, summary
from mpifed.components.schema import describe, options_of, shown
from mpifed.components.tables import (
    AGGREGATORS,
    ALGORITHMS,
    ATTACKS,
    COMPRESSORS,
    CORRECTIONS,
    DATASETS,
    EXCHANGES,
    LISTS,
    MODELS,
    SURROGATES,
    TABLES,
)
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
    kinds = _kinds()
    if word == "all":
        return "\n\n".join(f"{name}\n{make()}" for name, make in kinds.items())
    if word in kinds:
        return kinds[word]()
    found = list(_sheets(word))
    if word in LISTS:
        found.append(("kind", f"{LISTS[word]}\n{kinds[LISTS[word]]()}"))
    if found:
        uses = [USES.get(kind, f"{kind}={{}}").format(word) for kind, _ in found]
        named = [kind for kind, _ in found if kind not in ("key", "kind")]
        several = f"{shown(word)} names {len(named)} things: {', '.join(uses)}"
        return "\n\n".join([*([several] if len(named) > 1 else []), *(text for _, text in found)])
    near = nearest(word, [*kinds, *_names()])
    offer = f"did you mean '{near}'? " if near else ""
    allowed = f"allowed: {', '.join(kinds)}, the name of a component, or a key"
    raise InputError(f"--list is {shown(word)}; {offer}{allowed}")


def _kinds() -> Mapping[str, Callable[[], str]]:
    """Return the words for all names of a kind, and what makes the text of each."""
    from topologies import FAMILIES, SCHEDULES, WEIGHTS

    def entries(table: Mapping[str, Any]) -> Callable[[], str]:
        return lambda: _table([(name, entry.summary) for name, entry in table.items()])

    return {
        "experiments": _experiments,
        "algorithms": _algorithms,
        "datasets": lambda: _components("data", DATASETS),
        "models": lambda: _components("model", MODELS),
        "exchanges": lambda: _components("exchange", EXCHANGES),
        "participation": lambda: (
            f"{_key('participation')}\n{_table([(name, summary(KINDS[name])) for name in KINDS])}"
        ),
        "topologies": entries(FAMILIES),
        "weights": entries(WEIGHTS),
        "schedules": entries(SCHEDULES),
        "corrections": lambda: _components("correction", CORRECTIONS),
        "compressors": lambda: _components("compression", COMPRESSORS),
        "aggregators": lambda: _components("aggregator", AGGREGATORS),
        "attacks": lambda: _components("attack", ATTACKS),
        "surrogates": lambda: _components("surrogate", SURROGATES),
    }


def _names() -> list[str]:
    from topologies import FAMILIES, SCHEDULES, WEIGHTS

    graphs = [*FAMILIES, *WEIGHTS, *SCHEDULES]
    keys = [field.name for field in dataclasses.fields(Configuration)]
    return [*itertools.chain(*TABLES.values()), *graphs, *KINDS, *keys]


def _sheets(name: str) -> Iterator[tuple[str, str]]:
    """Yield kind and options of everything called ``name``; several kinds may have one."""
    from topologies import FAMILIES, SCHEDULES, WEIGHTS

    if ":" in name:
        yield "component", _component_options("component", name, load(name, "--list"))
    for kind, table in TABLES.items():
        if name in table:
            yield kind, _component_options(kind, name, find(kind, name))
    if name in KINDS:
        yield "participation", _component_options("participation", name, KINDS[name])
    if name in SECTIONS:
        yield "section", _component_options("section", name, SECTIONS[name])
    elif name in options_of(Configuration):
        yield "key", _key(name)
    graphs: Mapping[str, Mapping[str, Any]] = {
        "topology": FAMILIES,
        "weights": WEIGHTS,
        "schedule": SCHEDULES,
    }
    for kind, entries in graphs.items():
        if name in entries:
            parameters = entries[name].parameters or {}
            rows = [
                (key, p.allowed, ... if p.required else p.default, p.summary)
                for key, p in parameters.items()
            ]
            yield kind, _sheet(f"{kind} {name}: {entries[name].summary}", rows)


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


def _components(kind: str, table: dict[str, str]) -> str:
    return _table([(name, summary(find(kind, name))) for name in table])


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
