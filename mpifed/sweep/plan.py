"""Planning of a sweep, or of a job: the overrides, directory and command of each run."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpifed.components.registry import find
from mpifed.config import configuration as config
from mpifed.config.differences import differences
from mpifed.errors import InputError
from mpifed.io.yaml_files import as_text
from mpifed.mpi.communicator import Alone
from mpifed.results.configurations import read_stored
from mpifed.sweep.index import directory_names
from mpifed.sweep.references import split_linked
from topologies.spelling import nearest

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
    first = {key: values[0] for key, values in axes.items()}
    for key, values in axes.items():  # before torch is imported
        for value in values:
            overrides = {**fixed, **first, key: value}
            config.check_names(config.apply_overrides(mapping, overrides), ranks)
    runs: list[Planned] = []
    names = directory_names(axes, output)
    chain = len(list(axes.values())[-1]) if axes else 1
    for number, values in enumerate(itertools.product(*axes.values())):
        chosen = dict(zip(axes, values, strict=True))
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


def launch_words(ranks: int | None) -> list[str]:
    """Return ``mpirun -n RANKS``, that of this Python's environment or of the PATH."""
    if ranks is None:
        return []
    beside = Path(sys.executable).parent / "mpirun"
    mpirun = str(beside) if beside.exists() else shutil.which("mpirun")
    if mpirun is None:
        raise InputError("--ranks needs an mpirun, and there is none on the PATH; install an MPI")
    return [mpirun, "-n", str(ranks)]


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
