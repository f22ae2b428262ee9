"""Outer momentum on what local steps add: DiLoCo, also in fragments, GASLoC and NoLoCo.

Programs in float64 numpy play them as their papers write them.
"""

from __future__ import annotations

import numpy as np
import pytest
from convex import Descent, Run, gossip, problem_of, quadratics
from numpy_mlp import BODY, HEAD, descended, present, regressions
from personal_runs import COUNTS, gradient, mean, regression
from quadratics import CENTRES, MATRICES, D, N, gradients

from mpifed.errors import InputError

ETA, RATE, BETA = 0.05, 0.7, 0.9
DILOCO = {"server_optimizer": {"name": "nesterov", "lr": RATE, "beta": BETA}}
QUADRATICS = quadratics(MATRICES, CENTRES)


def descent(exchange, eta=ETA, x=None):
    return Descent(QUADRATICS, exchange, eta, x)


def adamw(x, kept, of, lr, decay, steps, betas=(0.9, 0.999), epsilon=1e-8):
    """Loshchilov and Hutter 2019, Algorithm 2; ``kept`` has m, v and t, and changes."""
    for _ in range(steps):
        g = of(x)
        kept["t"] += 1
        kept["m"] = betas[0] * kept["m"] + (1 - betas[0]) * g
        kept["v"] = betas[1] * kept["v"] + (1 - betas[1]) * g**2
        m, v = (kept[k] / (1 - b ** kept["t"]) for k, b in zip("mv", betas, strict=True))
        x = x - lr * (m / (np.sqrt(v) + epsilon) + decay * x)
    return x


def test_diloco_is_fedavg_with_adamw_inside_and_nesterov_outside():
    """Douillard et al. 2023, Algorithm 1; each worker keeps the state of its AdamW."""
    data, samples = regression()
    local = {"optimizer": "adamw", "lr": 0.02, "weight_decay": 0.1, "batch_size": 64, "epochs": 3}
    run = Run("fedavg", data, local=local, keys=DILOCO)
    theta, outer = run.x.copy(), 0
    inner = [{"m": 0, "v": 0, "t": 0} for _ in COUNTS]
    for _ in range(6):
        here = run.participants
        if len(here):
            moved = {
                i: adamw(theta, inner[i], lambda x, i=i: gradient(samples[i], x), 0.02, 0.1, 3)
                for i in here
            }
            delta = mean({i: theta - moved[i] for i in here}, here, True)  # line 12
            outer = BETA * outer + delta
            theta = theta - RATE * (delta + BETA * outer)  # line 14
        assert run.go().x == pytest.approx(theta, rel=1e-9)


def test_streaming_diloco_with_one_fragment_is_diloco():
    data, _ = regressions(participation=1.0)
    local = {"optimizer": "adamw", "lr": 0.02, "batch_size": 3}
    diloco = Run("fedavg", data, local=local, keys=DILOCO).go(12)
    found = Run("streaming_diloco", data, local=local, fragments=1).go(12)
    assert found.x == pytest.approx(diloco.x, rel=1e-12)
    assert found.exchange.ledger == diloco.exchange.ledger


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_streaming_diloco_synchronises_layers_in_turns(share):
    data, samples = regressions(participation=1.0)
    run = Run("streaming_diloco", data, local={"lr": 0.3, "batch_size": 64}, own_share=share)
    weights, theta = present(run)[1], run.x.copy()
    own, m = np.tile(theta, (len(samples), 1)), np.zeros_like(theta)
    for t in range(6):
        part = (BODY, HEAD)[t % 2]
        own = np.stack([descended(w, *s, 0.3, 1) for w, s in zip(own, samples, strict=True)])
        delta = weights @ own[:, part] - theta[part]
        m[part] = BETA * m[part] + delta
        theta[part] += RATE * (delta + BETA * m[part])
        own[:, part] = share * own[:, part] + (1 - share) * theta[part]
        run.go()
        assert run.x == pytest.approx(theta, abs=1e-12)
        assert run.state.own[:, 0].numpy() == pytest.approx(own, abs=1e-12)
    assert run.exchange.ledger.up_floats == 3 * len(samples) * len(theta)


def gasloc(w, own):
    x, last = np.zeros((N, D)), np.zeros((N, D))
    while True:
        y = x - RATE * ETA * gradients(x)
        now = y if own else w(1) @ y
        x, last = w(1) @ y + BETA * (now - last), now
        yield x


def noloco(w, pull):
    phi = delta = np.zeros((N, D))
    k = 0
    while True:
        k += 1
        theta = phi - ETA * gradients(phi)
        groups = [np.flatnonzero(row) for row in w(k)]
        update, centre = (
            np.stack([each[group].mean(0) for group in groups]) for each in (theta - phi, phi)
        )
        delta = 0.5 * delta + RATE * update - pull * (phi - centre)
        phi = phi + delta
        yield phi


PAIRS = {"topology": "complete", "weights": None, "schedule": "random_matching"}


@pytest.mark.parametrize(
    ("options", "written", "graph"),
    [
        ({"name": "gasloc"}, lambda w: gasloc(w, False), {}),
        ({"name": "gasloc", "momentum_of": "own"}, lambda w: gasloc(w, True), {}),
        ({"name": "noloco"}, lambda w: noloco(w, RATE), PAIRS),
        ({"name": "noloco", "pull": 1.2}, lambda w: noloco(w, 1.2), PAIRS),
    ],
)
def test_it_is_the_recursion_of_its_paper(options, written, graph):
    run = descent(gossip(options, **graph))
    paper = written(run.mixing_matrix)
    for _ in range(25):
        np.testing.assert_allclose(run.rows(1), next(paper), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(("correction", "beta"), [("gasloc", BETA), ("noloco", 0.5)])
def test_on_the_complete_graph_it_is_a_server_with_momentum(correction, beta):
    """GASLoC is DiLoCo; NoLoCo is FedAvg with momentum at the server."""
    found = descent(gossip(correction, "complete", "uniform")).rows(20)
    x, m = np.zeros(D), 0
    for _ in range(20):
        delta = -ETA * gradients(np.tile(x, (N, 1))).mean(0)
        m = beta * m + delta
        x = x + RATE * (delta + beta * m if correction == "gasloc" else m)
    np.testing.assert_allclose(found, np.tile(x, (N, 1)), rtol=1e-11)


def test_gasloc_on_the_complete_graph_is_a_run_of_diloco():
    draw = np.random.default_rng(4)
    data = problem_of(draw.normal(size=(N, 12, D)), draw.normal(size=(N, 12)))
    local = {"optimizer": "adamw", "lr": 0.01, "batch_size": 5, "epochs": 2}
    diloco = Run("fedavg", data, local=local, keys=DILOCO).go(10).x
    exchange = gossip("gasloc", "complete", "uniform")
    found = Run("fedavg", data, local=local, exchange=exchange).go(10).state.model
    np.testing.assert_allclose(found[:, 0], np.tile(diloco, (N, 1)), rtol=1e-9)


def test_momentum_speeds_up_gossip_as_its_characteristic_roots_say():
    """For each eigenvalue l, the roots of r^2 - l (1 + gamma) r + l gamma."""
    start = np.random.default_rng(0).normal(size=(N, D))
    gaps = []
    for beta in (0.0, 0.4):
        run = descent(gossip({"name": "gasloc", "outer_momentum": beta}), 1e-300, start)
        values = np.linalg.eigvalsh(run.mixing_matrix())[:-1]
        rate = max(abs(np.roots([1, -e * (1 + beta), e * beta])).max() for e in values)
        errors = [np.abs(run.rows(1) - start.mean(0)).max() for _ in range(60)]
        assert (errors[59] / errors[39]) ** (1 / 20) == pytest.approx(rate, rel=0.02)
        gaps.append(1 - rate)
    assert gaps[1] > 1.5 * gaps[0]


def test_eigenvalues_with_which_the_momentum_diverges_are_refused():
    with pytest.raises(InputError, match=r"'gasloc'.* -0\.5.* -0\.357143"):
        descent(gossip("gasloc", "hypercube", "uniform"))
    descent(gossip({"name": "gasloc", "outer_momentum": 0.4}, "hypercube", "uniform"))
    descent(gossip({"name": "gasloc", "momentum_of": "own"}, "hypercube", "uniform"))


@pytest.mark.parametrize(("beta", "converges"), [(0.5, True), (0.9, False)])
def test_random_pairs_on_a_ring_bear_less_momentum(beta, converges):
    start = np.random.default_rng(0).normal(size=(N, D))
    correction = {"name": "gasloc", "outer_momentum": beta}
    exchange = gossip(correction, weights=None, schedule="random_matching")
    error = np.abs(descent(exchange, 1e-300, start).rows(150) - start.mean(0)).max()
    assert error < 1e-6 if converges else error > 100
