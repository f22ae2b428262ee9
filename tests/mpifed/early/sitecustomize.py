"""Strikes a rank in its first moments; read by every Python that finds this folder on its path.

``EARLY=how:rank:module,...`` of the environment says how it is struck as it imports a module.
"""

from __future__ import annotations

import os
import signal
import sys
import time


class Strikes:
    """Finds no module, but hears of each."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        own = next(os.environ[key] for key in RANKS if key in os.environ)
        for strike in os.environ["EARLY"].split(","):
            how, rank, module = strike.split(":")
            if (rank, module) in ((own, name), ("every", name)):
                globals()[how]()


RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def die_in_a_moment():
    signal.setitimer(signal.ITIMER_REAL, 1.0)


def be_late():
    time.sleep(4)


def fail():
    raise ImportError("a library that is not there")


if "EARLY" in os.environ and any(key in os.environ for key in RANKS):
    sys.meta_path.insert(0, Strikes)
