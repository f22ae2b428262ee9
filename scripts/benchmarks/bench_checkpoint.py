"""Benchmark of checkpoints: what 2 GiB of state cost the round loop, and how fast they reach the
disk.

Everything is measured in turn within one run, and reported as ratios: the loop's delay over a copy
of the state in memory, and the speed to disk over that of ``dd`` with ``conv=fsync`` beside it,
which writes the same bytes from memory: disks exist that store zeros faster.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench_figures import report

REPEATS = 5
CLIENTS, PARAMETERS = 64, 1 << 23
BYTES = CLIENTS * PARAMETERS * 4


def wall(action: Callable[[], Any]) -> float:
    """Wall seconds of one call."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def dd(source: Path, folder: Path) -> float:
    """Wall seconds in which ``dd`` writes as many bytes and flushes them."""
    count = BYTES >> 24
    words = ["dd", f"if={source}", f"of={folder / 'dd'}", "bs=16M", f"count={count}", "conv=fsync"]
    seconds = wall(lambda: subprocess.run(words, check=True, capture_output=True))
    (folder / "dd").unlink()
    return seconds


def checkpoint() -> None:
    """A checkpoint of 2 GiB beside a loop of matrix products, in one process."""
    import torch

    from mpifed import state
    from mpifed.checkpoint.background import Writer
    from mpifed.checkpoint.files import Meta, path_of
    from mpifed.federation.federation import Federation
    from mpifed.mpi.communicator import Alone

    torch.set_num_threads(1)

    @dataclass(frozen=True)
    class State:
        model: torch.Tensor = state.client()

    rows = torch.randn(CLIENTS, PARAMETERS)
    clients = np.arange(CLIENTS)
    writer = Writer(Federation(Alone(), 0 * clients, clients < 0, clients + 1))
    folder = Path(tempfile.mkdtemp(prefix="mpifed-bench-"))
    factors = torch.randn(2, 384, 384)

    def rounds() -> None:
        for _ in range(1500):
            torch.mm(factors[0], factors[1])

    def begin(number: int) -> None:
        about = Meta(number, 0, 1, {}, "round\n", {}, {})
        writer.start(path_of(folder, number), about, State(rows), False, {}, 1000)

    def clear() -> None:
        # Not timed, as the removal of the file of ``dd`` is not.
        for path in folder.glob("round-*"):
            path.unlink()

    begin(0)
    writer.finish()
    clear()
    copy = torch.empty_like(rows)
    in_memory = Path(tempfile.mkdtemp(prefix="mpifed-bench-", dir="/dev/shm"))
    rows.numpy().tofile(in_memory / "rows")
    measured: dict[str, list[float]] = {
        name: [] for name in ("copy", "start", "loop", "loop_beside", "written", "dd", "dd_zeros")
    }
    try:
        for number in range(1, REPEATS + 1):
            measured["dd"].append(dd(in_memory / "rows", folder))
            measured["dd_zeros"].append(dd(Path("/dev/zero"), folder))
            measured["copy"].append(wall(lambda: copy.copy_(rows)))
            measured["loop"].append(wall(rounds))
            began = time.perf_counter()
            measured["start"].append(wall(lambda: begin(number)))  # noqa: B023
            measured["loop_beside"].append(wall(rounds))
            writer.finish()
            clear()
            # Alone, so that nothing but the disk and the hash is measured.
            began = time.perf_counter()
            begin(number + 100)
            writer.finish()
            measured["written"].append(time.perf_counter() - began)
            clear()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(in_memory, ignore_errors=True)
    medians = {name: statistics.median(values) for name, values in measured.items()}
    cost = [
        (start + beside - loop) / copied
        for start, beside, loop, copied in zip(
            measured["start"],
            measured["loop_beside"],
            measured["loop"],
            measured["copy"],
            strict=True,
        )
    ]
    speed = [d / w for d, w in zip(measured["dd"], measured["written"], strict=True)]
    zeros = [d / w for d, w in zip(measured["dd_zeros"], measured["written"], strict=True)]
    seconds = {name: round(value, 3) for name, value in medians.items()}
    report(
        "checkpoint_cost",
        round(statistics.median(cost), 2),
        "copies in memory that 2 GiB cost the loop",
        all=[round(c, 2) for c in cost],
        only_start=round(medians["start"] / medians["copy"], 2),
        seconds=seconds,
    )
    report(
        "checkpoint_speed",
        round(statistics.median(speed), 2),
        "of the speed of dd conv=fsync",
        all=[round(s, 2) for s in speed],
        of_dd_of_zeros=[round(z, 2) for z in zeros],
        gib_a_second=round(BYTES / 2**30 / medians["written"], 2),
        seconds=seconds,
    )


BENCHMARKS: dict[str, Callable[[], None]] = {"checkpoint": checkpoint}
