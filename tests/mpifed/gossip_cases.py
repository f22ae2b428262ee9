"""Rounds of gossip in many settings, on as many ranks as there are.

``python gossip_cases.py OUT.npz PERIODIC`` plays them all and writes every client's row after every
round; PERIODIC is a directory of matrices. The tests compare what ranks of other numbers wrote.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import topologies
from mpifed.exchange.gossip import Gossip
from mpifed.exchange.mixing_options import completed_options
from mpifed.federation.federation import Federation
from mpifed.federation.placement import partitioned_owners
from mpifed.mpi.communicator import Communicator, world

N, ROUNDS, SEED = 11, 3, 7


@dataclass(frozen=True)
class Case:
    """A setting. ``placement`` is how clients are dealt to ranks: blocks of all sizes, at random,
    or by the graph. ``absent`` clients are drawn anew each round; ``unseen`` never take part.
    """

    options: dict[str, Any]
    n: int = N
    width: int = 5
    dtype: str = "float32"
    placement: str = "uneven"
    absent: float = 0.0
    unseen: tuple[int, ...] = ()
    weights: Any = "metropolis_hastings"
    topology: Any = "ring"

    def exchange_options(self) -> dict[str, Any]:
        """The section ``exchange``, complete."""
        given = {"topology": self.topology, "weights": self.weights}
        known = {"consensus_step": None, "schedule": "static"}
        return completed_options({**known, **given, **self.options}, self.n - len(self.unseen))


def schedule(name: str, nodes_only: bool = False, **options: Any) -> dict[str, Any]:
    """A case's options for a schedule, and no topology where it takes none."""
    found: dict[str, Any] = {"schedule": {"name": name, **options}}
    return found | ({"topology": None, "weights": None} if nodes_only else {})


def of_this_rank(n: int) -> topologies.Schedule:
    """A user's schedule that computes other weights on every rank."""
    share = 1 / (3 + world().rank)

    def draw(random: np.random.Generator) -> topologies.MixingMatrix:
        pairs = np.sort(random.permutation(n)[: n - n % 2].reshape(-1, 2))
        return topologies.MixingMatrix(n, pairs, np.full(len(pairs), share))

    return topologies.Drawn(n, SEED, draw)


def cases(periodic: str) -> dict[str, Case]:
    """Every schedule, and every other thing that a route depends on."""
    random = {"name": "erdos_renyi", "p": 0.4}
    found = {
        "periodic": Case(schedule("periodic", True, path=periodic)),
        "one_peer_exponential": Case(schedule("one_peer_exponential", True)),
        "static_exponential": Case(schedule("static_exponential", True)),
        "base_k": Case(schedule("base_k", True, peers=2)),
        "equitopo": Case(schedule("equitopo", True)),
        "simple_base_k": Case(schedule("simple_base_k", True, peers=3)),
        "hyper_hypercube": Case(schedule("hyper_hypercube", True), n=12),
        "k_peer_exponential": Case(schedule("k_peer_exponential", True, peers=2)),
        "null_cascade": Case(schedule("null_cascade", True)),
        "d_equistatic": Case(schedule("d_equistatic", True)),
        "u_equistatic": Case(schedule("u_equistatic", True)),
        "od_equidyn": Case(schedule("od_equidyn", True)),
        "ou_equidyn": Case(schedule("ou_equidyn", True)),
        "matrices": Case(
            schedule("matrices", True, nodes=N, rounds="0-1:0.5 2>3:0.25 3>2:0.25; 4-5:0.3")
        ),
        "tour": Case(schedule("tour", True, path=f"{periodic}/links.csv")),
        "matchings": Case(schedule("matchings"), weights=None, topology=random),
        "random_matching": Case(schedule("random_matching"), weights=None, topology=random),
        "matcha": Case(schedule("matcha", budget=0.6), weights=None, topology=random),
        "resampled": Case(schedule("resampled"), topology=random),
        "each rank another": Case(schedule("gossip_cases:of_this_rank", True)),
        "drop-outs": Case(schedule("static", drop_nodes=0.2, drop_edges=0.2)),
        "bursts": Case(schedule("static", edge_failure=0.3, edge_recovery=0.4)),
        "epidemic": Case(schedule("epidemic", True, sends=3)),
        "epidemic, regular": Case(schedule("epidemic", True, sends=2, regular=True), absent=0.3),
        "local rounds": Case(schedule("static", local_rounds=2)),
        "late": Case({"when": "late", "budget": 2, **schedule("one_peer_exponential", True)}),
        "rounds by number": Case({"when": [1, 3]}, absent=0.3),
        "three steps": Case({"gossip_steps": 3, **schedule("one_peer_exponential", True)}),
        "Chebyshev": Case({"gossip_steps": 4, "chebyshev": True}, topology=random),
        "fmmc": Case({}, weights="fmmc", topology=random),
        "negative self-weights": Case({}, weights="best_constant", topology=random),
        "complete": Case({}, topology="complete"),
        "in pieces": Case({}, n=6, width=70_001, topology="path"),
        "a hub's sums": Case({}, n=40, topology="star"),
        "a hub's sums in pieces": Case({}, n=40, width=40_000, topology="star"),
        "double": Case({}, dtype="float64", topology=random),
        "a hub's sums, double": Case({}, n=60, dtype="float64", topology="star"),
        "at random": Case({}, placement="random", topology=random),
        "partitioned": Case({}, placement="partitioned", topology="path", n=17),
        "absent": Case({}, absent=0.4, topology=random),
        "absent, partitioned": Case({}, absent=0.5, placement="partitioned", n=17),
        "absent, directed": Case(schedule("one_peer_exponential", True), absent=0.3),
        "unseen": Case({}, unseen=(0, 4, 5), absent=0.3, placement="random"),
        "one client": Case({}, n=1),
        "two clients": Case({}, n=2),
        "no self-weights, bipartite": Case({}, n=6, weights={"name": "fmmc", "self_loops": False}),
        "no edges": Case({}, topology={"name": "erdos_renyi", "p": 0, "on_disconnected": "keep"}),
        "apart": Case(
            {}, topology={"name": "erdos_renyi", "p": 0.12, "on_disconnected": "keep", "seed": 3}
        ),
        "p is one": Case({}, topology={"name": "erdos_renyi", "p": 1}),
    }
    return {"static": Case({})} | found


@dataclass(frozen=True)
class Played:
    """A case on the ranks of this job; what is of all ranks is complete on rank 0.

    ``rounds`` is (1 + rounds, clients, width), the rows by client; ``active`` says who took part in
    each round, ``hashes`` which matrix each rank held.
    """

    exchange: Gossip
    rounds: np.ndarray
    active: list[np.ndarray]
    hashes: list[str]


def owners(case: Case, stored: dict[str, np.ndarray], communicator: Communicator) -> np.ndarray:
    """The rank of each client; some rank may have none."""
    size, unseen = communicator.size, np.isin(np.arange(case.n), case.unseen)
    generator = np.random.default_rng(100 * size + case.n)
    if case.placement == "partitioned":
        links = Gossip.links(case.n - len(case.unseen), SEED, case.exchange_options(), stored)
        return partitioned_owners(np.ones(case.n), unseen, links, communicator.size, communicator)
    dealt = generator.integers(size, size=case.n)
    return dealt if case.placement == "random" else np.sort(dealt)


def play(case: Case, communicator: Communicator) -> Played:
    """``ROUNDS`` rounds of a case; collective."""
    options = case.exchange_options()
    stored = Gossip.prepare(communicator, case.n - len(case.unseen), SEED, options)
    owner, unseen = owners(case, stored, communicator), np.isin(np.arange(case.n), case.unseen)
    federation = Federation(communicator, owner, unseen, np.ones(case.n, np.int64))
    exchange = Gossip(federation, SEED, stored, **options)
    exchange.spread_over(ROUNDS)
    x = torch.from_numpy(np.stack([start(case, t) for t in range(case.n)])[federation.hosted])
    mine, actives = [x.numpy()], []
    for k in range(1, ROUNDS + 1):
        active = ~unseen & (np.random.default_rng(k).random(case.n) >= case.absent)
        rows = torch.from_numpy(np.flatnonzero(active[federation.hosted]))
        channel = exchange.at(k, active)
        mixed = channel.average(x[rows], torch.ones(len(rows), dtype=torch.float64), x[rows])
        x = x.index_copy(0, rows, mixed)
        mine.append(x.numpy())
        actives.append(active)
    parts = communicator.gather_object((hash_of(exchange), np.stack(mine))) or []
    rounds = np.zeros((1 + ROUNDS, case.n, case.width), case.dtype)
    for rank, (_, rows_of_rank) in enumerate(parts):
        rounds[:, federation.hosted_of(rank)] = rows_of_rank
    return Played(exchange, rounds, actives, [sha256 for sha256, _ in parts])


def start(case: Case, client: int) -> np.ndarray:
    """The row that a client begins with; of sizes far apart."""
    generator = np.random.default_rng([client, 1])
    scale = 10.0 ** generator.integers(-4, 3, size=case.width)
    return (generator.normal(size=case.width) * scale).astype(case.dtype)


def hash_of(exchange: Gossip) -> str:
    """A hash of what the exchange is made from."""
    arrays = exchange.arrays()
    every = b"".join(np.ascontiguousarray(arrays[name]).tobytes() for name in sorted(arrays))
    return hashlib.sha256(every).hexdigest()


def play_all(periodic: str, communicator: Communicator) -> dict[str, np.ndarray]:
    """What becomes of all cases, complete on rank 0; collective."""
    found: dict[str, np.ndarray] = {}
    for name, case in cases(periodic).items():
        played = play(case, communicator)
        found[f"rounds {name}"] = played.rounds
        found[f"hashes {name}"] = np.array(played.hashes)
    return found


def differences(
    found: Mapping[str, np.ndarray], alone: Mapping[str, Played], ranks: int
) -> list[str]:
    """What ``play_all`` on so many ranks found that is unlike the cases on one rank."""
    unlike = []
    for name, played in alone.items():
        if found[f"rounds {name}"].tobytes() != played.rounds.tobytes():
            unlike.append(f"rounds {name}")
        if found[f"hashes {name}"].tolist() != [hash_of(played.exchange)] * ranks:
            unlike.append(f"hashes {name}")
    return unlike


def main(output: str, periodic: str) -> None:
    """Plays all cases and writes what became of them."""
    communicator = world()
    found = play_all(periodic, communicator)
    if communicator.rank == 0:
        np.savez(output, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
