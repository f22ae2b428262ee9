"""The runs of a sweep, or of a job, before they are made: what each changes and its command."""

from __future__ import annotations

import dataclasses
import itertools
import math
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mpifed.config import configuration as config
from mpifed.config.filenames import safe
from mpifed.errors import EXIT_BAD_INPUT, InputError
from mpifed.reading.configurations import read_stored
from mpifed.sweep.references import split_linked

# Resuming may change these, so a finished run with other values of them is not another run.
FREE = ("evaluation.every:", "checkpoint.", "threads:", "reschedule:")

MOST_RUNS = 10_000
"""Runs of a sweep at most; each has a directory, and all are checked before the first begins."""


@dataclass(frozen=True)
class Planned:
    """One run of a sweep: its directory, the overrides that make it, and its data section.

    ``linked`` are the keys of the overrides that name other runs, ``needs`` the directories of
    these, which must be finished before this one begins.
    """

    directory: Path
    overrides: dict[str, Any]
    data: dict[str, Any]
    linked: tuple[str, ...] = ()
    needs: tuple[Path, ...] = ()

    def finished(self) -> bool:
        return _finished(self.directory)

    def waits_for(self) -> Path | None:
        """The first of the runs that this one needs which is not finished; None if all are."""
        return next((place for place in self.needs if not _finished(place)), None)


def plan(experiment: str, words: Sequence[str], output: Path, ranks: int) -> list[Planned]:
    """Every run of the sweep, checked: ``InputError`` for the first that cannot be run."""
    plain, links = split_linked(words)
    axes, fixed = split_axes(config.parse_overrides(plain))
    if links and not axes:
        raise InputError(f"{links[0]}, but nothing is swept over; it needs a list of values")
    mapping = config.read_experiment(experiment)
    count = math.prod(map(len, axes.values()))
    if count > MOST_RUNS:
        raise InputError(
            f"{' times '.join(f'{len(values)} of {key}' for key, values in axes.items())} are "
            f"{count} runs; a sweep has at most {MOST_RUNS}"
        )
    runs: list[Planned] = []
    chain = len(list(axes.values())[-1]) if axes else 1
    for number, values in enumerate(itertools.product(*axes.values())):
        chosen = dict(zip(axes, values, strict=True))
        overrides = fixed | chosen
        linked: tuple[str, ...] = ()
        needs: tuple[Path, ...] = ()
        if links and number % chain:
            # The last list is the one that itertools.product turns fastest.
            first = runs[number - number % chain].directory
            others = {"previous": runs[-1].directory, "first": first}
            overrides |= {link.key: link.filled(others) for link in links}
            linked = tuple(link.key for link in links)
            needs = tuple(dict.fromkeys(others[name] for link in links for name in link.names))
        asked = config.resolve(config.apply_overrides(mapping, overrides), ranks)
        complete = config.to_mapping(asked)
        run = Planned(output / _directory_name(chosen), overrides, complete["data"], linked, needs)
        _check_same_run(run, complete)
        runs.append(run)
    return runs


def check_data(experiment: str, runs: Sequence[Planned]) -> None:
    """Refuses data that cannot be read, by a dry run of one run of each data section."""
    waiting = [run for run in runs if not run.finished()]
    for run in {as_text(run.data): run for run in reversed(waiting)}.values():
        if run.waits_for() is not None:
            free = {key: value for key, value in run.overrides.items() if key not in run.linked}
            run = dataclasses.replace(run, overrides=free)
        words = [*run_words(experiment, run, None), "--dry-run"]
        answer = subprocess.run(words, capture_output=True, text=True, check=False)
        if answer.returncode == EXIT_BAD_INPUT:
            raise InputError(answer.stderr.strip().removeprefix("mpifed: "))


def split_axes(overrides: dict[str, Any]) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """(the lists to sweep over, the values that hold for every run)."""
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


def as_text(value: Any) -> str:
    """``value`` as YAML on one line, as it is typed after ``key=``."""
    text = yaml.safe_dump(value, default_flow_style=True, width=sys.maxsize, sort_keys=False)
    return text.removesuffix("...\n").strip()


def launch_words(ranks: int | None) -> list[str]:
    """``mpirun -n RANKS`` of this Python's environment, else of the PATH; nothing without ranks."""
    if ranks is None:
        return []
    beside = Path(sys.executable).parent / "mpirun"
    mpirun = str(beside) if beside.exists() else shutil.which("mpirun")
    if mpirun is None:
        raise InputError("--ranks needs an mpirun, and there is none on the PATH; install an MPI")
    return [mpirun, "-n", str(ranks)]


def run_words(experiment: str, run: Planned, ranks: int | None) -> list[str]:
    """The command of one run, without its launcher."""
    overrides = [f"{key}={as_text(value)}" for key, value in run.overrides.items()]
    expected = ["--expect-ranks", str(ranks)] if ranks is not None else []
    output = ["--output", str(run.directory), "--resume", "--quiet"]
    return [sys.executable, "-m", "mpifed.run", experiment, *overrides, *expected, *output]


def _check_same_run(run: Planned, complete: dict[str, Any]) -> None:
    """Refuses a directory that holds a finished run of another configuration."""
    path = run.directory / "config.yaml"
    if not run.finished() or not path.exists():
        return  # an unfinished run is compared by mpifed.run itself when it resumes
    stored = config.completed(read_stored(path))
    found = config.differences(stored, complete)
    found = [difference for difference in found if not difference.startswith(FREE)]
    if found:
        raise InputError(
            f"'{run.directory}' holds a finished run of another configuration "
            f"({found[0]}); choose another --output"
        )


def _directory_name(chosen: dict[str, Any]) -> str:
    name = ",".join(f"{key}={_brief(value)}" for key, value in chosen.items())
    return safe(name) if name else "run"


def _brief(value: Any) -> str:
    """``value`` for a file name: a component with options is ``erdos_renyi,p=0.1``."""
    if not (isinstance(value, dict) and isinstance(value.get("name"), str)):
        return as_text(value)
    options = (f"{key}={as_text(option)}" for key, option in value.items() if key != "name")
    return ",".join([value["name"], *options])


def _finished(directory: Path) -> bool:
    return (directory / "DONE").exists()
