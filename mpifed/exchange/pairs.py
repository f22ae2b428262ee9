"""What a server knows of its clients one by one: numbers, products of pairs, all of a
coordinate.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from mpifed.federation.clients import Federation
from mpifed.state import on_host

# Numbers that a rank holds of other ranks' rows at a time.
AT_ONCE = 1 << 22


def collected(federation: Federation, active: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the numbers of all active clients on every rank, 0 for the others. Collective."""
    present = _present(federation, active)
    counts = [len(clients) for clients in present]
    found = federation.communicator.gather_rows(np.ascontiguousarray(values)[:, None], counts)
    every = np.zeros(federation.n_clients, found.dtype)
    every[np.concatenate(present)] = found[:, 0]
    return every


def inner_products(federation: Federation, active: np.ndarray, rows: Tensor) -> np.ndarray:
    """Return the inner products of all pairs of active clients' rows, in client order.
    Collective.
    """
    communicator, flat = federation.communicator, rows.detach().flatten(1)
    present = _present(federation, active)
    order = torch.from_numpy(np.argsort(np.concatenate(present)))
    everything, nothing = np.arange(len(flat)), np.zeros(0, int)
    send = [everything] + [nothing] * (communicator.size - 1)
    at_root = communicator.rank == 0
    receive = [len(clients) if at_root else 0 for clients in present]
    products = torch.zeros(len(order), len(order), dtype=torch.float64)
    width = max(1, AT_ONCE // max(1, len(order)))
    for start in range(0, flat.shape[1], width):
        own = np.ascontiguousarray(on_host(flat[:, start : start + width]))
        arrived = communicator.exchange_rows(own, send, receive)
        if at_root:
            part = torch.from_numpy(arrived)[order].double()
            products += part @ part.T
    return communicator.broadcast(products.numpy())


def by_coordinates(
    federation: Federation,
    active: np.ndarray,
    rows: Tensor,
    combine: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """Return what ``combine`` makes of all active clients' rows, coordinate by coordinate."""
    communicator, flat = federation.communicator, rows.detach().flatten(1)
    size, present = communicator.size, _present(federation, active)
    order = np.argsort(np.concatenate(present))
    # Row c * size + r of what is sent is the share of rank r in the row of client c.
    send = [np.arange(len(flat)) * size + rank for rank in range(size)]
    receive = [len(clients) for clients in present]
    found = np.empty(flat.shape[1])
    at_once = size * max(1, AT_ONCE // (max(1, len(order)) + size * max(1, len(flat))))
    # The widths of all ranks are those of the one with the fewest columns at a time.
    at_once = int(-communicator.max(np.array([-float(at_once)]))[0])
    for start in range(0, flat.shape[1], at_once):
        part = on_host(flat[:, start : start + at_once])
        width = -(-part.shape[1] // size)
        padded = np.zeros((len(part), size * width), part.dtype)
        padded[:, : part.shape[1]] = part
        arrived = communicator.exchange_rows(padded.reshape(-1, width), send, receive)
        share = combine(arrived[order].astype(np.float64))
        shares = communicator.gather_rows(share[None], [1] * size)
        found[start : start + part.shape[1]] = shares.reshape(-1)[: part.shape[1]]
    return found.reshape(rows.shape[1:])


def _present(federation: Federation, active: np.ndarray) -> list[np.ndarray]:
    """The active clients of each rank, ascending."""
    hosted = [federation.hosted_of(rank) for rank in range(federation.communicator.size)]
    return [clients[active[clients]] for clients in hosted]
