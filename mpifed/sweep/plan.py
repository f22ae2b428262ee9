"""Planning of a sweep, or of a job: the overrides, the directory and the command of each run.

Overrides may refer to another run of the sweep, so that one begins where that has ended.
``index.csv`` beside the run directories says which of them has which values.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpifed.command import python_words
from mpifed.components.registry import find, plain, without_module
from mpifed.config import configuration as config
from mpifed.config.experiments import safe
from mpifed.config.listing import options_named
from mpifed.config.stored import completed, differences
from mpifed.errors import InputError, closest
from mpifed.io.atomic import replacing
from mpifed.io.yaml_files import as_text
from mpifed.mpi.communicator import Alone
from mpifed.results.configurations import read_stored
from mpifed.sweep.ranges import check_none_is_range
from topologies.schema import is_one_list

# Placeholders of a value: the run with the preceding value of the last list, and with its first.
PLACEHOLDERS = ("previous", "first")
# A single word in braces, which cannot be a value of an option: mappings have colons.
BRACES = re.compile(r"\{\s*(\w+)\s*\}")

# Characters of a name with whole keys; in longer ones keys lose their sections.
SHORT = 64
INDEX = "index.csv"

# Resuming may change these, so a finished run with other values of them is the same run.
FREE = ("evaluation.every:", "checkpoint.", "storage.", "threads:", "reschedule:")
LEFT = ", 'auto' now"

# Largest number of runs of a sweep, all of which are checked before the first begins.
MOST_RUNS = 10_000

# An override whose value is a range as in Python.
RANGE = re.compile(r"([^=]+)=range\( *(-?[0-9]{1,15}(?: *, *-?[0-9]{1,15}){0,2}) *\)")


def split_linked(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Divide overrides into words without placeholders, and texts with some by their keys."""
    plain: list[str] = []
    linked: dict[str, str] = {}
    for word in words:
        key, _, text = word.partition("=")
        names = BRACES.findall(text)
        wrong = next((name for name in names if name not in PLACEHOLDERS), None)
        if wrong is not None:
            raise InputError(
                f"{key} has {{{wrong}}}, which no run of a sweep is; "
                f"{closest(wrong, PLACEHOLDERS)}, in braces"
            )
        if names:
            linked[key] = text
        else:
            plain.append(word)
    return plain, linked


def _filled(text: str, directories: Mapping[str, Path]) -> str:
    return BRACES.sub(lambda match: str(directories[match[1]]), text)


def directory_names(axes: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return the names of the run directories, the last list varying fastest."""
    if not axes:
        return ["run"]
    names = _names(axes, list(axes), _written)
    if max(map(len, names)) > SHORT:
        last = [key.rpartition(".")[2] for key in axes]
        keys = [end if last.count(end) == 1 else key for key, end in zip(axes, last, strict=True)]
        names = _names(axes, keys, _written)
    if len(set(names)) < len(names):
        names = _names(axes, list(axes), as_text)
    return list(map(safe, names))


def _names(
    axes: Mapping[str, Sequence[Any]], keys: Sequence[str], written: Callable[[Any], str]
) -> list[str]:
    parts = [
        [f"{key}={written(value)}" for value in values]
        for key, values in zip(keys, axes.values(), strict=True)
    ]
    return [",".join(chosen) for chosen in itertools.product(*parts)]


def _written(value: Any) -> str:
    """Return a value with its options, and theirs: ``erdos_renyi,p=0.1``."""
    if not isinstance(value, dict) or not value:
        return without_module(as_text(value))
    named = [without_module(as_text(value["name"]))] if "name" in value else []
    options = (f"{key}={_written(option)}" for key, option in value.items() if key != "name")
    return ",".join([*named, *options])


def write_index(runs: Sequence[Planned]) -> None:
    """Write ``index.csv`` beside the run directories: a row for each run."""
    folder = runs[0].directory.parent
    # Private as the run directories in it, unless the user made it before.
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    keys = list(runs[0].chosen)
    rows = ([run.directory.name, *(as_text(run.chosen[key]) for key in keys)] for run in runs)
    with replacing(folder / INDEX) as new, new.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([["directory", *keys], *rows])


@dataclass(frozen=True)
class Planned:
    """One run of a sweep; ``configuration`` is None where it is not looked at."""

    directory: Path
    overrides: dict[str, Any]
    configuration: config.Configuration | None
    needs: tuple[Path, ...] = ()
    chosen: dict[str, Any] = dataclasses.field(default_factory=dict)

    def finished(self) -> bool:
        """Return whether the run directory has a file DONE."""
        return (self.directory / "DONE").exists()

    def waits_for(self) -> Path | None:
        """Return the first run in ``needs`` that is not finished; None if all are."""
        return next(
            (directory for directory in self.needs if not (directory / "DONE").exists()), None
        )


def planned_runs(
    experiment: str | None, words: Sequence[str], output: Path, ranks: int
) -> list[Planned]:
    """Plan and check every run of a sweep."""
    plain, links = split_linked(words)
    check_none_is_range(plain)
    values = config.parse_overrides([written_out(word) for word in plain])
    mapping = config.read_experiment(experiment, values)
    axes, fixed = split_axes(values, mapping)
    if links and not axes:
        raise InputError(
            f"{next(iter(links))} names another run, but nothing is swept over; it needs a list of "
            "values"
        )
    count = math.prod(map(len, axes.values()))
    if count > MOST_RUNS:
        raise InputError(
            f"{' times '.join(f'{len(values)} of {key}' for key, values in axes.items())} are "
            f"{count} runs; a sweep has at most {MOST_RUNS}"
        )
    runs: list[Planned] = []
    names = directory_names(axes)
    chain = len(list(axes.values())[-1]) if axes else 1
    for number, point in enumerate(itertools.product(*axes.values())):
        chosen = dict(zip(axes, point, strict=True))
        overrides = fixed | chosen
        needs: tuple[Path, ...] = ()
        if links and number % chain:
            # itertools.product varies the last list fastest.
            first = runs[number - number % chain].directory
            others = {"previous": runs[-1].directory, "first": first}
            named = [name for text in links.values() for name in BRACES.findall(text)]
            needs = tuple(dict.fromkeys(others[name] for name in named))
            for key, text in links.items():
                overrides[key] = _filled(text, others)
        runs.append(planned(output / names[number], mapping, overrides, chosen, ranks, needs))
    return runs


def planned(
    directory: Path,
    mapping: Mapping[str, Any],
    overrides: dict[str, Any],
    chosen: dict[str, Any],
    ranks: int,
    needs: tuple[Path, ...] = (),
) -> Planned:
    """Plan and check one run, whose ``overrides`` include the values that are ``chosen`` for it."""
    configuration = config.resolve(config.apply_overrides(mapping, overrides), ranks)
    run = Planned(directory, overrides, configuration, needs, chosen)
    if run.finished():  # an unfinished run is compared by mpifed.run itself when it resumes
        check_same_run(run.directory, config.to_mapping(configuration))
    return run


def check_data(runs: Sequence[Planned]) -> None:
    """Make each data set of runs that are not finished, which raises ``InputError`` without it."""
    waiting = [
        run.configuration
        for run in reversed(runs)
        if run.configuration is not None and not run.finished() and run.waits_for() is None
    ]
    for configuration in {as_text(plain(each.data)): each for each in waiting}.values():
        dataset_class = find("data", configuration.data.name)
        clients, seed = configuration.clients, configuration.seed
        dataset_class(clients, seed, Alone(), **configuration.data.options)


def written_out(word: str) -> str:
    """Return an override whose value is a range of Python as one whose value is a list."""
    match = RANGE.fullmatch(word)
    if match is None:
        return word
    bounds = [int(number) for number in match[2].split(",")]
    if bounds[2:] == [0]:
        raise InputError(f"{word}: the step is 0; it must be another number")
    numbers = range(*bounds)
    if len(numbers) > MOST_RUNS:
        raise InputError(f"{word} has {len(numbers)} numbers; a sweep has at most {MOST_RUNS} runs")
    return f"{match[1]}={list(numbers)}"


def split_axes(
    overrides: Mapping[str, Any], mapping: Mapping[str, Any]
) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Divide overrides of a mapping into lists of values and single values, which may be lists."""
    lists = {key: value for key, value in overrides.items() if isinstance(value, list)}
    axes = {
        key: value
        for key, value in lists.items()
        if not any(
            is_one_list(value, option.annotation)
            for option in options_named(key, overrides, mapping)
        )
    }
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


def readings(runs: Sequence[Planned]) -> list[str]:
    """Return a line about each word of a sweep whose list is one value, which could be several."""
    return [
        f"{key}={as_text(value)} is one value of every run; {key}={as_text([[v] for v in value])} "
        "sweeps over its entries"
        for key, value in runs[0].overrides.items()
        if key not in runs[0].chosen and isinstance(value, list) and len(value) > 1
    ]


def run_words(experiment: str | None, run: Planned, ranks: int | None) -> list[str]:
    """Return the command of one run, without mpirun."""
    named = [experiment] if experiment is not None else []
    overrides = [f"{key}={as_text(value)}" for key, value in run.overrides.items()]
    expected = ["--expect-ranks", str(ranks)] if ranks is not None else []
    output = ["--output", str(run.directory), "--resume", "--quiet"]
    return [*python_words("run"), *named, *overrides, *expected, *output]


def check_same_run(directory: Path, settings: dict[str, Any]) -> None:
    """Refuse a directory that holds a finished run of another configuration."""
    path = directory / "config.yaml"
    if not path.exists():
        return
    stored = completed(read_stored(path))
    differing = differences(stored, settings)
    # What is left at auto, as local.stepping, was decided when the run began.
    differing = [
        each for each in differing if not each.startswith(FREE) and not each.endswith(LEFT)
    ]
    if differing:
        raise InputError(
            f"'{directory}' holds a finished run of another configuration "
            f"({differing[0]}); choose another --output"
        )
