"""The memory that a round takes at least, compared with what there is before anything is drawn."""

from __future__ import annotations

import numpy as np

from mpifed.io.memory import check_memory
from mpifed.training.build import Setup, sum_on_host


def check_round(setup: Setup) -> None:
    """Refuse messages that do not fit into the memory of the hosts; collective."""
    federation, communicator = setup.federation, setup.federation.communicator
    trained = np.bincount(federation.owner[federation.training], minlength=communicator.size)
    host, found = sum_on_host(communicator, trained)
    here = int(found)
    rows = int(federation.inclusion * here) + (here if setup.exchange.shared_is_rows else 1)
    rows += setup.exchange.values_kept * here
    numbers = setup.algorithm.payload()
    check_memory(
        float(rows) * numbers * setup.dtype.itemsize,
        f"algorithm {setup.configuration.algorithm.name} has {numbers} numbers in a client's "
        f"message and {here} clients in training on {host}, which",
    )
