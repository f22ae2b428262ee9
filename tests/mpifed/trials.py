"""Trials of robustness: runs that are killed at random moments and go on.

    python tests/mpifed/trials.py 200      mpirun -n 2: a rank is killed, or all of the job

It prints a line for every kill, and one JSON object at its end.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from commands import (
    all_ended,
    command,
    family,
    in_child,
    kill_all,
    of_rank,
    rows,
    started,
    summary_of,
    wait_for,
)

from mpifed.checkpoint import files as checkpoint
from mpifed.checkpoint import integrity as seal
from mpifed.launch import main

WORDS = (
    "synthetic-fedem",
    "clients=8",
    "rounds=8",
    "data.n_test=20",
    "data.dimension=4000",
    "evaluation.every=3",
    "checkpoint.every=1",
    "checkpoint.keep=3",
    "local.momentum=0.9",
    "local.batch_size=64",
    "participation={name: dropout, rate: 0.2, recovery: 0.5}",
    "--quiet",
    "--output",
)
PHASES = ("before_the_first_checkpoint", "amid_a_write", "between_writes")


@dataclass(frozen=True)
class Tally:
    """What became of the runs that were killed."""

    whole: Path
    words: tuple[str, ...]
    found: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("killed", *PHASES, "unusable_checkpoints", "equal"), 0
        )
    )

    def add(self, cut: Path, how: str) -> None:
        """Looks at the run in ``cut`` that was killed, resumes it, and prints a line of it."""
        damaged, when, recorded = unusable(cut), phase(cut), rounds_of(cut)
        code = to_its_end(*self.words, cut, "--resume")
        damaged += unusable(cut)
        equal = code == 0 and results(cut) == results(self.whole)
        self.found["killed"] += 1
        self.found[when] += 1
        self.found["unusable_checkpoints"] += len(damaged)
        self.found["equal"] += equal
        ended = "equal" if equal else f"NOT EQUAL, code {code}"
        said = [f"{self.found['killed']}: {how}", when, f"{recorded} rounds recorded", ended]
        print(", ".join([*said, *damaged]), flush=True)
        if equal:
            shutil.rmtree(cut)


def results(directory: Path) -> tuple[list[dict[str, str]], str]:
    return rows(directory), summary_of(directory)["state_digest"]


def unusable(directory: Path) -> list[str]:
    """Checkpoints under their final names that are not intact."""
    found = []
    for path in checkpoint.checkpoints_in(directory / "checkpoints"):
        try:
            seal.verify_seal(path)
        except seal.Damaged as error:
            found.append(str(error))
    return found


def phase(directory: Path) -> str:
    """In which of ``PHASES`` the run was killed."""
    if list((directory / "checkpoints").glob(".round-*.partial")):
        return "amid_a_write"
    there = checkpoint.checkpoints_in(directory / "checkpoints")
    return "between_writes" if there else "before_the_first_checkpoint"


def rounds_of(directory: Path) -> int:
    """How many rounds metrics.csv holds."""
    path = directory / "metrics.csv"
    return len(rows(directory)) if path.exists() else 0


def run_of(words) -> int:
    return main([str(word) for word in words])


def to_its_end(*words) -> int:
    """The exit code of a run in a child; the machine may be busy with others."""
    return in_child(lambda: run_of(words), seconds=600)


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A place for the runs; kept where one of them is needed to find out what went wrong."""
    path = Path(tempfile.mkdtemp(prefix="mpifed-trials-"))
    yield path
    shutil.rmtree(path / "whole")
    if any(path.iterdir()):
        print(f"see {path}", file=sys.stderr)
    else:
        path.rmdir()


def ranks(count: int, seed: int = 0) -> dict[str, float]:
    """``count`` runs of which one of two ranks is killed, or the launcher with all it started."""
    draw = random.Random(seed)
    words = (*WORDS[:2], "rounds=12", *WORDS[3:])
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with folder() as place:
        tally, one_message, of_ranks = Tally(place / "whole", words), 0, 0
        with started(command(2, *words, tally.whole)) as process:
            wait_for(tally.whole / "log.txt", process)
            began = time.monotonic()
            assert process.wait(600) == 0
            length = time.monotonic() - began
        while tally.found["killed"] < count:
            cut = place / f"cut-{tally.found['killed'] + 1}"
            whom = draw.choice([0, 1, None])
            seconds = draw.uniform(0, length)
            with started(command(2, *words, cut), **pipes) as process:
                wait_for(cut / "log.txt", process)
                time.sleep(seconds)
                job = family(process.pid)
                with contextlib.suppress(ProcessLookupError, ValueError):
                    if whom is None:
                        kill_all(job)
                    else:
                        os.kill(of_rank(whom, cut), signal.SIGKILL)
                error = process.communicate(timeout=60)[1]
                all_ended(job)
            if process.returncode == 0:
                shutil.rmtree(cut)
                continue
            if whom is not None:
                said = [line for line in error.splitlines() if line.startswith("mpifed: ")]
                of_ranks += 1
                one_message += len(said) == 1 and f"rank {whom} on " in said[0]
            who = "the job" if whom is None else f"rank {whom}"
            tally.add(cut, f"{who} killed {seconds:.2f} s after its beginning")
    more = {"of_one_rank": of_ranks, "with_one_message": one_message}
    return {**tally.found, **more, "seconds_of_a_run": round(length, 2)}


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    print(json.dumps(ranks(int(sys.argv[1]))))
