"""What can be typed: options of subcommands, keys of a configuration, and values of both."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import itertools
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from mpifed.components.registry import find
from mpifed.components.schema import ComponentOf, Option, options_of
from mpifed.components.tables import DATASETS, LISTS, TABLES
from mpifed.config.configuration import SECTIONS, Configuration
from mpifed.config.experiments import DEFAULTS, experiment_names
from mpifed.federation.participation import KINDS
from mpifed.jobs.arguments import TAKES
from mpifed.jobs.options import JobOptions
from mpifed.launch import KINDS as LISTED
from mpifed.new.__main__ import KINDS as NEW

# Modules whose ``parser`` says what options a subcommand has.
PARSERS: Mapping[str, str] = {
    "run": "mpifed.launch",
    "sweep": "mpifed.sweep.__main__",
    "report": "mpifed.report.options",
    "watch": "mpifed.watch",
    "jobs": "mpifed.jobs.arguments",
    "verify": "mpifed.verify",
    "retime": "mpifed.retime",
    "topologies": "topologies.__main__",
    "reproduce": "mpifed.reproduce.__main__",
    "new": "mpifed.new.__main__",
    "theory": "mpifed.theory.__main__",
}

# Subcommands whose words are an experiment and keys of the configuration.
CONFIGURED = ("run", "sweep", "jobs")


@dataclasses.dataclass(frozen=True)
class Words:
    """What can be typed."""

    options: dict[str, list[str]]
    arguments: dict[str, list[str]]
    after: dict[tuple[str, str], list[str]]
    keys: dict[tuple[str, str], list[str]]
    values: dict[str, list[str]]


def words() -> Words:
    """Return what can be typed; no component's module may need torch meanwhile."""
    parsers = {name: _parser(module) for name, module in PARSERS.items()}
    after = {
        (name, option): list(map(str, action.choices))
        for name, parser in parsers.items()
        for action in _actions(parser)
        for option in action.option_strings
        if action.choices
    }
    named = {kind: list(table) for kind, table in _tables().items()}
    names = itertools.chain(*named.values())
    after["run", "--list"] = sorted({*LISTED, *LISTS.values(), *names})
    values: dict[str, list[str]] = {}
    keys: dict[tuple[str, str], list[str]] = {("", ""): []}
    for option in options_of(Configuration).values():
        if option.name in SECTIONS:
            inside = options_of(SECTIONS[option.name])
            keys["", ""] += _told(f"{option.name}.", inside, values)
        elif option.name in (*DEFAULTS, "participation"):
            keys["", ""].append(option.name)
            values[option.name] = values[f"{option.name}.name"] = named[option.name]
            for name, component in _tables()[option.name].items():
                inside = options_of(component())
                keys[option.name, name] = _told(f"{option.name}.", inside, values)
        else:
            keys["", ""] += _told("", {option.name: option}, values)
    job = {name: Option(name, hint, None) for name, hint in _hints(JobOptions).items()}
    keys["job", ""] = _told("job.", job, values)
    return Words(
        {name: _option_names(parser) for name, parser in parsers.items()},
        {
            "run": experiment_names(),
            "jobs": list(TAKES),
            "new": list(NEW),
            "data": list(DATASETS),
            "completion": ["bash", "zsh"],
            **{name: _choices(parsers[name]) for name in ("topologies", "reproduce")},
        },
        after,
        keys,
        values,
    )


def _parser(module: str) -> argparse.ArgumentParser:
    make = importlib.import_module(module).parser
    return make(None) if module in ("mpifed.jobs.arguments", "mpifed.report.options") else make()


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return what a parser and its subcommands take."""
    found = list(parser._actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found += [each for inner in action.choices.values() for each in _actions(inner)]
    return list({tuple(a.option_strings) or id(a): a for a in found}.values())


def _option_names(parser: argparse.ArgumentParser) -> list[str]:
    return sorted({name for action in _actions(parser) for name in action.option_strings})


def _choices(parser: argparse.ArgumentParser) -> list[str]:
    """Return what the first argument may be."""
    return next(list(a.choices) for a in parser._actions if a.choices and not a.option_strings)


def _tables() -> dict[str, dict[str, Callable[[], Callable[..., Any]]]]:
    """Return the components of each kind by name, each with what imports it."""
    found: dict[str, dict[str, Any]] = {
        kind: {name: (lambda kind=kind, name=name: find(kind, name)) for name in table}
        for kind, table in TABLES.items()
    }
    found["participation"] = {name: (lambda name=name: KINDS[name]) for name in KINDS}
    return found


def _told(front: str, options: Mapping[str, Option], values: dict[str, list[str]]) -> list[str]:
    """Return the keys of options, and add what their values may be."""
    made = []
    for name, option in options.items():
        if name == "name" and front:
            continue
        key = f"{front}{name}"
        made.append(key)
        kind = _component_of(option.annotation)
        known = list(_literals(option.annotation)) if kind is None else list(_named(kind))
        if known:
            values[key] = list(dict.fromkeys([*values.get(key, []), *known]))
        if kind is not None:
            values[f"{key}.name"] = values[key]
            inside = sorted({each for options in _named(kind).values() for each in options})
            made += [f"{key}.name", *(f"{key}.{each}" for each in inside)]
    return made


def _named(kind: str) -> dict[str, list[str]]:
    """Return the names of one kind, each with its options."""
    from topologies import FAMILIES, SCHEDULES, WEIGHTS

    graphs: Mapping[str, Mapping[str, Any]] = {
        "topology": FAMILIES,
        "weights": WEIGHTS,
        "schedule": SCHEDULES,
    }
    if kind in graphs:
        return {name: list(entry.parameters or {}) for name, entry in graphs[kind].items()}
    return {name: list(options_of(find(kind, name))) for name in TABLES[kind]}


def _component_of(annotation: Any) -> str | None:
    found = [each for each in get_args(annotation) if isinstance(each, ComponentOf)]
    return found[0].kind if found else None


def _literals(annotation: Any) -> Iterable[str]:
    """Yield the texts that an annotation allows, as far as they are countable."""
    origin = get_origin(annotation)
    if origin is Literal:
        yield from map(str, get_args(annotation))
    elif origin is Annotated:
        yield from _literals(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for each in get_args(annotation):
            yield from _literals(each)
    elif annotation is bool:
        yield from ("true", "false")
    elif annotation is type(None):
        yield "null"


def _hints(declared: type) -> dict[str, Any]:
    return typing.get_type_hints(declared, include_extras=True)
