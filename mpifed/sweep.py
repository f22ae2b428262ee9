"""Runs every combination of lists of values, one run directory each.

    python -m mpifed.sweep synthetic-fedem algorithm=[fedem,fedavg] seed=[0,1,2] rounds=100

A value that is a list is what is swept over; any other value holds for every run. Where the value
itself is a list, the outer brackets sweep and the inner ones are the value:
model.hidden=[[64],[64,32]] is two runs, and model.hidden=[[64]] holds for every run.

    python -m mpifed.sweep flix-sine "algorithm.flix_alpha=[0,1]" "algorithm.start_from={previous}"

{previous} is the directory of the run with the value before in the last list, all else equal, and
{first} that with the first value of the last list. In the run with the first value an override that
has one of them is left out. A run whose other run has failed is not begun.

The runs go one after the other, each in a process of its own. Those that are finished are skipped
and those that were interrupted go on, so that the same command can be given until all are done.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import itertools
import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from mpifed import config
from mpifed.api import DEFAULT_EXPERIMENT
from mpifed.errors import (
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    EXIT_FINISHED,
    EXIT_STOPPED,
    InputError,
    complain,
    text_of,
)
from mpifed.filenames import safe
from mpifed.launch import Parser
from mpifed.placeholders import split_linked
from mpifed.planned import Planned

IN_THEIR_PLACE = ("objective", "l2_uvp", "test_loss")
"""Columns of which the first that has a number is said of a run that has no accuracy."""

# Resuming may change these, so a finished run with other values of them is not another run.
FREE = ("evaluation.every:", "checkpoint.", "threads:", "reschedule:")


def main(words: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    try:
        options = _parser().parse_intermixed_args(words)
        experiment, overrides = split_words(options.words)
        if options.ranks is not None and options.ranks < 1:
            raise InputError(f"--ranks is {options.ranks}; it must be at least 1")
        output = options.output or _default_output(experiment)
        runs = plan(experiment, overrides, output, options.ranks or 1)
        launcher = launch_words(options.ranks)
        if not options.dry_run:
            check_data(experiment, runs)
    except InputError as error:
        complain("mpifed.sweep", text_of(error))
        return EXIT_BAD_INPUT
    commands = [[*launcher, *run_words(experiment, run, options.ranks)] for run in runs]
    if options.dry_run:
        for run, command in zip(runs, commands, strict=True):
            print(f"{_state(run)}: {shlex.join(command)}")
        return EXIT_FINISHED
    try:
        return execute(runs, commands)
    except KeyboardInterrupt:
        complain("mpifed.sweep", "interrupted; the same command goes on")
        return EXIT_FAILED


def split_words(words: Sequence[str]) -> tuple[str, list[str]]:
    """(experiment, overrides): the first word is the experiment unless it is an override."""
    if words and "=" not in words[0]:
        return words[0], list(words[1:])
    return DEFAULT_EXPERIMENT, list(words)


def plan(experiment: str, words: Sequence[str], output: Path, ranks: int) -> list[Planned]:
    """Every run of the sweep, checked: ``InputError`` for the first that cannot be run."""
    plain, links = split_linked(words)
    axes, fixed = split_axes(config.parse_overrides(plain))
    if links and not axes:
        raise InputError(f"{links[0]}, but nothing is swept over; it needs a list of values")
    mapping = config.read_experiment(experiment)
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
        complete = config.resolve(config.apply_overrides(mapping, overrides), ranks)
        run = Planned(output / _directory_name(chosen), overrides, complete.data, linked, needs)
        _check_same_run(run, config.to_mapping(complete))
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
        texts = [as_text(value) for value in values]
        if not values:
            raise InputError(
                f"{key} is an empty list; give the values to sweep over, as {key}=[a,b]"
            )
        repeated = next((text for text in texts if texts.count(text) > 1), None)
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


def execute(runs: Sequence[Planned], commands: Sequence[Sequence[str]]) -> int:
    """Runs what is not finished, one after the other; returns the exit code of the sweep."""
    failed = 0
    # Private as the run directories in it, unless the user made it beforehand.
    runs[0].directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for number, (run, command) in enumerate(zip(runs, commands, strict=True), start=1):
        name = f"[{number}/{len(runs)}] {run.directory.name}"
        if run.finished():
            print(f"{name}: finished before, skipped", flush=True)
            continue
        missing = run.waits_for()
        if missing is not None:
            failed += 1
            said = f"not begun, since {missing.name}, which it would go on from, is not finished"
            print(f"{name}: {said}", file=sys.stderr, flush=True)
            continue
        print(f"{name}: started", flush=True)
        start = time.perf_counter()
        code = _run(command)
        took = f"{time.perf_counter() - start:.1f} s"
        if code == EXIT_STOPPED:
            print(f"{name}: stopped on request after {took}; the same command goes on", flush=True)
            return EXIT_STOPPED
        if run.finished():
            print(f"{name}: finished in {took}{_result(run)}", flush=True)
        else:
            failed += 1
            how = "diverged" if _diverged(run) else f"failed with exit code {code}"
            print(f"{name}: {how} after {took}", file=sys.stderr, flush=True)
    print(f"{len(runs) - failed} of {len(runs)} runs are finished in {runs[0].directory.parent}")
    return EXIT_FAILED if failed else EXIT_FINISHED


def _run(command: Sequence[str]) -> int:
    """The exit code of one run; a request to stop is handed on to it."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    handlers = {
        request: signal.signal(request, lambda *_: process.send_signal(signal.SIGUSR1))
        for request in (signal.SIGTERM, signal.SIGUSR1)
    }
    try:
        return process.wait()
    finally:
        for request, handler in handlers.items():
            signal.signal(request, handler)


def _check_same_run(run: Planned, complete: dict[str, Any]) -> None:
    """Refuses a directory that holds a finished run of another configuration."""
    path = run.directory / "config.yaml"
    if not run.finished() or not path.exists():
        return  # an unfinished run is compared by mpifed.run itself when it resumes
    stored = config.completed(config.read_experiment(str(path)))
    found = config.differences(stored, complete)
    found = [difference for difference in found if not difference.startswith(FREE)]
    if found:
        raise InputError(
            f"'{run.directory}' holds a finished run of another configuration "
            f"({found[0]}); choose another --output"
        )


def _default_output(experiment: str) -> Path:
    return Path("runs") / f"{Path(experiment).stem}-sweep-{datetime.now():%Y%m%d-%H%M%S}"


def _directory_name(chosen: dict[str, Any]) -> str:
    name = ",".join(f"{key}={_brief(value)}" for key, value in chosen.items())
    return safe(name) if name else "run"


def _brief(value: Any) -> str:
    """``value`` for a file name: a component with options is ``erdos_renyi,p=0.1``."""
    if not (isinstance(value, dict) and isinstance(value.get("name"), str)):
        return as_text(value)
    options = (f"{key}={as_text(option)}" for key, option in value.items() if key != "name")
    return ",".join([value["name"], *options])


def _state(run: Planned) -> str:
    if run.finished():
        return "finished"
    return "to resume" if (run.directory / "config.yaml").exists() else "to run"


def _diverged(run: Planned) -> bool:
    try:
        summary = json.loads((run.directory / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(summary.get("status") == "diverged")


def _result(run: Planned) -> str:
    summary = json.loads((run.directory / "summary.json").read_text(encoding="utf-8"))
    accuracy = summary.get("test_accuracy")
    if isinstance(accuracy, float):
        return f", test accuracy {accuracy:.4f}"
    with (run.directory / "metrics.csv").open(newline="", encoding="utf-8") as file:
        *_, last = csv.DictReader(file)
    measured = next((name for name in IN_THEIR_PLACE if last.get(name)), None)
    return f", {measured.replace('_', ' ')} {float(last[measured]):.6g}" if measured else ""


def _parser() -> Parser:
    parser = Parser(
        prog="python -m mpifed.sweep",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="[EXPERIMENT] key=value",
        help=f"as of mpifed.run; without EXPERIMENT: {DEFAULT_EXPERIMENT}",
    )
    parser.add_argument("--output", type=Path, help="directory of the run directories")
    parser.add_argument("--ranks", type=int, metavar="N", help="run each under mpirun -n N")
    parser.add_argument("--dry-run", action="store_true", help="check all, print the commands")
    return parser


if __name__ == "__main__":
    sys.exit(main())
