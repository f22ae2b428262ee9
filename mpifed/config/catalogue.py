"""The text of ``--list``: all names that a configuration can use, and the options of one."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mpifed.components.datasets import DATASETS
from mpifed.components.documentation import summaries
from mpifed.components.registry import (
    ALGORITHMS,
    COMPRESSORS,
    EXCHANGES,
    MODELS,
    SURROGATES,
    TABLES,
    find,
    find_algorithm,
    load,
    summary,
)
from mpifed.components.schema import describe, options_of, shown
from mpifed.config.configuration import CheckpointOptions, EvaluationOptions
from mpifed.config.experiment_files import experiment_names, read_experiment
from mpifed.errors import InputError
from mpifed.federation.participation import KINDS
from mpifed.local.options import LocalOptions

SECTIONS: Mapping[str, Callable[..., Any]] = {
    "local": LocalOptions,
    "evaluation": EvaluationOptions,
    "checkpoint": CheckpointOptions,
}
"""Sections of a configuration that name no component."""


def listing(word: str) -> str:
    """Return the names of one kind of component, of all kinds, or the options of one component.

    Parameters
    ----------
    word : str
        A kind as in ``--list``, ``all``, or a component's name, which may also be a section
        without one or a user's ``package.module:object``.

    Returns
    -------
    str
        Lines of text.

    Raises
    ------
    InputError
        For a word that is none of these.

    Examples
    --------
    >>> print(listing("checkpoint"))
    section checkpoint: The section 'checkpoint'.
      every: a whole number, at least 1, at most 9223372036854775807 (default 50)
          Rounds between checkpoints
      keep: a whole number, at least 1, at most 9223372036854775807 (default 2)
          Checkpoints that are kept
    """
    kinds: Mapping[str, Callable[[], str]] = {
        "experiments": _experiments,
        "algorithms": _algorithms,
        "datasets": lambda: _components("data", DATASETS),
        "models": lambda: _components("model", MODELS),
        "topologies": _topologies,
        "weights": _weights,
        "compressors": lambda: _components("compression", COMPRESSORS),
        "surrogates": lambda: _components("surrogate", SURROGATES),
    }
    if word == "all":
        return "\n\n".join(f"{name}\n{make()}" for name, make in kinds.items())
    if word in kinds:
        return kinds[word]()
    options = list(_options(word))
    if options:
        return "\n\n".join(options)
    near = difflib.get_close_matches(word, [*kinds, *_names()], n=1, cutoff=0.5)
    offer = f"did you mean '{near[0]}'? " if near else ""
    allowed = f"allowed: {', '.join(kinds)}, or the name of a component"
    raise InputError(f"--list is {shown(word)}; {offer}{allowed}")


def _names() -> list[str]:
    from topologies import FAMILIES, SCHEDULES, WEIGHTS

    graphs = [*FAMILIES, *WEIGHTS, *SCHEDULES]
    return [*itertools.chain(*TABLES.values()), *graphs, *KINDS, *SECTIONS]


def _options(name: str) -> Iterator[str]:
    """Yield the options of every component called ``name``; several kinds may have one."""
    from topologies import FAMILIES, SCHEDULES, WEIGHTS

    if ":" in name:
        yield _component_options("component", name, load(name, "--list"))
    for kind, table in TABLES.items():
        if name in table:
            yield _component_options(kind, name, find(kind, name))
    if name in KINDS:
        yield _component_options("participation", name, KINDS[name])
    if name in SECTIONS:
        yield _component_options("section", name, SECTIONS[name])
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
            yield _sheet(f"{kind} {name}: {entries[name].summary}", rows)


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
        if option.name != "name"
    ]
    heading = summary(component).replace("``", "'")
    return _sheet(f"{kind} {name}: {heading}", rows)


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


def _topologies() -> str:
    from topologies import FAMILIES, SCHEDULES

    rows = [(name, family.summary) for name, family in FAMILIES.items()]
    schedules = [(name, schedule.summary) for name, schedule in SCHEDULES.items()]
    return f"{_table(rows)}\n  as exchange.schedule:\n{_table(schedules)}"


def _weights() -> str:
    from topologies import WEIGHTS

    return _table([(name, rule.summary) for name, rule in WEIGHTS.items()])
