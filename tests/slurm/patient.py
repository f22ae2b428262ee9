"""An algorithm as a user would plug it in: FedAvg that takes its time, and almost no processor."""

from __future__ import annotations

import os
import time

from mpifed.algorithms.fedavg.fedavg import FedAvg

QUICK_ROUNDS = 10
"""Rounds before it takes its time: until then a test only waits for it."""


class Patient(FedAvg):
    """In a job's first life it sleeps ``PAUSE`` seconds of the environment before a round.

    So a job that a test means to interrupt does not end before, however slow the machine, and is
    soon done after.
    """

    def round(self, state, clients, channel, draws):
        first_life = os.environ.get("SLURM_RESTART_COUNT", "0") == "0"
        if first_life and draws.round > QUICK_ROUNDS:
            time.sleep(float(os.environ.get("PAUSE", "0")))
        return super().round(state, clients, channel, draws)
