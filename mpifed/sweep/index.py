"""Names of the run directories of a sweep, and the file that says which has which values."""

from __future__ import annotations

import csv
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from mpifed.components.registry import without_module
from mpifed.config.experiments import safe
from mpifed.io.atomic import replacing
from mpifed.io.yaml_files import as_text

# Characters of a name with whole keys and values; longer ones are abbreviated.
SHORT = 64

INDEX = "index.csv"


class Indexed(Protocol):
    """A run of a sweep, in the directory ``directory`` with the values ``chosen``."""

    @property
    def directory(self) -> Path: ...
    @property
    def chosen(self) -> Mapping[str, Any]: ...


def directory_names(axes: Mapping[str, Sequence[Any]], output: Path) -> list[str]:
    """Return the names of the run directories, the last list varying fastest."""
    if not axes:
        return ["run"]
    whole = {key: key for key in axes}
    last = [key.rpartition(".")[2] for key in axes]
    keys = {key: key if last.count(end) > 1 else end for key, end in zip(axes, last, strict=True)}
    chosen: list[str] = []
    for named, brief in ((whole, _flat), (keys, _briefer), (keys, _least)):
        names = _names(axes, named, brief)
        chosen = names if _differ(names) else chosen
        if chosen and max(map(len, chosen)) <= SHORT:
            break
    chosen = chosen or _names(axes, whole, _texts)
    there = {place.name for place in output.iterdir()} if output.is_dir() else set()
    forms = [list(map(safe, chosen))]
    if there and not there.issuperset(forms[0]):
        # In other forms, also those of versions before this one.
        for named in (whole, keys):
            others = (_flat, _briefer, _least, _as_yaml, _briefer_as_yaml)
            forms += [list(map(safe, _names(axes, named, brief))) for brief in others]
    # Some names are those of several forms, so that the one which explains most has been in use.
    return max(filter(_differ, forms), key=lambda names: len(there.intersection(names)))


def _differ(names: Sequence[str]) -> bool:
    return len(set(names)) == len(names)


def write_index(runs: Sequence[Indexed]) -> None:
    """Write ``index.csv`` beside the run directories: a row for each run."""
    place = runs[0].directory.parent
    # Private as the run directories in it, unless the user made it before.
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    keys = list(runs[0].chosen)
    rows = ([run.directory.name, *(as_text(run.chosen[key]) for key in keys)] for run in runs)
    with replacing(place / INDEX) as new, new.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([["directory", *keys], *rows])


def _names(axes: Mapping[str, Sequence[Any]], keys: Mapping[str, str], brief: Any) -> list[str]:
    parts = [[f"{keys[key]}={text}" for text in brief(values)] for key, values in axes.items()]
    return [",".join(chosen) for chosen in itertools.product(*parts)]


def _flat(values: Sequence[Any]) -> list[str]:
    """Return values with all options: ``erdos_renyi,p=0.1``."""
    modules = _modules(values)
    return [_written(value, modules) for value in values]


def _briefer(values: Sequence[Any]) -> list[str]:
    """Return values without options, where the names alone differ."""
    modules = _modules(values)
    return _alone([_name(value, modules) for value in values], _flat(values))


def _least(values: Sequence[Any]) -> list[str]:
    """Return values with no other options than those in which equal names differ."""
    modules = _modules(values)
    found = [_name(value, modules) for value in values]
    places: dict[str, list[int]] = {}
    for place, name in enumerate(found):
        places.setdefault(name, []).append(place)
    for alike in places.values():
        options = [values[k] if _is_component(values[k]) else {} for k in alike]
        for key in dict.fromkeys(key for each in options for key in each if key != "name"):
            given = [each.get(key) for each in options]
            if any(value != given[0] for value in given):
                for k, each, text in zip(alike, options, _least(given), strict=True):
                    found[k] += f",{key}={text}" if key in each else ""
    return found


def _written(value: Any, modules: bool) -> str:
    """Return a value with its options, and theirs; options alone of what has no name."""
    if not isinstance(value, dict) or not value:
        return _name(value, modules)
    named = [_name(value, modules)] if _is_component(value) else []
    options = (f"{key}={_written(value[key], modules)}" for key in value if key != "name")
    return ",".join([*named, *options])


def _name(value: Any, modules: bool) -> str:
    name = value["name"] if _is_component(value) else as_text(value)
    return name if modules else without_module(name)


def _modules(values: Sequence[Any]) -> bool:
    """Return whether components need the modules that they are in: two objects have one name."""
    names = {_name(value, modules=True) for value in values}
    return len({without_module(name) for name in names}) < len(names)


def _texts(values: Sequence[Any]) -> list[str]:
    return list(map(as_text, values))


def _as_yaml(values: Sequence[Any]) -> list[str]:
    """Return values whose options are written as in YAML, whatever these are."""
    return [_of_component(value) if _is_component(value) else as_text(value) for value in values]


def _briefer_as_yaml(values: Sequence[Any]) -> list[str]:
    names = [_name(value, modules=True) for value in values]
    return _alone(names, _as_yaml(values))


def _alone(names: Sequence[str], whole: Sequence[str]) -> list[str]:
    """Return the names that no other value has, and whole values in place of the others."""
    counts = Counter(names)
    return [a if counts[a] == 1 else b for a, b in zip(names, whole, strict=True)]


def _is_component(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), str)


def _of_component(value: Mapping[str, Any]) -> str:
    options = (f"{key}={as_text(option)}" for key, option in value.items() if key != "name")
    return ",".join([value["name"], *options])
