"""Clipped gossip against a naive loop over neighbours, and what attackers can do to it."""

from __future__ import annotations

import numpy as np
import pytest
from moves import moved, values
from quadratics import MH, N, gossip
from small_runs import PLAIN

import topologies
from mpifed.errors import Diverged, InputError
from mpifed.testing import run_rounds

RANDOM = {"name": "erdos_renyi", "p": 0.4, "seed": 3}


def clipped(radius):
    return {"name": "clipped_gossip", "radius": radius}


def mixed(section, rows, participation=1.0, **options):
    """Where a round takes clients that move from half of their rows to these, and who was there."""
    flat = rows.reshape(len(rows), -1)
    run = moved(
        lambda k, ids, x: 0.5 * flat[ids],
        len(rows),
        0.5 * flat,
        0,
        exchange=section,
        participation=participation,
        **options,
    )
    present = run.participants
    return values(run.advance())[present].reshape(rows[present].shape), present


def weights_among(section, present):
    """W of a section whose graph is drawn with a seed of its own; edges of the absent return."""
    options = {k: v for k, v in section["topology"].items() if k not in ("name", "seed")}
    name, seed = section["topology"]["name"], section["topology"]["seed"]
    matrix = topologies.mixing_matrix(topologies.build_graph(name, N, seed, **options), MH)
    active = np.isin(np.arange(N), present)
    return matrix.restricted_to(active).to_dense()[np.ix_(active, active)]


def naive(w, x, radius):
    after = x.copy()
    for i in range(len(x)):
        for j in range(len(x)):
            away = np.linalg.norm(x[j] - x[i])
            after[i] += w[i, j] * (x[j] - x[i]) * min(1, radius / max(away, 1e-300))
    return after


ROWS = np.random.default_rng(0).normal(size=(N, 2, 7))


@pytest.mark.parametrize("radius", [0.5, 3.0, 1e9])
@pytest.mark.parametrize("participation", [1.0, 0.9])
def test_neighbours_are_clipped_one_by_one(radius, participation):
    section = gossip(clipped(radius), RANDOM)
    after, present = mixed(section, ROWS, participation)
    w, flat = weights_among(section, present), ROWS[present].reshape(len(present), -1)
    assert after.reshape(flat.shape) == pytest.approx(naive(w, flat, radius), abs=1e-12)
    if radius == 1e9:
        assert after.reshape(flat.shape) == pytest.approx(w @ flat, abs=1e-9)


@pytest.mark.slow
def test_vectors_of_many_pieces_are_clipped_as_one():
    rows = np.random.default_rng(1).normal(size=(N, 70_000)) / 250
    section = gossip(clipped(0.5), RANDOM)
    after, present = mixed(section, rows)
    assert after == pytest.approx(naive(weights_among(section, present), rows, 0.5), abs=1e-12)


def test_an_attacker_moves_a_neighbour_by_at_most_its_weight_times_the_radius():
    exchange, far = gossip(clipped(0.25), "complete", "uniform"), ROWS.copy()
    far[3] = 1e12
    moves = mixed(exchange, far)[0] - mixed(exchange, ROWS)[0]
    others = np.arange(N) != 3
    lengths = np.linalg.norm(moves.reshape(N, -1)[others], axis=1)
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
@pytest.mark.parametrize("participation", [1.0, 0.9])
def test_radii_follow_the_distances_of_all_but_the_farthest(tolerated, participation):
    section = gossip(adaptive(tolerated), RANDOM)
    after, present = mixed(section, ROWS, participation)
    w, flat = weights_among(section, present), ROWS[present].reshape(len(present), -1)
    expected = np.stack(
        [naive(w, flat, naive_radius(w, flat, i, tolerated))[i] for i in range(len(flat))]
    )
    after = after.reshape(flat.shape)
    assert after == pytest.approx(expected, abs=1e-7)  # the root of a rounded weight of zero
    assert np.abs(after - w @ flat).max() > 1e-3 or tolerated < 0.3


def test_where_all_are_equally_far_apart_nothing_is_clipped():
    """Vertices of a simplex: tau^2 = (1 - 1 / n - delta) d^2 / delta, above d^2."""
    simplex = np.eye(N).reshape(N, N, 1)
    after, _ = mixed(gossip(adaptive(0.3), "complete", "uniform"), simplex)
    assert after == pytest.approx(np.full((N, N, 1), 1 / N), abs=1e-12)


def test_attackers_that_are_tolerated_do_not_move_radii():
    """The farther they are the less they do: only their direction matters, not their distance."""
    exchange, found = gossip(adaptive(1 / N), "complete", "uniform"), []
    for distance in (1e6, 1e9):
        far = ROWS.copy()
        far[3] = distance * ROWS[3]
        found.append(mixed(exchange, far)[0][np.arange(N) != 3])
    assert found[0] == pytest.approx(found[1], abs=1e-4)
    reach = np.abs(found[1]).max()
    assert reach < 10 * np.abs(ROWS).max()


@pytest.mark.parametrize("attackers", [[3], [1, 6]])
def test_radii_are_at_most_those_of_the_honest_alone(attackers):
    w = weights_among(gossip(adaptive(0.3), RANDOM), np.arange(N))
    far = ROWS.reshape(N, -1).copy()
    for scale in (0.1, 1.0, 100.0):
        far[attackers] = scale * ROWS.reshape(N, -1)[attackers]
        for i in range(N):
            if w[i, attackers].sum() <= 0.3 and i not in attackers:
                honest = [j for j in range(N) if j not in (i, *attackers)]
                bound = sum(w[i, j] * away(far, i, j) ** 2 for j in honest) / 0.3
                assert naive_radius(w, far, i, 0.3) <= np.sqrt(bound) * (1 + 1e-12)


@pytest.mark.parametrize("byzantine", [0.0, 0.3, 0.45])
@pytest.mark.parametrize("participation", [1.0, 0.9])
def test_monna_is_the_mean_of_the_values_nearest_to_the_own(byzantine, participation):
    section = gossip({"name": "monna", "byzantine": byzantine}, RANDOM)
    means, present = mixed(section, ROWS, participation)
    w, flat = weights_among(section, present), ROWS[present].reshape(len(present), -1)
    for i, mean in enumerate(means.reshape(flat.shape)):
        heard = sorted({i, *np.flatnonzero(w[i])}, key=lambda j, i=i: away(flat, i, j))
        kept = heard[: len(heard) - int(byzantine * len(heard) + 1e-9)]
        assert mean == pytest.approx(flat[kept].mean(axis=0), abs=1e-12)


def test_either_a_radius_or_what_is_tolerated_is_named():
    for options in ({}, {"radius": 1.0, "tolerated": 0.2}):
        with pytest.raises(InputError, match=r"clipped_gossip.*radius.*tolerated"):
            mixed(gossip({"name": "clipped_gossip", **options}), ROWS)


def test_what_is_not_finite_is_refused_with_its_client():
    bad = ROWS.copy()
    bad[5, 0, 0] = np.nan
    with pytest.raises(Diverged, match="client 5 "):
        mixed(gossip(clipped(1.0)), bad)


@pytest.mark.parametrize("options", [clipped(0.05), adaptive(1 / 6)], ids=["fixed", "adaptive"])
def test_clipped_gossip_bears_an_attack_that_gossip_does_not(options):
    """The honest clients stay near each other, and near where they would be without attackers."""
    graph = {"name": "gossip", "topology": "complete", "weights": "uniform"}
    attack = {"name": "sign_flip", "clients": [1], "scale": 500.0}
    found = {}
    for name, more in (("honest", {}), ("attacked", {"attack": attack})):
        for correction in ("none", options):
            exchange = {**graph, "correction": correction}
            words = {**PLAIN, "clients": 6, "exchange": exchange, **more, "rounds": 4}
            run = run_rounds("fedavg", words.pop("data"), **words)
            rows = run.state.model[[0, 2, 3, 4, 5]]
            found[name, correction == "none"] = rows.mean(0)
    plain, robust = (
        float((found["attacked", how] - found["honest", True]).norm()) for how in (True, False)
    )
    assert plain > 10 * robust


@pytest.mark.parametrize("correction", [clipped(1.0), adaptive(0.3)], ids=["fixed", "adaptive"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_it_is_the_same_on_any_ranks_as_on_one(correction, ranks):
    section = gossip(correction)
    one, many = (mixed(section, ROWS, 0.9, ranks=number)[0] for number in (1, ranks))
    assert one.tobytes() == many.tobytes()
