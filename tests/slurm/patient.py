"""An algorithm as a user would plug it in: FedAvg that takes its time, and almost no processor."""

from __future__ import annotations

import os
import time

from mpifed.algorithms.fedavg import FedAvg


class Patient(FedAvg):
    """Sleeps as many seconds a round as ``PAUSE`` in the environment says."""

    def round(self, state, clients, channel, draws):
        time.sleep(float(os.environ.get("PAUSE", "0")))
        return super().round(state, clients, channel, draws)
