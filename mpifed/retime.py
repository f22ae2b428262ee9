"""``python -m mpifed.retime RUN ... network.latency=0.05``: finished runs on another network."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpifed.command import Parser, carried_out, program
from mpifed.config.configuration import check_names
from mpifed.config.experiments import apply_overrides, parse_overrides
from mpifed.errors import EXIT_BAD_INPUT, EXIT_FINISHED, InputError, closest, complain
from mpifed.report.runs import run_directories
from mpifed.results.configurations import read_stored
from mpifed.results.run_directories import check_output
from mpifed.watchdog.launcher import launched_rank

if TYPE_CHECKING:
    from mpifed.training.retiming import Retimed

# Sections of which nothing in a run depends but its seconds.
SECTIONS = ("network", "compute")


def main(words: Sequence[str] | None = None) -> int:
    """Run the command."""
    if launched_rank() not in (None, 0):  # one process does it, whatever started it
        return EXIT_FINISHED
    try:
        options = parser().parse_intermixed_args(words)
        places = [word for word in options.words if not _is_override(word)]
        _refuse_other_keys(places)
        overrides = parse_overrides([word for word in options.words if _is_override(word)])
        if not places:
            raise InputError("no run is named; --help shows how the command is used")
        targets, unfinished = _targets(places, options.output)
        if not overrides:
            raise InputError("no other network is named; it is said like network.latency=0.05")
        for run in targets:
            check_names(apply_overrides(read_stored(run / "config.yaml"), overrides))
        found = {run: _retimed(run, overrides) for run in targets}
        _write(found, targets)
    except InputError as error:
        complain("mpifed.retime", str(error))
        return EXIT_BAD_INPUT
    for run, times in found.items():
        was = "" if times.before is None else f", was {times.before[-1]:.6g} s"
        print(f"{run}: {times.seconds[-1]:.6g} s{was}; {times.remark}")
    for run in unfinished:
        print(f"* {run} is unfinished and is left out")
    return EXIT_FINISHED


def _is_override(word: str) -> bool:
    """Whether a word sets a key: names of sweeps' directories have signs of equality, too."""
    return word.partition("=")[0].partition(".")[0] in SECTIONS and "=" in word


def _refuse_other_keys(places: Sequence[str]) -> None:
    """Refuse words that set another key; directories may have signs of equality, too."""
    for place in places:
        key, is_override, _ = place.partition("=")
        if is_override and not os.path.exists(place):
            raise InputError(
                f"{key} cannot be changed without training; "
                f"{closest(key.partition('.')[0], SECTIONS)}, as in network.latency=0.05"
            )


def _targets(
    places: Sequence[str], output: Path | None
) -> tuple[dict[Path, Path | None], list[Path]]:
    """Return where each finished run goes, and the unfinished runs."""
    if output is not None:
        check_output(output)
    targets: dict[Path, Path | None] = {}
    unfinished = []
    for place in map(Path, places):
        for run in run_directories(place):
            if not (run / "DONE").exists():
                unfinished.append(run)
            elif output is None:
                targets[run] = None
            else:
                name = Path(run.resolve().name) if run == place else run.relative_to(place)
                targets[run] = output / name
    if not targets:
        raise InputError(f"none of the runs in {', '.join(places)} is finished")
    _check_targets(targets)
    return targets, unfinished


def _check_targets(targets: dict[Path, Path | None]) -> None:
    taken: dict[Path, Path] = {}
    for run, target in targets.items():
        if target is None:
            continue
        other = taken.setdefault(target.resolve(), run)
        if other != run:
            raise InputError(f"'{other}' and '{run}' would both be written to {target}")
        if target.exists() and not _is_retimed(target):
            raise InputError(
                f"--output: {target} exists and was not written by this command; choose another "
                "directory"
            )


def _is_retimed(directory: Path) -> bool:
    from mpifed.training.retiming import is_retimed

    return is_retimed(directory)


def _retimed(run: Path, overrides: dict[str, Any]) -> Retimed:
    from mpifed.training.retiming import retime

    return retime(run, overrides)


def _write(found: dict[Path, Retimed], targets: dict[Path, Path | None]) -> None:
    from mpifed.training.retiming import write

    for run, times in found.items():
        target = targets[run]
        if target is not None:
            write(times, target)


def parser() -> Parser:
    """Return the parser of the command."""
    made = Parser(
        prog=program("retime"),
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument(
        "words",
        nargs="*",
        metavar="RUN | key=value",
        help="run directories, or directories that hold some; values of the sections network and "
        "compute (docs/time.md)",
    )
    made.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="write a run directory for each run into DIR; without it times are only printed",
    )
    return made


if __name__ == "__main__":
    sys.exit(carried_out("mpifed.retime", main))
