"""Trials of robustness: runs that are killed at random moments and go on, files that are damaged.

    python tests/mpifed/trials.py kills 200      one process, SIGKILL at a random moment, resumed
    python tests/mpifed/trials.py ranks 20       the same on two ranks, of which one is killed
    python tests/mpifed/trials.py damage 200     a checkpoint cut, or one bit of it turned

Each prints one JSON object.
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
from pathlib import Path

from commands import command, environment, in_child, of_rank, rows, summary_of

from mpifed import checkpoint, seal
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


def unusable(directory: Path) -> list[str]:
    """Checkpoints under their final names that are not intact."""
    found = []
    for path in checkpoint.listed(directory / "checkpoints"):
        try:
            seal.verify(path)
        except seal.Damaged as error:
            found.append(str(error))
    return found


def partial(directory: Path) -> bool:
    """Whether a checkpoint was being written when the run was killed."""
    return bool(list((directory / "checkpoints").glob(".round-*.partial")))


def run_of(words) -> int:
    return main([str(word) for word in words])


def to_its_end(*words) -> int:
    """The exit code of a run in a child; the machine may be busy with others."""
    return in_child(lambda: run_of(words), seconds=600)


def killed_after(seconds: float, words) -> bool:
    """Runs the command in a child that is killed after ``seconds``; whether it was."""
    child = os.fork()
    if not child:
        code = 70
        try:
            code = run_of(words)
        finally:
            os._exit(code)
    time.sleep(seconds)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def kills(count: int, seed: int = 0) -> dict:
    """``count`` runs that are killed once each and resumed, beside one that is not."""
    folder, draw = Path(tempfile.mkdtemp(prefix="mpifed-trials-")), random.Random(seed)
    try:
        whole = folder / "whole"
        began = time.monotonic()
        assert to_its_end(*WORDS, whole) == 0
        length = time.monotonic() - began
        found = dict.fromkeys(("killed", "amid_a_write", "resumed_from_a_checkpoint", "equal"), 0)
        damaged: list[str] = []
        for _ in range(count):
            cut = folder / "cut"
            while not killed_after(draw.uniform(0, length), [*WORDS, cut]):
                shutil.rmtree(cut)
            found["killed"] += 1
            found["amid_a_write"] += partial(cut)
            found["resumed_from_a_checkpoint"] += bool(checkpoint.listed(cut / "checkpoints"))
            damaged += unusable(cut)
            code = to_its_end(*WORDS, cut, "--resume")
            equal = code == 0 and rows(cut) == rows(whole) and not unusable(cut)
            found["equal"] += equal and summary_of(cut)["state_digest"] == digest(whole)
            shutil.rmtree(cut, ignore_errors=True)
        return {**found, "unusable_checkpoints": len(damaged), "seconds_of_a_run": round(length, 2)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def digest(directory: Path) -> str:
    return summary_of(directory)["state_digest"]


def ranks(count: int, seed: int = 0) -> dict:
    """As ``kills``, on two ranks, one of which is killed while the job trains."""
    folder, draw = Path(tempfile.mkdtemp(prefix="mpifed-trials-")), random.Random(seed)
    words = [*WORDS[:2], "rounds=60", *WORDS[3:]]
    try:
        whole = folder / "whole"
        assert to_its_end(*words, whole) == 0
        found = dict.fromkeys(("killed", "amid_a_write", "one_message", "equal"), 0)
        damaged: list[str] = []
        while found["killed"] < count:
            cut, rank = folder / "cut", draw.randrange(2)
            with subprocess.Popen(
                command(2, *words, cut), env=environment(), stderr=subprocess.PIPE, text=True
            ) as process:
                while not (cut / "metrics.csv").exists() and process.poll() is None:
                    time.sleep(0.02)
                time.sleep(draw.uniform(0, 2.0))
                with contextlib.suppress(ProcessLookupError, ValueError):
                    os.kill(of_rank(rank, cut), signal.SIGKILL)
                error = process.communicate(timeout=60)[1]
            if process.returncode:
                said = [line for line in error.splitlines() if line.startswith("mpifed: ")]
                found["killed"] += 1
                found["one_message"] += len(said) == 1 and f"rank {rank} on " in said[0]
                found["amid_a_write"] += partial(cut)
                damaged += unusable(cut)
                code = to_its_end(*words, cut, "--resume")
                found["equal"] += code == 0 and rows(cut) == rows(whole)
            shutil.rmtree(cut, ignore_errors=True)
        return {**found, "unusable_checkpoints": len(damaged)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def damage(count: int, seed: int = 0) -> dict:
    """A run's checkpoint cut at ``count`` places, and with one bit turned at ``count`` others."""
    folder, draw = Path(tempfile.mkdtemp(prefix="mpifed-trials-")), random.Random(seed)
    try:
        assert to_its_end(*WORDS, folder / "whole") == 0
        source = checkpoint.listed(folder / "whole" / "checkpoints")[0]
        intact, victim = source.read_bytes(), folder / source.name
        found = {"bytes": len(intact), "cut": 0, "turned": 0}
        for _ in range(count):
            victim.write_bytes(intact[: draw.randrange(len(intact))])
            found["cut"] += recognised(victim)
            place, changed = draw.randrange(len(intact)), bytearray(intact)
            changed[place] ^= 1 << draw.randrange(8)
            victim.write_bytes(changed)
            found["turned"] += recognised(victim)
        victim.write_bytes(intact)
        assert not recognised(victim)
        return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def recognised(path: Path) -> bool:
    try:
        checkpoint.read_meta(path)
    except seal.Damaged as error:
        return str(path) in str(error)
    return False


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    kind, number = sys.argv[1], int(sys.argv[2])
    answer = {"kills": kills, "ranks": ranks, "damage": damage}[kind](number)
    print(json.dumps({"trial": kind, "count": number, **answer}))
