"""A component of a user's that has things left to do when its process ends.

``LINGER=a,b,...`` of the environment are the seconds that rank 0, 1, ... takes to end; in the
directory ``LEFT_IN`` every rank leaves what an interpreter that ends in order would not lose.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py

from mpifed.algorithms.fedavg.fedavg import FedAvg
from mpifed.errors import InputError
from mpifed.testing import world


class Lingers(FedAvg):
    """FedAvg that is slow to end; ``STOP=1`` asks rank 1 to stop in round 2."""

    def round(self, state, clients, channel, draws):
        if os.environ.get("STOP") and (world().rank, draws.round) == (1, 2):
            os.kill(os.getpid(), signal.SIGUSR1)
        return super().round(state, clients, channel, draws)

    @staticmethod
    def validate(options, participation):
        if participation != 1.0:
            raise InputError("all are needed")


def linger() -> None:
    time.sleep(float(os.environ["LINGER"].split(",")[world().rank]))


class Leaves(FedAvg):
    """FedAvg that closes nothing, waits for nothing, and fails when it ends."""

    def round(self, state, clients, channel, draws):
        if draws.round == 1:
            leave(Path(os.environ["LEFT_IN"]), world().rank)
        return super().round(state, clients, channel, draws)


KEPT: list[object] = []


def leave(place: Path, rank: int) -> None:
    def late(name: str) -> None:
        time.sleep(1.0)
        (place / f"{name}-{rank}").write_text("done")

    def fails() -> None:
        raise RuntimeError("the user's last mistake")

    data = h5py.File(place / f"data-{rank}.h5", "w")
    data["values"] = range(100)
    atexit.register(late, "handler")
    atexit.register(fails)
    threading.Thread(target=late, args=("thread",)).start()
    pool = ThreadPoolExecutor(1)
    pool.submit(late, "pool")
    atexit.register(print, f"printed by {rank}", end="\n")
    libc = ctypes.CDLL(None)
    KEPT.extend([data, pool])
    atexit.register(libc.printf, f"printed in C by {rank}\n".encode())


if "LINGER" in os.environ:
    atexit.register(linger)
