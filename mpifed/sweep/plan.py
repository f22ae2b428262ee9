"""Overrides of a sweep that refer to another of its runs, so that one may begin where it ended.

Names of the run directories of a sweep, and the file that says which has which values.

Planning of a sweep, or of a job: the overrides, directory and command of each run.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import math
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpifed.components.registry import find, without_module
from mpifed.config import configuration as config
from mpifed.config.configuration import differences
from mpifed.config.experiments import parse_overrides, safe
from mpifed.errors import InputError, closest
from mpifed.io.atomic import replacing
from mpifed.io.yaml_files import as_text
from mpifed.mpi.communicator import Alone
from mpifed.results.configurations import read_stored
from topologies.inputs import nearest

# Replacements of placeholders while the value is read as YAML, where braces have a meaning.
MARKS = {"previous": "\ue000", "first": "\ue001"}

# A single word in braces, which cannot be a value of an option: mappings have colons.
BRACES = re.compile(r"\{\s*(\w+)\s*\}")


@dataclass(frozen=True)
class Linked:
    """An override with placeholders."""

    key: str
    value: Any
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.key} has {' and '.join(f'{{{name}}}' for name in self.names)}"

    def filled(self, directories: Mapping[str, Path]) -> Any:
        """Return the value with directories in place of placeholders."""
        return _filled(self.value, directories)


def split_linked(words: Sequence[str]) -> tuple[list[str], list[Linked]]:
    """Divide overrides into those without and those with placeholders."""
    plain, linked = [], []
    for word in words:
        key, _, text = word.partition("=")
        names = tuple(dict.fromkeys(BRACES.findall(text)))
        if not names:
            plain.append(word)
            continue
        wrong = next((name for name in names if name not in MARKS), None)
        if wrong is not None:
            raise InputError(
                f"{key} has {{{wrong}}}, which no run of a sweep is; {closest(wrong, MARKS)}, in "
                "braces"
            )
        marked = BRACES.sub(lambda found: MARKS[found[1]], text)
        value = parse_overrides([f"{key}={marked}"])[key]
        made = Linked(key, value, names)
        if isinstance(value, list):
            raise InputError(f"{made} in a list, which is swept over; it must be one value")
        linked.append(made)
    return plain, linked


def _filled(value: Any, directories: Mapping[str, Path]) -> Any:
    if isinstance(value, str):
        for name, directory in directories.items():
            value = value.replace(MARKS[name], str(directory))
    elif isinstance(value, list):
        return [_filled(item, directories) for item in value]
    elif isinstance(value, dict):
        return {key: _filled(item, directories) for key, item in value.items()}
    return value


# Characters of a name with whole keys and values; longer ones are abbreviated.
SHORT = 64

INDEX = "index.csv"


def directory_names(axes: Mapping[str, Sequence[Any]]) -> list[str]:
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
    return list(map(safe, chosen or _names(axes, whole, _texts)))


def _differ(names: Sequence[str]) -> bool:
    return len(set(names)) == len(names)


def write_index(runs: Sequence[Planned]) -> None:
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


def _alone(names: Sequence[str], whole: Sequence[str]) -> list[str]:
    """Return the names that no other value has, and whole values in place of the others."""
    counts = Counter(names)
    return [a if counts[a] == 1 else b for a, b in zip(names, whole, strict=True)]


def _is_component(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), str)


# Resuming may change these, so a finished run with other values of them is the same run.
FREE = ("evaluation.every:", "checkpoint.", "storage.", "threads:", "reschedule:")

LEFT = ", 'auto' now"

# Largest number of runs of a sweep, all of which are checked before the first begins.
MOST_RUNS = 10_000

# An override whose value is a range as in Python.
RANGE = re.compile(r"([^=]+)=range\( *(-?[0-9]{1,15}(?: *, *-?[0-9]{1,15}){0,2}) *\)")


@dataclass(frozen=True)
class Planned:
    """One run of a sweep."""

    directory: Path
    overrides: dict[str, Any]
    data: dict[str, Any]
    linked: tuple[str, ...] = ()
    needs: tuple[Path, ...] = ()
    chosen: dict[str, Any] = dataclasses.field(default_factory=dict)

    def finished(self) -> bool:
        """Return whether the run directory has a file DONE."""
        return _finished(self.directory)

    def waits_for(self) -> Path | None:
        """Return the first run in ``needs`` that is not finished; None if all are."""
        return next((place for place in self.needs if not _finished(place)), None)


def plan(experiment: str, words: Sequence[str], output: Path, ranks: int) -> list[Planned]:
    """Plan and check every run of a sweep."""
    plain, links = split_linked(words)
    axes, fixed = split_axes(config.parse_overrides([written_out(word) for word in plain]))
    if links and not axes:
        raise InputError(f"{links[0]}, but nothing is swept over; it needs a list of values")
    mapping = config.read_experiment(experiment)
    count = math.prod(map(len, axes.values()))
    if count > MOST_RUNS:
        raise InputError(
            f"{' times '.join(f'{len(values)} of {key}' for key, values in axes.items())} are "
            f"{count} runs; a sweep has at most {MOST_RUNS}"
        )
    firsts = {key: values[0] for key, values in axes.items()}
    for key, values in axes.items():  # before torch is imported
        for value in values:
            chosen = {**fixed, **firsts, key: value}
            config.check_names(config.apply_overrides(mapping, chosen), ranks)
    runs: list[Planned] = []
    names = directory_names(axes)
    chain = len(list(axes.values())[-1]) if axes else 1
    for number, point in enumerate(itertools.product(*axes.values())):
        chosen = dict(zip(axes, point, strict=True))
        overrides = fixed | chosen
        linked: tuple[str, ...] = ()
        needs: tuple[Path, ...] = ()
        if links and number % chain:
            # itertools.product varies the last list fastest.
            first = runs[number - number % chain].directory
            others = {"previous": runs[-1].directory, "first": first}
            overrides |= {link.key: link.filled(others) for link in links}
            linked = tuple(link.key for link in links)
            needs = tuple(dict.fromkeys(others[name] for link in links for name in link.names))
        asked = config.resolve(config.apply_overrides(mapping, overrides), ranks)
        complete = config.to_mapping(asked)
        place = output / names[number]
        run = Planned(place, overrides, complete["data"], linked, needs, chosen)
        if run.finished():  # an unfinished run is compared by mpifed.run itself when it resumes
            check_same_run(run.directory, complete)
        runs.append(run)
    return runs


def check_data(experiment: str, runs: Sequence[Planned], ranks: int = 1) -> None:
    """Make each data set of runs that are not finished, which raises ``InputError`` without it."""
    waiting = [run for run in runs if not run.finished() and run.waits_for() is None]
    mapping = config.read_experiment(experiment)
    for run in {as_text(run.data): run for run in reversed(waiting)}.values():
        asked = config.resolve(config.apply_overrides(mapping, run.overrides), ranks)
        made = find("data", asked.data.name)
        made(asked.clients, asked.seed, Alone(), **asked.data.options)


def written_out(word: str) -> str:
    """Return an override whose value is a range of Python as one whose value is a list."""
    found = RANGE.fullmatch(word)
    if found is None:
        _refuse_unlike_range(word)
        return word
    bounds = [int(number) for number in found[2].split(",")]
    if len(bounds) == 3 and bounds[2] == 0:
        raise InputError(f"{word}: the step is 0; it must be another number")
    numbers = range(*bounds)
    if len(numbers) > MOST_RUNS:
        raise InputError(f"{word} has {len(numbers)} numbers; a sweep has at most {MOST_RUNS} runs")
    return f"{found[1]}={list(numbers)}"


def _refuse_unlike_range(word: str) -> None:
    """Refuse a value that is written like a range and is none; other texts may be values."""
    key, _, value = word.partition("=")
    name, is_call, _ = value.partition("(")
    if is_call and name.isidentifier() and nearest(name.lower(), ["range"]):
        raise InputError(
            f"{key} is {value!r}; a range has one to three whole numbers, as in {key}=range(10) or "
            f"{key}=range(2,10,2), and other values are a list, as in {key}=[2,5]"
        )


def split_axes(overrides: dict[str, Any]) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Divide overrides into lists of values and single values."""
    axes = {key: value for key, value in overrides.items() if isinstance(value, list)}
    for key, values in axes.items():
        texts = Counter(map(as_text, values))
        if not values:
            raise InputError(
                f"{key} is an empty list; give the values to sweep over, as {key}=[a,b]"
            )
        repeated = next((text for text, times in texts.items() if times > 1), None)
        if repeated is not None:
            raise InputError(f"{key} has {repeated} more than once; each value must be another")
    return axes, {key: value for key, value in overrides.items() if key not in axes}


def run_words(experiment: str, run: Planned, ranks: int | None) -> list[str]:
    """Return the command of one run, without mpirun."""
    overrides = _as_words(run.overrides)
    expected = ["--expect-ranks", str(ranks)] if ranks is not None else []
    output = ["--output", str(run.directory), "--resume", "--quiet"]
    return [sys.executable, "-m", "mpifed.run", experiment, *overrides, *expected, *output]


def _as_words(overrides: Mapping[str, Any]) -> list[str]:
    return [f"{key}={as_text(value)}" for key, value in overrides.items()]


def check_same_run(directory: Path, complete: dict[str, Any]) -> None:
    """Refuse a directory that holds a finished run of another configuration."""
    path = directory / "config.yaml"
    if not path.exists():
        return
    stored = config.completed(read_stored(path))
    found = differences(stored, complete)
    # What is left at auto, as local.stepping, was decided when the run began.
    found = [each for each in found if not each.startswith(FREE) and not each.endswith(LEFT)]
    if found:
        raise InputError(
            f"'{directory}' holds a finished run of another configuration "
            f"({found[0]}); choose another --output"
        )


def _finished(directory: Path) -> bool:
    return (directory / "DONE").exists()
