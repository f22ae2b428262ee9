"""K-GT, Scaffnew and D-ADMM on quadratics, full batches, against their papers' recursions."""

from __future__ import annotations

import numpy as np
import pytest
from convex import gossip, quadratics
from quadratics import CENTRES, MATRICES, OPTIMUM, D, N, gradients

from mpifed.method import Draws
from mpifed.testing import Rounds

L = 4.0
SEED = 3


class Run(Rounds):
    """A method by gossip or at a server, from zero, with gradients of whole shards."""

    def __init__(self, name, exchange, lr=0.05, steps=3, matrices=MATRICES, **options):
        data = quadratics(matrices, CENTRES)
        local = {"lr": lr, "steps": steps, "batch_size": 64}
        keys = {"model": data.model, "exchange": exchange, "local": local, "seed": SEED}
        super().__init__({"name": name, **options}, data.samples, **keys)
        fields = {"model", "anchor"} & {*vars(self.state)}
        self.start_from(**{field: 0 * getattr(self.state, field) for field in fields})

    def go(self, rounds):
        return self.advance(rounds).state.model.numpy().reshape(-1, D)


def descent(correction, eta, steps=1):
    """Gradient descent of each client by FedAvg, whose sum of steps is corrected."""
    return Run("fedavg", gossip(correction), eta, steps)


def kgt_as_written(w, eta, steps, eta_s):
    x, c = np.zeros((N, D)), np.zeros((N, D))
    while True:
        y = x
        for _ in range(steps):
            y = y - eta * (gradients(y) + c)
        z = (x - y) / (steps * eta)
        c = c - z + w @ z
        x = w @ (x - eta_s * (x - y))
        yield x


def scaffnew_as_written(v, gamma, p, coins):
    x, h = np.zeros((N, D)), np.zeros((N, D))
    for steps in coins:
        for _ in range(steps):
            x = x - gamma * (gradients(x) - h)
        mixed = v @ x
        h = h + p / gamma * (mixed - x)
        x = mixed
        yield x


def d_admm_as_written(w, c):
    x = alpha = np.zeros((N, D))
    while True:
        pull = 2 * c * ((x + w @ x) / 2) - alpha + np.einsum("nij,nj->ni", MATRICES, CENTRES)
        x = np.linalg.solve(MATRICES + 2 * c * np.eye(D), pull[..., None])[..., 0]
        alpha = alpha + c * (x - w @ x)
        yield x


@pytest.mark.parametrize("eta_s", [1.0, 0.6])
def test_kgt_is_algorithm_1(eta_s):
    run = Run("kgt", gossip(), eta_s=eta_s)
    paper = kgt_as_written(run.mixing_matrix(), 0.05, 3, eta_s)
    for _ in range(12):
        np.testing.assert_allclose(run.go(1), next(paper), rtol=0, atol=1e-12)


def test_kgt_reaches_the_pooled_optimum_with_local_steps_where_tracking_their_sum_does_not():
    found = Run("kgt", gossip(), lr=0.03, steps=5).go(250)
    np.testing.assert_allclose(found, np.tile(OPTIMUM, (N, 1)), rtol=0, atol=1e-5)
    summed = descent("tracking", 0.03, 5).go(250)
    a, c = MATRICES, CENTRES[..., None]
    kept = np.linalg.matrix_power(np.eye(D) - 0.03 * a, 5)  # what five steps keep of x - c
    drifted = np.linalg.solve((np.eye(D) - kept).sum(0), ((np.eye(D) - kept) @ c).sum(0))[:, 0]
    np.testing.assert_allclose(summed, np.tile(drifted, (N, 1)), rtol=0, atol=1e-5)
    assert np.abs(drifted - OPTIMUM).max() > 1e-2


@pytest.mark.parametrize("server", [True, False])
def test_scaffnew_is_its_algorithm_coin_by_coin(server):
    p = 0.4
    run = Run("scaffnew", "server" if server else gossip(), lr=0.1, scaffnew_p=p)
    v = np.full((N, N), 1 / N) if server else (np.eye(N) + run.mixing_matrix()) / 2
    coins = [int(Draws(SEED, k).stream("coin").geometric(p)) for k in range(1, 15)]
    assert len(set(coins)) > 2
    for expected in scaffnew_as_written(v, 0.1, p, coins):
        x = expected[:1] if server else expected
        np.testing.assert_allclose(run.go(1), x, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("server", "rounds"), [(True, 80), (False, 250)])
def test_scaffnew_reaches_the_pooled_optimum(server, rounds):
    run = Run("scaffnew", "server" if server else gossip(), lr=1 / L, scaffnew_p=0.4)
    np.testing.assert_allclose(run.go(rounds) - OPTIMUM, 0, atol=1e-5)


def test_scaffnew_that_always_communicates_is_exact_diffusion():
    run = Run("scaffnew", gossip(), lr=0.1, scaffnew_p=1.0)
    other = descent("exact_diffusion", 0.1)
    np.testing.assert_allclose(run.go(20), other.go(20), rtol=0, atol=1e-12)


def test_d_admm_with_many_local_steps_is_admm():
    run = Run("d_admm", gossip(), lr=0.15, steps=150, admm_c=1.0)
    paper = d_admm_as_written(run.mixing_matrix(), 1.0)
    for _ in range(6):
        np.testing.assert_allclose(run.go(1), next(paper), rtol=0, atol=1e-12)


@pytest.mark.parametrize("steps", [1, 4])
def test_d_admm_reaches_the_pooled_optimum_however_few_its_local_steps(steps):
    found = Run("d_admm", gossip(), lr=0.15, steps=steps, admm_c=1.0).go(250)
    np.testing.assert_allclose(found, np.tile(OPTIMUM, (N, 1)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("share", [0.97, 1.03])
@pytest.mark.parametrize(
    ("weights", "steps"), [("fmmc", 1), ("metropolis_hastings", 1), ("fmmc", 2)]
)
def test_d_admm_bears_steps_up_to_its_bound(weights, steps, share):
    """That of one step, and that of the local descent of an even number of them."""
    exchange, c = gossip(weights=weights), 2.0
    matrix = Run("fedavg", exchange).mixing_matrix()
    one = 4 / (2 * L + 3 * c * (1 - np.linalg.eigvalsh(matrix)[0]))
    many = 2 / (L + 2 * c)
    bound = one if steps == 1 else many
    matrices = np.tile(L * np.eye(D), (N, 1, 1))
    run = Run("d_admm", exchange, share * bound, steps, matrices, admm_c=c)
    first, last = (np.abs(run.go(60) - CENTRES.mean(0)).max() for _ in range(2))
    assert last < first / 2 if share < 1 else last > 2 * first
