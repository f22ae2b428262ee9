"""Dry runs of the configurations of a sweep, all in one process that has imported torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

MODULE = "mpifed.dry_runs"
"""What the process runs."""

SECONDS = 60.0
"""Seconds after which no further configuration is tried."""

LONGEST = 900.0
"""Seconds after which the process is ended and the rest is left to the runs."""


class Answer(NamedTuple):
    """What dry runs say.

    Attributes
    ----------
    tried : int
        How many configurations were tried.
    refused : str or None
        Why the last of them is refused, if it is.
    """

    tried: int
    refused: str | None


def dry_runs(
    experiment: str,
    runs: Sequence[tuple[Sequence[str], Path]],
    needed: int,
    ranks: int,
    seconds: float = SECONDS,
) -> Answer:
    """Try configurations one after the other, until one is refused.

    Parameters
    ----------
    experiment : str
        A shipped experiment or a YAML file.
    runs : sequence of (sequence of str, Path)
        Overrides and directory of each.
    needed : int
        How many are tried however long it takes.
    ranks : int
        The ranks that ``clients=ranks`` means.
    seconds : float
        Seconds after which no other one is begun.

    Returns
    -------
    Answer
        As if none were refused where the process itself ends too early, or does not end.
    """
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
