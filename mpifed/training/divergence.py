"""Divergence: values that are no longer finite, whose they are, and the failures they cause."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import torch

from mpifed import state as states
from mpifed.algorithms.base import Algorithm
from mpifed.errors import Diverged, PeerDiverged, raise_first_diverged
from mpifed.exchange.reduction import largest
from mpifed.mpi.communicator import Communicator


def bad_clients(state: Any, shared_is_rows: bool, ids: np.ndarray) -> list[int]:
    """Return the ids of hosted clients whose state has a value that is not finite, ascending."""
    bad = np.zeros(len(ids), bool)
    for _, tensor, is_rows in states.tensors(state, shared_is_rows):
        if is_rows and not _finite(tensor):
            bad |= ~torch.isfinite(tensor.flatten(1)).all(1).cpu().numpy()
    return [int(client) for client in ids[bad]]


def server_diverged(state: Any, shared_is_rows: bool) -> bool:
    """Return whether a tensor of the server has a value that is not finite."""
    found = states.tensors(state, shared_is_rows)
    return not all(_finite(tensor) for _, tensor, is_rows in found if not is_rows)


def _finite(tensor: torch.Tensor) -> bool:
    # Much faster than a test of every value.
    return not tensor.is_floating_point() or math.isfinite(largest(tensor))


def refuse(
    communicator: Communicator, state: Any, shared_is_rows: bool, ids: np.ndarray, where: str
) -> None:
    """Raise if the state of any client is not finite; collective."""
    own = bad_clients(state, shared_is_rows, ids)
    answer = communicator.max(np.array([-float(own[0]) if own else -np.inf]))
    raise_first_diverged(-answer[0], own, where)


def all_diverged(communicator: Communicator, error: Diverged | PeerDiverged) -> list[int]:
    """Return the clients of all ranks that diverged, ascending, on every rank; collective."""
    gathered = communicator.gather_object(error.clients)
    union = sorted({client for own in gathered for client in own}) if gathered else None
    return list(communicator.broadcast_object(union))


def of_the_server(round: int) -> Diverged:
    """Return the failure of a run whose shared state is not finite, though all updates were."""
    return Diverged(
        f"the server's state after round {round} is not finite: the training diverged", []
    )


def advice(algorithm: Algorithm) -> str:
    """Return what may help against divergence, for a message."""
    return f"a smaller {algorithm.step_option} may help"


def report(clients: list[int], round: int) -> None:
    """Log that clients were left out of a round (``on_divergence: drop``)."""
    listing = ", ".join(map(str, clients))
    many = "clients" if len(clients) > 1 else "client"
    logging.getLogger("mpifed").warning(
        f"round {round} was run without {many} {listing}, whose numbers were not finite"
    )


def of_all(error: Diverged) -> Diverged:
    """Return the failure of a round in which all participants diverged."""
    return Diverged(
        f"{error} (nor have the others that take part finite numbers, so on_divergence=drop leaves "
        "no client to continue with)",
        error.clients,
    )
