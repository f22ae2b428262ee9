"""Corrections with compressed messages and within local steps, beside programs of the papers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gossip_exchange import Descent, exchange_of, matrix_of
from quadratics import MATRICES, OPTIMUM, D, N, gradients
from test_algorithms import prepared

from mpifed.exchange.choco import constants, optimal_step
from mpifed.exchange.compression import build
from mpifed.exchange.correction import growth
from mpifed.training import exchanging

ZEROS, EVERYWHERE = np.zeros((N, D)), np.tile(OPTIMUM, (N, 1))


TOP = build({"name": "top_k", "k": 1})


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
@pytest.mark.parametrize("compressor", [None, TOP])
def test_compressed_tracking_is_that_of_the_paper_and_reaches_the_optimum(name, rate, compressor):
    correction = {"name": name, **({"momentum_rate": rate} if name == "motef" else {})}
    eta, gamma = 0.03, 0.3
    exchange = exchange_of(correction, compressor=compressor, step=gamma)
    paper = motef(matrix_of(exchange), eta, rate, gamma, largest_alone if compressor else np.copy)
    run = Descent(exchange, eta)
    for _ in range(25):
        np.testing.assert_allclose(run.go(1), next(paper), rtol=0, atol=1e-11)
    bits = 2 * (64 + 32) if compressor else 2 * 3 * 64
    assert exchange.ledger.up_bits == exchange.ledger.down_bits == 25 * 2 * N * bits
    np.testing.assert_allclose(run.go(1500), EVERYWHERE, rtol=0, atol=1e-9)


def test_the_step_of_replicas_is_the_proven_one_or_that_of_whole_messages():
    cautious = exchange_of("beer", compressor=TOP)
    gap, spread = constants(matrix_of(cautious))
    assert cautious.choco_step(D) == optimal_step(gap, spread, 1 / D)
    assert "the best proven" in exchanging.remarks(cautious, D, 100)[0]
    assert exchange_of("beer").choco_step(D) == 1


class Local(Descent):
    """``steps`` gradient steps in a round, each with its share of the duals."""

    def go(self, rounds, steps=1):
        for _ in range(rounds):
            self.round += 1
            channel = self.exchange.at(self.round, np.ones(N, bool), self.memory)
            phi, share = self.x, channel.duals(self.x) / steps
            for _ in range(steps):
                phi = phi - self.eta * torch.from_numpy(gradients(phi.numpy())) - share
            weights = torch.ones(N, dtype=torch.float64)
            self.x, self.memory = channel.average(phi, weights, before=self.x), channel.memory
        return self.x.numpy()


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
    exchange, eta, tau = exchange_of(correction), 0.05, 4
    run, paper = Local(exchange, eta), written(matrix_of(exchange), eta, tau)
    for _ in range(25):
        np.testing.assert_allclose(run.go(1, tau), next(paper), rtol=0, atol=1e-11)
    np.testing.assert_allclose(run.go(300, tau), EVERYWHERE, rtol=0, atol=1e-10)
    whole = np.stack([np.linalg.inv(a) for a in MATRICES])
    shrunk = np.stack([np.linalg.matrix_power(np.eye(D) - eta * a, tau) for a in MATRICES])

    def of_all_steps(x):
        return np.einsum("nij,njk,nk->ni", np.eye(D) - shrunk, whole, gradients(x))

    drifted = Descent(exchange_of(one_step), 1.0, of_all_steps).go(300)
    assert np.abs(drifted - EVERYWHERE).max() > 0.01
    if one_step == "extra":
        exchange = exchange_of({"name": "lt_admm", "penalty": 1.0})
    np.testing.assert_allclose(
        Local(exchange, eta).go(30), Descent(exchange_of(one_step), eta).go(30), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("name", ["led", "lt_admm"])
@pytest.mark.parametrize("method", ["fedavg", "fedem"])
def test_methods_take_duals_in_every_step(name, method):
    """With one full step a round, each is the correction that sees sums of steps."""
    graph = {"name": "gossip", "topology": "ring", "weights": "metropolis_hastings"}
    one = {"dtype": "float64", "local": {"steps": 1, "batch_size": 4096, "lr": 0.1}}
    ends, kind = [], "component" if method == "fedem" else "model"
    for correction in (name, {"led": "exact_diffusion", "lt_admm": "extra"}[name]):
        options = {"algorithm": {"name": method, f"{kind}_init": "shared"}, **one}
        engine = prepared(method, {**graph, "correction": correction}, **options)
        for _ in range(5):
            engine.advance()
        ends.append(next(iter(vars(engine.state.algorithm).values())))
    torch.testing.assert_close(*ends, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["led", "lt_admm"])
def test_what_moves_within_steps_is_played_within_them(name):
    exchange = exchange_of(name)
    assert growth(exchange.correction, exchange.schedule) < 1e-4
