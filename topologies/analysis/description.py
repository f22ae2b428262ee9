"""The description of a graph with its matrix or schedule, as one record of plain values."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import networkx as nx
import numpy as np

from topologies.analysis.consensus import (
    MESSAGE_BYTES,
    communication,
    consensus_rate,
    diameter,
    effective_neighbours,
    rate_of,
    sampled_rounds,
    slem,
)
from topologies.matrix import ACTIVE, MixingMatrix
from topologies.schedules.sequences import Schedule, as_schedule

SPECTRUM_NODES = 3000
COVARIANCE_NODES = 300
LEFT_OUT = (
    f"effective_neighbours is left out above {SPECTRUM_NODES} nodes, {COVARIANCE_NODES} for "
    "schedules that change"
)


def describe(
    graph: nx.Graph | None,
    source: MixingMatrix | Schedule,
    *,
    schedule: str = "static",
    accuracy: float = 1e-2,
    gamma: float = 0.9,
    message_bytes: float = MESSAGE_BYTES,
    seconds: float | None = None,
) -> dict[str, Any]:
    """Return the properties of a graph and the matrix or schedule on it.

    The keys are those of ``python -m topologies show --json``. ``slem`` and what follows from it
    are given for a matrix that is used in every round; ``consensus_rate`` is p over ``tau`` rounds.

    Parameters
    ----------
    graph : networkx.Graph | None
        The graph of the matrix or schedule. None for a schedule without one, which is then
        described on the union of its rounds' edges.
    source : MixingMatrix | Schedule
        The matrix or schedule.
    schedule : str, default 'static'
        Its name.
    accuracy : float, default 0.01
        Of ``mixing_time`` and ``bytes_to_accuracy``, in (0, 1).
    gamma : float, default 0.9
        The decay of ``effective_neighbours``, in (0, 1).
    message_bytes : float, default MESSAGE_BYTES
        The size of a message in bytes.
    seconds : float, optional
        CPU seconds for the weights or the schedule, if the matrix does not say.

    Returns
    -------
    dict of str to Any
        Plain values by name; None where a value does not exist or is infinite.

    Examples
    --------
    >>> from topologies import build_graph, mixing_matrix
    >>> graph = build_graph("ring", 4)
    >>> record = describe(graph, mixing_matrix(graph, "metropolis_hastings"))
    >>> record["edges"], record["diameter"], record["messages_per_round"]
    (4, 2, 8.0)
    """
    law = as_schedule(source)
    rounds = sampled_rounds(law)
    static = rounds[0] if law.period == 1 else None
    info = rounds[0].info if static is not None else {}
    record = {} if graph is None else graph.graph
    union = _union(law.n, rounds) if graph is None else graph
    degrees = np.array([degree for _, degree in union.degree])
    modulus = slem(static) if static is not None else None
    rate = consensus_rate(law) if modulus is None else rate_of(modulus)
    cost = communication(law, message_bytes=message_bytes, accuracy=accuracy, rate=rate)
    active = [int((np.abs(matrix.weights) > ACTIVE).sum()) for matrix in rounds]
    still = int((np.abs(rounds[0].self_weights) <= ACTIVE).sum())
    return {
        "family": record.get("family"),
        "params": record.get("params"),
        "n": law.n,
        "seed": record.get("seed"),
        "tries": record.get("tries"),
        "connected": nx.is_connected(union),
        "edges": union.number_of_edges(),
        "active_edges": active[0] if static is not None else float(np.mean(active)),
        "degree_min": int(degrees.min()),
        "degree_mean": float(degrees.mean()),
        "degree_max": int(degrees.max()),
        "diameter": _finite(diameter(union), int),
        "weights": info.get("weights"),
        "weight_options": info.get("weight_options"),
        "schedule": schedule,
        "symmetric": law.symmetric,
        "doubly_stochastic": law.doubly_stochastic,
        "slem": modulus,
        "spectral_gap": None if modulus is None else 1 - modulus,
        "consensus_rate": rate.p,
        "consensus_rate_error": rate.standard_error,
        "period": law.period,
        "tau": rate.tau,
        "mixing_time": _finite(cost.rounds, int),
        "effective_neighbours": _effective_neighbours(law, gamma),
        "min_self_weight": float(min(matrix.self_weights.min() for matrix in rounds)),
        "zero_self_weights": None if static is None else still,
        "messages_per_round": cost.messages,
        "most_messages": cost.most_messages,
        "bytes_per_round": cost.bytes,
        "bytes_to_accuracy": _finite(cost.bytes_to_accuracy, float),
        "lower_bound": info.get("lower_bound"),
        "certified_gap": info.get("certified_gap"),
        "seconds": info.get("seconds", seconds),
        "sha256": rounds[0].sha256 if static is not None else _digest(rounds),
    }


def _union(n: int, rounds: list[MixingMatrix]) -> nx.Graph:
    union = nx.empty_graph(n)
    for matrix in rounds:
        union.add_edges_from(matrix.edges.tolist())
    return union


def _effective_neighbours(law: Schedule, gamma: float) -> float | None:
    most = SPECTRUM_NODES if law.period == 1 and law.symmetric else COVARIANCE_NODES
    return effective_neighbours(law, gamma) if law.n <= most else None


def _digest(rounds: list[MixingMatrix]) -> str:
    """Return the SHA-256 of the hashes of the rounds looked at."""
    return hashlib.sha256("".join(matrix.sha256 for matrix in rounds).encode()).hexdigest()


def _finite(value: float, kind: type) -> Any:
    return kind(value) if math.isfinite(value) else None
