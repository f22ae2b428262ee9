"""The text of ``--list``: all names that a configuration can use, and the options of one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from mpifed.components.registry import (
    find,
    find_algorithm,
    load,
    named,
    source,
    summary,
    written_from,
)
from mpifed.components.tables import ALGORITHMS, EXCHANGES, LISTS, TABLES
from mpifed.config.configuration import SECTIONS, Configuration, keys_with_sections
from mpifed.config.experiments import DEFAULTS, as_data_file, experiment_names, read_experiment
from mpifed.config.job import JobOptions
from mpifed.errors import InputError
from mpifed.federation.participation import KINDS
from topologies.errors import excerpt, nearest
from topologies.names import Entry
from topologies.parameters import Parameter, options_of


def listing(word: str) -> str:
    """Return the names of one kind of component, of all kinds, or the options of one component."""
    kinds, word = _kinds(), _kind_named_in(word)
    if word == "all":
        return "\n\n".join(f"{name}\n{_names_of(kind)}" for name, kind in kinds.items())
    if word in kinds:
        return _names_of(kinds[word])
    sheets = list(_sheets(word))
    if word in LISTS:
        sheets.append(f"{LISTS[word]}\n{_names_of(word)}")
    if sheets:
        return "\n\n".join(sheets)
    names = [*kinds, *itertools.chain(*_tables().values()), *options_of(Configuration)]
    options, last = _options_beside(word), word.rpartition(".")[2]
    near = nearest(last, options) if options else nearest(word, [*names, *_all_options()])
    offer = f"did you mean '{near}'? " if near else ""
    allowed = f"allowed: {', '.join(kinds)}, the name of a component, or a key, as local.lr"
    raise InputError(f"--list is {excerpt(word)}; {offer}{allowed}")


def _kinds() -> dict[str, str]:
    """Return what can be listed, and the kind of what each list has."""
    kinds = {name: kind for kind, name in LISTS.items()}
    return {"experiments": "experiment", **kinds, "keys": "key"}


def _kind_named_in(word: str) -> str:
    """Return the kind of component that a dotted key chooses; any other word as it is."""
    last = word.removesuffix(".name").rpartition(".")[2]
    return last if last in LISTS and ":" not in word else word


def listed_records(word: str) -> list[dict[str, Any]]:
    """Return what ``listing`` says, for programs: kind, name and summary; options of a name."""
    listing(word)  # which refuses what is unknown
    kinds, word = _kinds(), _kind_named_in(word)
    listed_kinds = list(kinds.values()) if word == "all" else [kinds[word]] if word in kinds else []
    records = [_record(kind, name) for kind in listed_kinds for name in _names(kind)]
    records += [
        _record(kind, word, options) for kind, options in ([] if listed_kinds else _options(word))
    ]
    return records


def _names(kind: str) -> Iterable[str]:
    if kind == "key":
        return _keys()
    return experiment_names() if kind == "experiment" else _tables()[kind]


def _options(name: str) -> Iterator[tuple[str, Mapping[str, Parameter]]]:
    """Yield the kinds of what is called ``name``, each with its options."""
    if ":" in name:
        yield "component", options_of(load(name, "--list"))
    for kind, table in _tables().items():
        if name in table:
            yield kind, _parameters(kind, name, table[name])
    if name in options_of(Configuration) and name not in SECTIONS:
        yield "key", {name: options_of(Configuration)[name]}
    for option, _ in _dotted(name):
        yield "key", {name: option}


def _parameters(kind: str, name: str, entry: Any) -> Mapping[str, Parameter]:
    """Return the options of a component, or of a section."""
    if isinstance(entry, Entry):
        return entry.parameters
    return options_of(find(kind, name) if kind in TABLES else entry)


def options_named(
    key: str, overrides: Mapping[str, Any], mapping: Mapping[str, Any]
) -> list[Parameter]:
    """Return what an override may be, of whose values the lists of a sweep are part."""
    first = {k: v[0] if isinstance(v, list) and v else v for k, v in overrides.items()}
    for full_key in [key] if "." in key else keys_with_sections(key, first, mapping):
        kind, _, last = full_key.rpartition(".")
        section = as_data_file(first.get(f"{kind}.name", first.get(kind, mapping.get(kind))))
        name = named(section, kind, DEFAULTS[kind])[0] if kind in DEFAULTS else ""
        if ":" in name:
            return [option for option in [options_of(find(kind, name)).get(last)] if option]
        return [option for option, _ in _dotted(full_key)]
    return []


def _dotted(word: str) -> Iterator[tuple[Parameter, list[str]]]:
    """Yield what an option under its dotted key may be, with the components where it is that."""
    section, _, name = word.rpartition(".")
    kind, tables = section.rpartition(".")[2], _tables()
    if kind in tables["section"]:
        option = options_of(tables["section"][kind]).get(name)
        yield from [(option, [])] if option is not None else []
    alike: dict[tuple[str, str, str], tuple[Parameter, list[str]]] = {}
    for component, entry in tables[kind].items() if kind in tables and section else ():
        option = _parameters(kind, component, entry).get(name)
        if option is not None:
            key = (option.allowed, repr(option.default), option.summary)
            alike.setdefault(key, (option, []))[1].append(component)
    yield from alike.values()


def _all_options() -> list[str]:
    """Return the dotted keys of all sections, with those of their components."""
    return [each for section in (*SECTIONS, *DEFAULTS) for each in _options_beside(f"{section}.")]


def _options_beside(word: str) -> list[str]:
    """Return the dotted keys of a section, or of a kind of component, that a word begins with."""
    section = word.rpartition(".")[0]
    kind, tables = section.rpartition(".")[2], _tables()
    within = {kind: tables["section"][kind]} if kind in tables["section"] else tables.get(kind, {})
    return [
        f"{section}.{each}" for name, e in within.items() for each in _parameters(kind, name, e)
    ]


def _record(kind: str, name: str, options: Mapping[str, Parameter] | None = None) -> dict[str, Any]:
    record: dict[str, Any] = {"kind": kind, "name": name}
    if kind == "algorithm":
        algorithm = find_algorithm(name)
        record["exchanges"] = list(algorithm.exchanges or EXCHANGES)
        record["compressors"] = algorithm.compressors
    if kind == "key":
        record["summary"] = _keys()[name] if name in _keys() else (options or {})[name].summary
    elif kind not in ("experiment", "component"):
        record["summary"] = _summary(kind, name, _tables()[kind][name])
    if options is not None:
        record["options"] = [
            {
                "name": option.name,
                "allowed": option.allowed,
                **({} if option.required else {"default": option.default}),
                "summary": option.summary,
            }
            for option in options.values()
            if option.name != "name" or kind == "section"
        ]
    return record


def _tables() -> dict[str, Mapping[str, Any]]:
    """Return the tables of names of all kinds of components."""
    from topologies import FAMILIES, SCHEDULES, WEIGHTS

    graphs: dict[str, Mapping[str, Any]]
    graphs = {"topology": FAMILIES, "weights": WEIGHTS, "schedule": SCHEDULES}
    sections = {**SECTIONS, "job": JobOptions}
    return {**TABLES, "participation": KINDS, "section": sections, **graphs}


def _keys() -> dict[str, str]:
    """Return the keys of an experiment with a line about each."""
    keys = {name: option.summary for name, option in options_of(Configuration).items()}
    return {**keys, "job": summary(JobOptions).replace("``", "'")}


def _names_of(kind: str) -> str:
    """Return the names of a kind, with a line about each."""
    if kind == "experiment":
        experiments = {name: read_experiment(name) for name in experiment_names()}
        return _table(
            (name, f"{experiment['algorithm']['name']} on {experiment['data']['name']}")
            for name, experiment in experiments.items()
        )
    if kind == "algorithm":
        return _algorithms()
    if kind == "key":
        return _table(_keys().items())
    rows = [(name, _summary(kind, name, entry)) for name, entry in _tables()[kind].items()]
    return f"{_key(kind)}\n{_table(rows)}" if kind == "participation" else _table(rows)


def _summary(kind: str, name: str, entry: Any) -> str:
    if isinstance(entry, Entry):
        return entry.summary
    return summary(find(kind, name) if kind in TABLES else entry).replace("``", "'")


def _sheets(name: str) -> Iterator[str]:
    """Yield the options of everything called ``name``; several kinds may have one."""
    if ":" in name:
        yield _of_component("component", name, load(name, "--list"))
    for kind, table in _tables().items():
        if name not in table:
            continue
        entry = table[name]
        if isinstance(entry, Entry):
            yield _sheet(f"{kind} {name}: {entry.summary}", entry.parameters)
        else:
            yield _of_component(kind, name, find(kind, name) if kind in TABLES else entry)
    if name in options_of(Configuration) and name not in SECTIONS:
        yield _key(name)
    for option, components in _dotted(name):
        default = "required" if option.required else f"default {_yaml(option.default)}"
        owners = f" of {', '.join(components)}" if components else ""
        yield f"key {name}{owners}: {option.summary}\n  {option.allowed} ({default})"


def _key(name: str) -> str:
    """Return what a key of a configuration may be, beside sections that have options."""
    option = options_of(Configuration)[name]
    allowed, default = option.allowed, _yaml(option.default)
    if name in LISTS:
        allowed = f"a name or a mapping: see --list {LISTS[name]}"
        default = DEFAULTS.get(name, default)
    return f"key {name}: {option.summary}\n  {allowed} (default {default})"


def _of_component(kind: str, name: str, component: Callable[..., Any]) -> str:
    options = options_of(component)
    if kind != "section":
        options.pop("name", None)
    lines = [_summary("", name, component), source(component), written_from(component)]
    return _sheet(f"{kind} {name}: " + "\n  ".join(filter(None, lines)), options)


def _sheet(heading: str, options: Mapping[str, Parameter]) -> str:
    """Return options as text: name, type, default and a line about each."""
    lines = [heading]
    for name, option in options.items():
        default = "required" if option.required else f"default {_yaml(option.default)}"
        lines.append(f"  {name}: {option.allowed} ({default})")
        if option.summary:
            lines.append(f"      {option.summary}")
    return "\n".join(lines if options else [*lines, "  no options"])


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
        allowed = algorithm.exchanges or EXCHANGES
        yes = "yes" if algorithm.communicates else "nothing sent"
        exchanges = [yes if exchange in allowed else "no" for exchange in EXCHANGES]
        serves = "yes" if algorithm.serves_unseen_clients() else "no"
        rows.append((name, *exchanges, algorithm.compressors, serves, summary(algorithm)))
    return _table(rows)
