"""What a round of FedMM's methods takes and gives: starts, samples, projections, gossip, FedMGS."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from fedmm_runs import Run, data_of

from mpifed.algorithms.fedmm.fedmgs import FedMGS
from mpifed.algorithms.fedmm.fedmm import FedMM
from mpifed.algorithms.fedmm.fedmm_theta import FedMMTheta
from mpifed.exchange.server import Server
from mpifed.federation.clients import Draws
from mpifed.local.options import LocalOptions
from mpifed.local.solver import LocalSolver
from mpifed.models.base import none

RHO, GAMMA = 0.1, 0.3
RIDGE = {"name": "quadratic", "rho": RHO, "regularisation": "ridge", "strength": 0.5}


def shards(n=3, size=6, q=4, seed=0):
    draw = np.random.default_rng(seed)
    return [draw.normal(size=(size, q + 1)) for _ in range(n)]


@pytest.mark.parametrize("kind", [FedMM, FedMMTheta])
@pytest.mark.parametrize("surrogate", [{"name": "dictionary", "n_atoms": 3}, "gaussian_mixture"])
def test_both_begin_from_the_same_theta(kind, surrogate):
    run = Run(kind, data_of(shards(q=2)), surrogate, seed=5)
    first = run.method.surrogate.init(Draws(5, 0).stream("surrogate"))
    assert run.theta.numpy() == pytest.approx(first, abs=1e-12)


@pytest.mark.parametrize("batch", [1, 4])
def test_a_batch_has_as_many_samples_of_each_client_as_are_asked_for(batch):
    run = Run(FedMM, data_of(shards()), "gaussian_mixture", batch=batch)
    split = run.method.samples(run.everyone, Draws(0, 1))
    assert split.counts.tolist() == [batch] * 3
    shard = run.everyone.shards.train.x[6:12]
    for row in split.x[batch : 2 * batch]:
        assert (row == shard).all(1).any()


def test_online_every_round_draws_samples_of_its_own():
    run = Run(FedMM, data_of(shards()), "gaussian_mixture", batch=2, online=True)
    asked = []

    def fresh(ids, round, count):
        asked.append((ids.tolist(), round, count))
        return run.everyone.shards.train

    object.__setattr__(run.everyone, "shards", replace(run.everyone.shards, fresh=fresh))
    run.go(2)
    assert asked == [([0, 1, 2], 1, 2), ([0, 1, 2], 2, 2)]


def test_what_leaves_s_is_projected():
    run = Run(FedMM, data_of([np.ones((2, 1))]), "remark_one", step_rule="constant", step=1.0)
    run.state = replace(run.state, variate=torch.tensor([-50.0], dtype=torch.float64))
    assert float(run.go().s) == pytest.approx(1e-12)


class Neighbours:
    """A channel in which clients mix with a given matrix."""

    shared_is_rows = True

    def __init__(self, w):
        self.w = torch.from_numpy(w)

    def broadcast(self, rows):
        return rows

    def average(self, rows, weights, before):
        return self.w @ rows


@pytest.mark.parametrize("kind", [FedMM, FedMMTheta])
def test_by_gossip_clients_move_by_gamma_and_then_mix(kind):
    parts = shards()
    run = Run(kind, data_of(parts, targets=1), RIDGE, step_rule="constant", step=GAMMA)
    w = np.array([[0.5, 0.5, 0.0], [0.5, 0.25, 0.25], [0.0, 0.25, 0.75]])
    s = np.random.default_rng(1).normal(size=(3, 4))
    rows = torch.from_numpy(s)
    state = replace(run.state, surrogate=rows, previous=rows)
    shrunk = 1 / (1 + 0.5 * RHO)
    found = []
    for z, own in zip(parts, s, strict=True):
        theta = own if kind is FedMMTheta else shrunk * own
        x, y = z[:, :-1], z[:, -1]
        statistic = theta - RHO * x.T @ (x @ theta - y) / len(z)
        target = shrunk * statistic if kind is FedMMTheta else statistic
        found.append(own + GAMMA * (target - own))
    after = run.method.round(state, run.everyone, Neighbours(w), Draws(0, 1))
    assert after.surrogate.numpy() == pytest.approx(w @ np.array(found), abs=1e-13)
    assert np.array_equal(after.previous.numpy(), s)


def factorised(parts, **options):
    everyone, data = data_of(parts)
    solver = LocalSolver(none(data), LocalOptions(), 1, 1, torch.device("cpu"))
    method = FedMGS(none(data), solver, n_atoms=2, **options)
    server = Server(everyone.federation, 0)
    state = method.init(everyone, server, Draws(0, 0), torch.float64)
    after = method.round(state, everyone, server.at(1, np.ones(len(parts), bool)), Draws(0, 1))
    return state, after, method.measure(after, everyone, server, Draws(0, 1))["objective"]


@pytest.mark.parametrize("codes", ["ridge", "nonnegative", "one_hot"])
def test_a_factorisation_takes_gradient_steps_of_one_over_l(codes):
    parts = shards(q=3)
    options = {"code_penalty": 0.3, "atom_penalty": 0.2, "one_hot_penalty": 0.7}
    state, after, _ = factorised(parts, codes=codes, code_steps=1, atom_steps=1, **options)
    atoms, crossing = state.atoms.numpy(), 0.7 * (codes == "one_hot")
    gram = atoms.T @ atoms + 0.3 * np.eye(2) + crossing * (np.ones((2, 2)) - np.eye(2))
    a, b = np.zeros((2, 2)), np.zeros((4, 2))
    for i, x in enumerate(parts):
        h = state.codes[i].numpy()
        h = h - (gram @ h - atoms.T @ x.T) / np.linalg.norm(gram, 2)
        h = h if codes == "ridge" else np.maximum(h, 0)
        assert after.codes[i].numpy() == pytest.approx(h, abs=1e-12)
        a, b = a + h @ h.T / len(x) / 3, b + x.T @ h.T / len(x) / 3
    a = a + 2 * 0.2 * np.eye(2)
    expected = atoms - (atoms @ a - b) / np.linalg.norm(a, 2)
    assert after.atoms.numpy() == pytest.approx(expected, abs=1e-12)


def test_weighted_by_samples_a_factorisation_is_that_of_the_pooled_data():
    parts = [part[:m] for part, m in zip(shards(q=3, size=9), (2, 9, 5), strict=True)]
    options = {"code_penalty": 0.3, "atom_penalty": 0.2, "atom_steps": 1}
    state, after, objective = factorised(parts, client_weights="samples", **options)
    x = np.concatenate(parts).T
    h = np.hstack([codes[:, : len(z)] for codes, z in zip(after.codes.numpy(), parts, strict=True)])
    atoms, found = state.atoms.numpy(), after.atoms.numpy()
    a, b = h @ h.T / 16 + 0.4 * np.eye(2), x @ h.T / 16
    step = (atoms @ a - b) / np.linalg.norm(a, 2)
    assert found == pytest.approx(atoms - step, abs=1e-12)
    risk = (np.square(x - found @ h).sum() + 0.3 * np.square(h).sum()) / 32
    assert objective == pytest.approx(risk + 0.2 * np.square(found).sum(), rel=1e-12)
