"""Corrections with compressed messages and within local steps, beside programs of the papers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from convex import Descent, gossip, quadratics
from quadratics import CENTRES, MATRICES, OPTIMUM, D, N, gradients

from mpifed.testing import run_rounds

QUADRATICS = quadratics(MATRICES, CENTRES)
ZEROS, EVERYWHERE = np.zeros((N, D)), np.tile(OPTIMUM, (N, 1))


TOP = ("top_k", {"k": 1})


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
    exchange = gossip(correction, consensus_step=gamma)
    run = Descent(QUADRATICS, exchange, eta, compression=compressor)
    paper = motef(run.mixing_matrix(), eta, rate, gamma, largest_alone if compressor else np.copy)
    for _ in range(25):
        np.testing.assert_allclose(run.rows(1), next(paper), rtol=0, atol=1e-11)
    bits = 2 * (64 + 32) if compressor else 2 * 3 * 64
    ledger = run.exchange.ledger
    assert ledger.up_bits == ledger.down_bits == 25 * 2 * N * bits
    np.testing.assert_allclose(run.rows(575), EVERYWHERE, rtol=0, atol=2e-5)


def test_the_step_of_replicas_is_that_of_whole_messages_where_they_are_whole():
    plain = Descent(QUADRATICS, gossip("beer"), 0.03)
    ones = Descent(QUADRATICS, gossip("beer", consensus_step=1.0), 0.03)
    assert np.array_equal(plain.rows(5), ones.rows(5))
    cautious = Descent(QUADRATICS, gossip("beer"), 0.03, compression=TOP)
    assert 0 < cautious.exchange.choco_step(D) < 0.3
    by_hand = gossip("beer", consensus_step=cautious.exchange.choco_step(D))
    same = Descent(QUADRATICS, by_hand, 0.03, compression=TOP)
    assert np.array_equal(cautious.rows(5), same.rows(5))


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
    eta, tau = 0.05, 4
    run = Descent(QUADRATICS, gossip(correction), eta, steps=tau)
    paper = written(run.mixing_matrix(), eta, tau)
    for _ in range(25):
        np.testing.assert_allclose(run.rows(1), next(paper), rtol=0, atol=1e-11)
    np.testing.assert_allclose(run.rows(125), EVERYWHERE, rtol=0, atol=1e-6)
    drifted = Descent(QUADRATICS, gossip(one_step), eta, steps=tau).rows(100)
    assert np.abs(drifted - EVERYWHERE).max() > 0.01
    if one_step == "extra":
        correction = {"name": "lt_admm", "penalty": 1.0}
    one, other = (Descent(QUADRATICS, gossip(name), eta) for name in (correction, one_step))
    np.testing.assert_allclose(one.rows(30), other.rows(30), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["led", "lt_admm"])
@pytest.mark.parametrize("method", ["fedavg", "fedem"])
def test_methods_take_duals_in_every_step(name, method):
    """With one full step a round, each is the correction that sees sums of steps."""
    one = {"dtype": "float64", "local": {"steps": 1, "batch_size": 4096, "lr": 0.1}}
    ends, kind = [], "component" if method == "fedem" else "model"
    for correction in (name, {"led": "exact_diffusion", "lt_admm": "extra"}[name]):
        algorithm = {"name": method, f"{kind}_init": "shared"}
        rounds = run_rounds(algorithm, exchange=gossip(correction), clients=4, rounds=5, **one)
        ends.append(next(iter(vars(rounds.state).values())))
    torch.testing.assert_close(*ends, rtol=0, atol=1e-12)
