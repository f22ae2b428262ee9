"""What clients send in DCGD and DIANA: compressed gradients, or their distance from a memory.

A client that knows which coordinates of its message will be kept computes no others.
"""

from __future__ import annotations

from torch import Tensor

from mpifed.algorithms.flix.objective import FlixObjective
from mpifed.exchange.base import Channel
from mpifed.federation.clients import Clients, Draws
from mpifed.sparse_rows import SparseRows, taken


def sent_gradients(
    objective: FlixObjective,
    optima: Tensor,
    x: Tensor,
    memories: Tensor | None,
    clients: Clients,
    channel: Channel,
    draws: Draws,
    whole: bool = False,
) -> Tensor | SparseRows:
    """C_i(alpha_i grad f_i(T_i(x)) - h_i) as the server receives it, rows of (clients, P).

    ``memories`` are h_i, (clients, P), zeros if None; ``whole`` sends without C_i.
    """
    size, exact = optima.shape[1], objective.batch_size is None
    columns = channel.coordinates(size) if exact and not whole else None
    if columns is not None:
        chosen = objective.partial_gradients(optima, x, clients, columns)
        if chosen is not None:
            if memories is not None:
                chosen.sub_(taken(memories, columns))
            return channel.send_chosen(SparseRows(columns, chosen, size))
    rows = objective.gradients(optima, x, clients, draws)
    if memories is not None:
        rows.sub_(memories)
    return channel.send(rows, whole)
