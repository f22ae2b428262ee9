"""Other commands of mpifed, called from the reproduction of a paper, and its figures by them."""

from __future__ import annotations

import argparse
import importlib
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from mpifed.command import say
from mpifed.errors import EXIT_BAD_INPUT, InputError
from mpifed.io.yaml_files import as_text
from mpifed.reproduce.study import Figure, Planned


def make_figure(study: Figure, options: argparse.Namespace) -> bool:
    """Run a figure's sweeps, then its reports; return whether one failed."""
    output = options.output / study.name
    sweeps = () if options.finished else study.sweeps
    commands = [
        *(["mpifed.sweep", *words, "--output", str(output / "runs")] for words in sweeps),
        *(
            ["mpifed.report", str(output / "runs"), *words, "--output", str(output)]
            for words in study.reports
        ),
    ]
    if options.dry_run:
        for words in commands:
            say(shlex.join(["python", "-m", *words]))
        return False
    if options.slurm:
        for swept in sweeps:
            place = ["--site", options.slurm, "--output", str(output / "runs")]
            _call("mpifed.jobs", ["submit", *swept, *place])
        return False
    for module, *rest in commands:
        print(shlex.join(["python", "-m", module, *rest]), flush=True)
        if _call(module, rest):
            return True
    return False


def submit(runs: Sequence[Planned], site: str) -> None:
    """Submit the runs of a row that are missing as one array over their seeds."""
    waiting = [run for run in runs if not run.finished]
    if not waiting:
        return
    seeds = [run.overrides["seed"] for run in waiting]
    fixed = {key: value for key, value in waiting[0].overrides.items() if key != "seed"}
    words = [waiting[0].experiment, *_settings(fixed), f"seed={as_text(seeds)}"]
    place = waiting[0].directory.parent
    _call("mpifed.jobs", ["submit", *words, "--site", site, "--output", str(place)])


def _call(module: str, words: Sequence[str]) -> int:
    code: int = importlib.import_module(f"{module}.__main__").main(list(words))
    if code == EXIT_BAD_INPUT:
        raise InputError(f"python -m {module} refused {shlex.join(words)}")
    return code


def _settings(overrides: Mapping[str, Any]) -> list[str]:
    """Overrides as words of a sweep. A list is put into a list, which sweeps take as one value."""
    return [
        f"{key}={as_text([value] if isinstance(value, list) else value)}"
        for key, value in overrides.items()
    ]
