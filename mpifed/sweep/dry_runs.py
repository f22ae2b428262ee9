"""Dry runs of the configurations of a sweep, all in one process that has imported torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

# What the process runs.
MODULE = "mpifed.dry_runs"

# Seconds after which no further configuration is tried.
SECONDS = 60.0

# Seconds after which the process is ended and the rest is left to the runs.
LONGEST = 900.0


class Answer(NamedTuple):
    """What dry runs say."""

    tried: int
    refused: str | None


def dry_runs(
    experiment: str,
    runs: Sequence[tuple[Sequence[str], Path]],
    needed: int,
    ranks: int,
    seconds: float = SECONDS,
) -> Answer:
    """Try configurations one after the other, until one is refused."""
    tried = [(list(words), str(directory)) for words, directory in runs]
    asked = {"experiment": experiment, "ranks": ranks, "tried": tried}
    words = json.dumps({**asked, "needed": needed, "seconds": seconds})
    command = [sys.executable, "-m", MODULE]
    try:
        done = subprocess.run(
            command, input=words, capture_output=True, text=True, check=False, timeout=LONGEST
        )
    except subprocess.TimeoutExpired:
        return Answer(0, None)
    if done.returncode:  # of a component that ends its process: left to the runs
        return Answer(0, None)
    return Answer(**json.loads(done.stdout))
