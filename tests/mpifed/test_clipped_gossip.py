"""Clipped gossip against a naive loop over neighbours, and what attackers can do to it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_runs import prepared
from test_corrections import N, exchange_of

from mpifed.errors import Diverged, InputError
from mpifed.exchange import routes
from mpifed.exchange.corrections.clipped_gossip import ClippedGossip
from mpifed.exchange.gossip import Gossip
from mpifed.exchange.mixing_options import completed_options
from mpifed.federation.clients import Federation
from mpifed.mpi.communicator import Alone, world


def clipped(radius):
    return {"name": "clipped_gossip", "radius": radius}


def mixed(exchange, rows, active=None):
    active = np.ones(len(rows), bool) if active is None else active
    x = torch.from_numpy(rows[active])
    memory = exchange.remember([x], len(x), x.dtype)
    weights = torch.ones(len(x)).double()
    return exchange.at(1, active, memory).average(x, weights, 0.5 * x).numpy()


def naive(w, x, radius):
    after = x.copy()
    for i in range(len(x)):
        for j in range(len(x)):
            away = np.linalg.norm(x[j] - x[i])
            after[i] += w[i, j] * (x[j] - x[i]) * min(1, radius / max(away, 1e-300))
    return after


ROWS = np.random.default_rng(0).normal(size=(N, 2, 7))


@pytest.mark.parametrize("radius", [0.5, 3.0, 1e9])
@pytest.mark.parametrize("absent", [[], [2]])
def test_neighbours_are_clipped_one_by_one(radius, absent, monkeypatch):
    exchange = exchange_of(clipped(radius), "erdos_renyi", part=1.0 if not absent else 0.9)
    active = ~np.isin(np.arange(N), absent)
    matrix = exchange.routing.route(1, active).sparse.toarray()[np.ix_(active, active)]
    flat = ROWS[active].reshape(active.sum(), -1)
    made = mixed(exchange, ROWS, active)
    assert made.reshape(flat.shape) == pytest.approx(naive(matrix, flat, radius), abs=1e-12)
    monkeypatch.setattr(routes, "WIDTH", 5)
    assert mixed(exchange, ROWS, active) == pytest.approx(made, abs=1e-12)
    if radius == 1e9:
        assert made.reshape(flat.shape) == pytest.approx(matrix @ flat, abs=1e-9)


def test_an_attacker_moves_a_neighbour_by_at_most_its_weight_times_the_radius():
    exchange, far = exchange_of(clipped(0.25), "complete", "uniform"), ROWS.copy()
    far[3] = 1e12
    moved = mixed(exchange, far) - mixed(exchange, ROWS)
    others = np.arange(N) != 3
    lengths = np.linalg.norm(moved.reshape(N, -1)[others], axis=1)
    assert (lengths <= 2 * 0.25 / N + 1e-9).all() and lengths.max() > 0.01


def adaptive(tolerated):
    return {"name": "clipped_gossip", "tolerated": tolerated}


def naive_radius(w, x, i, tolerated):
    """The radius of client i whose farthest neighbours, of the weight tolerated, do not count."""
    total, left = 0.0, tolerated
    for j in sorted((j for j in range(len(x)) if j != i), key=lambda j: -away(x, i, j)):
        taken = min(left, w[i, j])
        left -= taken
        total += (w[i, j] - taken) * away(x, i, j) ** 2
    return np.sqrt(total / tolerated)


def away(x, i, j):
    return np.linalg.norm(x[j] - x[i])


@pytest.mark.parametrize("tolerated", [0.1, 0.3, 0.6])
@pytest.mark.parametrize("absent", [[], [2]])
def test_radii_follow_the_distances_of_all_but_the_farthest(tolerated, absent):
    exchange = exchange_of(adaptive(tolerated), "erdos_renyi", part=1.0 if not absent else 0.9)
    active = ~np.isin(np.arange(N), absent)
    w = exchange.routing.route(1, active).sparse.toarray()[np.ix_(active, active)]
    flat = ROWS[active].reshape(active.sum(), -1)
    expected = np.stack(
        [naive(w, flat, naive_radius(w, flat, i, tolerated))[i] for i in range(len(flat))]
    )
    made = mixed(exchange, ROWS, active).reshape(flat.shape)
    assert made == pytest.approx(expected, abs=1e-7)  # the root of a rounded weight of zero
    assert np.abs(made - w @ flat).max() > 1e-3 or tolerated < 0.3


def test_where_all_are_equally_far_apart_nothing_is_clipped():
    """Vertices of a simplex: tau^2 = (1 - 1 / n - delta) d^2 / delta, above d^2."""
    simplex = np.eye(N).reshape(N, N, 1)
    made = mixed(exchange_of(adaptive(0.3), "complete", "uniform"), simplex)
    assert made == pytest.approx(np.full((N, N, 1), 1 / N), abs=1e-12)


def test_attackers_that_are_tolerated_do_not_move_radii():
    """The farther they are the less they do: only their direction matters, not their distance."""
    exchange, found = exchange_of(adaptive(1 / N), "complete", "uniform"), []
    for distance in (1e6, 1e9):
        far = ROWS.copy()
        far[3] = distance * ROWS[3]
        found.append(mixed(exchange, far)[np.arange(N) != 3])
    assert found[0] == pytest.approx(found[1], abs=1e-4)
    reach = np.abs(found[1]).max()
    assert reach < 10 * np.abs(ROWS).max()


@pytest.mark.parametrize("attackers", [[3], [1, 6]])
def test_radii_are_at_most_those_of_the_honest_alone(attackers):
    exchange = exchange_of(adaptive(0.3), "erdos_renyi")
    w = exchange.routing.route(1, np.ones(N, bool)).sparse.toarray()
    far = ROWS.reshape(N, -1).copy()
    for scale in (0.1, 1.0, 100.0):
        far[attackers] = scale * ROWS.reshape(N, -1)[attackers]
        for i in range(N):
            if w[i, attackers].sum() <= 0.3 and i not in attackers:
                honest = [j for j in range(N) if j not in (i, *attackers)]
                bound = sum(w[i, j] * away(far, i, j) ** 2 for j in honest) / 0.3
                assert naive_radius(w, far, i, 0.3) <= np.sqrt(bound) * (1 + 1e-12)


@pytest.mark.parametrize("byzantine", [0.0, 0.3, 0.45])
@pytest.mark.parametrize("absent", [[], [2]])
def test_monna_is_the_mean_of_the_values_nearest_to_the_own(byzantine, absent):
    asked = {"name": "monna", "byzantine": byzantine}
    exchange = exchange_of(asked, "erdos_renyi", part=1.0 if not absent else 0.9)
    active = ~np.isin(np.arange(N), absent)
    w = exchange.routing.route(1, active).sparse.toarray()[np.ix_(active, active)]
    flat = ROWS[active].reshape(active.sum(), -1)
    for i, made in enumerate(mixed(exchange, ROWS, active).reshape(flat.shape)):
        heard = sorted({i, *np.flatnonzero(w[i])}, key=lambda j, i=i: away(flat, i, j))
        kept = heard[: len(heard) - int(byzantine * len(heard) + 1e-9)]
        assert made == pytest.approx(flat[kept].mean(axis=0), abs=1e-12)


def test_either_a_radius_or_what_is_tolerated_is_named():
    for options, word in (({}, "neither"), ({"radius": 1.0, "tolerated": 0.2}, "both")):
        with pytest.raises(InputError, match=f"{word} of radius and tolerated"):
            ClippedGossip(**options)


def test_what_is_not_finite_is_refused_with_its_client():
    bad = ROWS.copy()
    bad[5, 0, 0] = np.nan
    with pytest.raises(Diverged, match="5"):
        mixed(exchange_of(clipped(1.0)), bad)


@pytest.mark.parametrize("options", [clipped(0.05), adaptive(1 / 6)], ids=["fixed", "adaptive"])
def test_clipped_gossip_bears_an_attack_that_gossip_does_not(options):
    """The honest clients stay near each other, and near where they would be without attackers."""
    graph = {"name": "gossip", "topology": "complete", "weights": "uniform"}
    attack = {"name": "sign_flip", "clients": [1], "scale": 500.0}
    found = {}
    for name, more in (("honest", {}), ("attacked", {"attack": attack})):
        for correction in ("none", options):
            exchange = {**graph, "correction": correction}
            engine = prepared("fedavg", exchange, clients=6, **more)
            for _ in range(4):
                engine.advance()
            rows = engine.state.algorithm.model[[0, 2, 3, 4, 5]]
            found[name, correction == "none"] = rows.mean(0)
    plain, robust = (
        float((found["attacked", how] - found["honest", True]).norm()) for how in (True, False)
    )
    assert plain > 10 * robust


@pytest.mark.mpi
@pytest.mark.parametrize("correction", [clipped(1.0), adaptive(0.3)], ids=["fixed", "adaptive"])
def test_it_is_the_same_on_these_ranks_as_on_one(correction, monkeypatch):
    monkeypatch.setattr(routes, "WIDTH", 4)
    given = {"topology": "ring", "weights": "metropolis_hastings", "schedule": "static"}
    more = {"consensus_step": None, "correction": correction}
    options, made, communicator = completed_options({**given, **more}, N), [], world()
    owners = ((communicator, np.arange(N)[::-1] % communicator.size), (Alone(), np.zeros(N, int)))
    for where, owner in owners:
        federation = Federation(where, owner, np.zeros(N, bool), np.ones(N, int), 0.9)
        exchange = Gossip(federation, 0, Gossip.prepare(where, N, 0, options), **options)
        active = np.arange(N) != 2
        own = federation.hosted[active[federation.hosted]]
        x = torch.from_numpy(ROWS[own])
        memory = exchange.remember([x], len(x), x.dtype)
        channel = exchange.at(1, active, memory)
        made.append(channel.average(x, torch.ones(len(x)).double(), x))
    assert torch.equal(made[0], made[1][np.searchsorted(np.flatnonzero(active), own_of(owners[0]))])


def own_of(owner):
    communicator, owners = owner
    hosted = np.flatnonzero(owners == communicator.rank)
    return hosted[hosted != 2]
