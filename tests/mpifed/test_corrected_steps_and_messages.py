"""Corrections with compressed messages and within local steps, beside programs of the papers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from moves import LINEAR
from quadratics import MATRICES, OPTIMUM, D, Descent, N, gossip, gradients, matrix_of

from mpifed import state
from mpifed.method import Algorithm, Channel, Predictor
from mpifed.testing import run_rounds

ZEROS, EVERYWHERE = np.zeros((N, D)), np.tile(OPTIMUM, (N, 1))


TOP = {"name": "top_k", "k": 1}


def largest_alone(rows):
    """The top-1 compressor."""
    return np.where(np.abs(rows) == np.abs(rows).max(1, keepdims=True), rows, 0)


def motef(w, eta, rate, gamma, c):
    """Alg. 1, where g^0 = C(v^0) in place of zero."""
    x, h, m = ZEROS, ZEROS, gradients(ZEROS)
    v, g = m, c(m)
    while True:
        x = x + gamma * (w - np.eye(N)) @ h - eta * v
        yield x
        h, old, m = h + c(x - h), m, (1 - rate) * m + rate * gradients(x)
        v = v + gamma * (w - np.eye(N)) @ g + m - old
        g = g + c(v - g)


@pytest.mark.parametrize(("name", "rate"), [("beer", 1.0), ("motef", 0.3)])
@pytest.mark.parametrize("compressor", ["none", TOP])
def test_compressed_tracking_is_that_of_the_paper_and_reaches_the_optimum(name, rate, compressor):
    correction = {"name": name, **({"momentum_rate": rate} if name == "motef" else {})}
    eta, gamma = 0.03, 0.3
    exchange = gossip(correction, consensus_step=gamma)
    lossy = compressor == TOP
    paper = motef(matrix_of(exchange), eta, rate, gamma, largest_alone if lossy else np.copy)
    run = Descent(exchange, eta, compression=compressor)
    for _ in range(25):
        np.testing.assert_allclose(run.go(1), next(paper), rtol=0, atol=1e-11)
    bits = 2 * (64 + 32) if lossy else 2 * 3 * 64
    sent = run.run.metrics
    assert sent["up_bits"] == sent["down_bits"] == 25 * 2 * N * bits
    np.testing.assert_allclose(run.go(1500), EVERYWHERE, rtol=0, atol=1e-9)


def test_the_step_of_replicas_is_the_proven_one_or_that_of_plain_messages():
    """Of plain messages one; of others that at which the bound on errors contracts the most."""
    w, delta = matrix_of(gossip("beer")), 1 / D
    values = np.sort(np.abs(np.linalg.eigvalsh(w)))
    gap, spread = 1 - values[-2], np.abs(1 - np.linalg.eigvalsh(w)).max()
    s = np.sqrt(1 - delta)

    def radius(step):
        bound = [[1 - step * gap, step * spread], [s * step * spread, s * (1 + step * spread)]]
        return np.abs(np.linalg.eigvals(np.array(bound))).max()

    steps = np.linspace(1e-4, 1, 20_000)
    best = steps[np.argmin([radius(step) for step in steps])]
    for compressor, step in (("none", 1.0), (TOP, best)):
        lossy = compressor == TOP
        paper = motef(w, 0.03, 1.0, step, largest_alone if lossy else np.copy)
        run = Descent(gossip("beer"), 0.03, compression=compressor)
        expected = [next(paper) for _ in range(10)][-1]
        np.testing.assert_allclose(run.go(10), expected, rtol=0, atol=1e-3 if lossy else 1e-12)


@dataclass(frozen=True)
class State:
    """The vectors of the clients."""

    x: torch.Tensor = state.shared()


class Steps(Algorithm[Channel]):
    """``steps`` gradient steps in a round, each with its share of the duals."""

    takes_duals = True
    averages_models = "one"
    eta, steps = 0.05, 1

    def __init__(self, model, local) -> None:
        self.model, self.at = model, (Steps.eta, Steps.steps)

    def init(self, clients, exchange, draws, dtype):
        return State(exchange.spread(torch.zeros(1, D, dtype=dtype)))

    def round(self, state, clients, channel, draws):
        eta, steps = self.at
        phi, share = state.x[:, 0], channel.duals(state.x)[:, 0] / steps
        for _ in range(steps):
            phi = phi - eta * torch.from_numpy(gradients(phi.numpy())) - share
        alike = torch.ones(len(clients), dtype=torch.float64)
        return State(channel.average(phi[:, None], alike, before=state.x))

    def deploy(self, state, clients, draws):
        return Predictor(state.x)


class Local:
    """Rounds of ``Steps``."""

    def __init__(self, exchange, eta, steps=1):
        Steps.eta, Steps.steps = eta, steps
        data = [(np.ones((1, D)), np.zeros(1, int))] * N
        self.run = run_rounds(Steps, data, exchange=exchange, model=LINEAR, rounds=0)

    def go(self, rounds):
        return self.run.advance(rounds).state.x[:, 0].numpy()


def led(w, eta, tau):
    half, x, q = (np.eye(N) + w) / 2, ZEROS, ZEROS
    while True:
        phi = x
        for _ in range(tau):
            phi = phi - eta * gradients(phi) - q / tau
        x = half @ phi
        q = q + phi - x
        yield x


def lt_admm(w, eta, tau, p=0.8):
    """The paper's, with z[i, j] of every edge and penalties rho W[i, j]; beta = 0.1."""
    edges, beta = (w > 0) & ~np.eye(N, dtype=bool), 0.1
    rho = np.where(edges, p / (beta * tau) * w, 0)[..., None]
    x, z = ZEROS, np.zeros((N, N, D))
    while True:
        pull, phi = (rho * x[:, None] - z).sum(1), x
        for _ in range(tau):
            phi = phi - eta * gradients(phi) - beta * pull
        x = phi
        z = (z - z.transpose(1, 0, 2) + 2 * rho * x[None]) / 2
        yield x


@pytest.mark.parametrize(
    ("correction", "written", "one_step"),
    [
        ("led", led, "exact_diffusion"),
        ({"name": "lt_admm", "penalty": 0.8}, lt_admm, "extra"),
    ],
)
def test_local_steps_with_duals_end_at_the_optimum_where_sums_of_steps_do_not(
    correction, written, one_step
):
    exchange, eta, tau = gossip(correction), 0.05, 4
    run, paper = Local(exchange, eta, tau), written(matrix_of(exchange), eta, tau)
    for _ in range(25):
        np.testing.assert_allclose(run.go(1), next(paper), rtol=0, atol=1e-11)
    np.testing.assert_allclose(run.go(300), EVERYWHERE, rtol=0, atol=1e-10)
    whole = np.stack([np.linalg.inv(a) for a in MATRICES])
    shrunk = np.stack([np.linalg.matrix_power(np.eye(D) - eta * a, tau) for a in MATRICES])

    def of_all_steps(x):
        return np.einsum("nij,njk,nk->ni", np.eye(D) - shrunk, whole, gradients(x))

    drifted = Descent(gossip(one_step), 1.0, of_all_steps).go(300)
    assert np.abs(drifted - EVERYWHERE).max() > 0.01
    if one_step == "extra":
        exchange = gossip({"name": "lt_admm", "penalty": 1.0})
    np.testing.assert_allclose(
        Local(exchange, eta).go(30), Descent(gossip(one_step), eta).go(30), rtol=0, atol=1e-12
    )


DATA = {"name": "synthetic", "n_test": 20, "dimension": 6, "seed": 20}


@pytest.mark.parametrize("name", ["led", "lt_admm"])
@pytest.mark.parametrize("method", ["fedavg", "fedem", "ditto"])
def test_methods_take_duals_in_every_step(name, method):
    """With one full step a round, each is the correction that sees sums of steps."""
    graph = {"name": "gossip", "topology": "ring", "weights": "metropolis_hastings"}
    one = {"dtype": "float64", "local": {"steps": 1, "batch_size": 4096, "lr": 0.1}}
    ends, kind = [], "component" if method == "fedem" else "model"
    for correction in (name, {"led": "exact_diffusion", "lt_admm": "extra"}[name]):
        options = {"method": {"name": method, f"{kind}_init": "shared"}, **one}
        exchange = {**graph, "correction": correction}
        run = run_rounds(data=DATA, clients=4, rounds=5, exchange=exchange, **options)
        ends.append(run.state.model if method == "fedavg" else run.state.components)
    torch.testing.assert_close(*ends, rtol=0, atol=1e-12)
