"""The digest of a run's state, the same for any number of ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

from mpifed import state as states
from mpifed.training.build import Setup

# Clients whose digests are gathered at once.
BLOCK = 1 << 14


def digest(
    setup: Setup, state: states.RunState, after_block: Callable[[], None] = lambda: None
) -> str | None:
    """Return the SHA-256 over the digests of the server's and each client's state, in order."""
    is_rows, federation = setup.exchange.shared_is_rows, setup.federation
    total = hashlib.sha256(states.server_digest(state, is_rows))
    for first in range(0, federation.n_clients, BLOCK):
        last = min(first + BLOCK, federation.n_clients)
        start, stop = np.searchsorted(federation.hosted, (first, last))
        own = states.client_digests(state, is_rows, slice(int(start), int(stop)))
        after_block()
        gathered = federation.communicator.gather_object(own)
        if gathered is None:
            continue
        owners = federation.owner[first:last]
        of_all = np.empty((last - first, hashlib.sha256().digest_size), np.uint8)
        for rank, found in enumerate(gathered):
            of_all[owners == rank] = np.frombuffer(found, np.uint8).reshape(-1, of_all.shape[1])
        total.update(of_all.data)
    return total.hexdigest() if federation.communicator.rank == 0 else None
