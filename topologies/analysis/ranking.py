"""Which topology and schedule for n nodes and a budget: candidates, their numbers and their order.

The rounds until consensus come from the consensus rate, messages from the matrices, and seconds
from the clock of ``timing`` on given links.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from annotated_types import Gt

from topologies.analysis.cases import Case, CaseSpec, build_case, parse_case
from topologies.analysis.consensus import communication, consensus_rate
from topologies.errors import TopologyError, closest
from topologies.graphs.families import torus_shape
from topologies.links.network import Links, after_gossip
from topologies.matrix import ACTIVE, MixingMatrix
from topologies.names import from_text, parse_spec
from topologies.node_counts import prime_factors
from topologies.schedules.sequences import Schedule
from topologies.schema import check_value

# What a budget may limit; all but the degree may also order the candidates.
BUDGETS: dict[str, str] = {
    "degree": "messages that a node receives in a round, at most",
    "rounds": "rounds until the accuracy",
    "messages": "messages of all nodes until the accuracy",
    "bytes": "bytes of all nodes until the accuracy",
    "seconds": "seconds until the accuracy",
}

# Rounds that the clock runs through; the seconds of later rounds are those of the second half.
TIMED_ROUNDS = 100

# Largest number of nodes for which graphs have the fastest mixing weights.
CERTIFIED_NODES = 300


def read_budget(words: Sequence[str]) -> dict[str, float]:
    """Return the limits of ``degree=4 seconds=60``."""
    limits = {}
    for key, text in parse_spec("budget:" + ",".join(words))[1].items():
        if key not in BUDGETS:
            raise TopologyError(f"Unknown budget {key!r}; {closest(key, BUDGETS)}")
        limit = from_text(text, float)
        limits[key] = check_value(limit, Annotated[float, Gt(0)], f"the budget {key}")
    return limits


def candidates(n: int, degree: float = math.inf) -> list[CaseSpec]:
    """Return what is compared for n nodes: graphs with weights, schedules of graphs, schedules."""
    most = int(min(degree, n - 1, 8))
    rule = "fmmc" if n <= CERTIFIED_NODES else "metropolis_hastings"
    specs = [parse_case(text, rule, "static", None) for text in _graphs(n, most)]
    specs += [parse_case(text, rule, "static", None) for text in _schedules(n, most)]
    regular = f"random_regular:n={n},degree={most}"
    if most >= 3 and n * most % 2 == 0 and most < n:
        for schedule in ("matchings", "matcha:budget=0.5"):
            specs.append(parse_case(regular, rule, schedule, None))
    specs.append(parse_case(f"complete:n={n}", rule, "random_matching", None))
    return specs


def _graphs(n: int, most: int) -> Iterable[str]:
    yield from (f"{name}:n={n}" for name in ("ring", "star", "tree", "complete"))
    if len(prime_factors(n)) > 1 and min(torus_shape(n, None, None)) > 1:
        yield f"torus:n={n}"
    if n == 1 << (n.bit_length() - 1):
        yield f"hypercube:n={n}"
    if n > 4:
        yield f"exponential:n={n}"
    for degree in range(3, most + 1):
        if n * degree % 2 == 0 and degree < n:
            yield f"random_regular:n={n},degree={degree}"
    if most >= 3 and n > most + 1:
        yield f"cliques:n={n},size={most}"


def _schedules(n: int, most: int) -> Iterable[str]:
    names = ("one_peer_exponential", "static_exponential", "equitopo", "ou_equidyn")
    yield from (f"{name}:n={n}" for name in names)
    yield f"null_cascade:n={n}"
    if max(prime_factors(n)) <= most + 1:
        yield f"hyper_hypercube:n={n}"
    for peers in range(1, most + 1):
        yield f"base_k:n={n},peers={peers}"
        if peers > 1:
            yield f"k_peer_exponential:n={n},peers={peers}"
        if peers < n:
            yield f"epidemic:n={n},sends={peers}"
            yield f"d_equistatic:n={n},shifts={peers}"


def measure(
    case: Case, links: Links, work: float, message_bytes: float, accuracy: float
) -> dict[str, Any]:
    """Return what a candidate needs until all are near consensus."""
    schedule = case.schedule
    rate = consensus_rate(schedule)
    sent = communication(schedule, message_bytes=message_bytes, accuracy=accuracy, rate=rate)
    rounds = float(sent.rounds)
    return {
        "label": case.spec.label,
        "contraction": rate.contraction,
        "rounds": rounds,
        "degree": sent.most_messages,
        "messages_per_round": sent.messages,
        "keeps_mean": schedule.doubly_stochastic,
        "messages": sent.messages * rounds if sent.messages else 0.0,
        "bytes": sent.bytes_to_accuracy,
        "seconds": seconds_of(schedule, links, work, message_bytes, rounds),
    }


def seconds_of(
    schedule: Schedule, links: Links, work: float, message_bytes: float, rounds: float
) -> float:
    """Return the seconds of so many rounds on given links."""
    count = int(min(rounds, TIMED_ROUNDS))
    start, ends = np.zeros(schedule.n), [0.0]
    each = np.full(schedule.n, work)
    for k in range(1, count + 1):
        receivers, senders = _messages(schedule.matrix(k))
        travel = links.travel(receivers, senders, 8 * message_bytes)
        start = after_gossip(start, each, receivers, senders, travel)
        ends.append(float(start.max()))
    if rounds <= count:
        return ends[-1]
    return ends[-1] + (ends[-1] - ends[count // 2]) / (count - count // 2) * (rounds - count)


def _messages(matrix: MixingMatrix) -> tuple[Any, Any]:
    """Return the receivers and the senders of a round."""
    edges = matrix.edges[np.abs(matrix.weights) > ACTIVE]
    if matrix.symmetric:
        edges = np.concatenate([edges, edges[:, ::-1]])
    return edges[:, 0], edges[:, 1]


def rank(
    specs: Sequence[CaseSpec],
    links: Links,
    budget: Mapping[str, float],
    *,
    by: str = "rounds",
    work: float = 0.0,
    message_bytes: float = 4e6,
    accuracy: float = 1e-3,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Return the candidates that reach consensus within a budget, the best first."""
    built = (build_case(one, seed) for one in specs)
    every = [measure(case, links, work, message_bytes, accuracy) for case in built]
    fitting = [
        record
        for record in every
        if math.isfinite(record["rounds"])
        and all(record[key] <= limit for key, limit in budget.items())
    ]
    if not fitting:
        limits = ", ".join(f"{key}={limit:g}" for key, limit in budget.items())
        least = ", ".join(f"{key}={min(record[key] for record in every):g}" for key in budget)
        raise TopologyError(
            f"none of {len(every)} candidates keeps the budget {limits}; the least are {least}"
        )
    return sorted(fitting, key=lambda record: (record[by], record["bytes"], record["label"]))
