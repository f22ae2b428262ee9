"""FedEM beyond its rounds: surrogates, black-box solvers, unseen clients, restarts."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import torch
from commands import rows
from convex import clients_of
from engine_runs import prepared
from hypothesis import given
from hypothesis import strategies as st
from numpy_logistic import client_data, likelihood, numpy_posterior, random_start
from on_ranks import run, unlike_one_rank
from scipy.optimize import minimize

import mpifed
from mpifed.algorithms.fedem.expectation import entropies, fitted_mixture, log_likelihoods
from mpifed.algorithms.fedem.fedem import (
    OwnRisks,
    PartialSurrogate,
    WeightedRisks,
    local_improvement,
    minimise_surrogates,
)
from mpifed.errors import InputError
from mpifed.exchange.server import Server
from mpifed.federation.clients import Draws
from mpifed.local.adjustments import Proximal
from mpifed.local.options import LocalOptions
from mpifed.local.solver import LocalSolver
from mpifed.models.linear import linear
from mpifed.models.losses import CROSS_ENTROPY, HALF_SQUARED, SQUARED
from mpifed.results.recovery import recovery
from mpifed.testing import find_item, load_dataset
from mpifed.training import evaluation

CPU = torch.device("cpu")


def solver_of(description, clients, **options):
    loss = "half_squared" if description.task == "regression" else "auto"
    model = linear(description, bias=description.task != "regression", loss=loss)
    return LocalSolver(model, LocalOptions(**options), 10, int(clients.n_train.max()), CPU)


def random_weights(clients, components, seed=3):
    drawn = np.random.default_rng(seed).dirichlet(np.ones(components), len(clients.shards.train.y))
    return torch.from_numpy(drawn.T.copy())


def test_pfedme_is_federated_surrogate_optimisation(make_clients):
    """App. F.3: with R = 1 a round is a step on the Moreau envelope's surrogate at (w, theta)."""
    clients, description = make_clients([12, 12, 12], shape=(3,))
    eta, strength = 0.05, 2.0
    local = solver_of(description, clients, lr=0.1, batch_size=16)
    options = {"pfedme_lambda": strength, "pfedme_eta": eta, "inner_steps": 20}
    method, server = (
        find_item("algorithm", "pfedme")(local.model, local, **options),
        Server(clients.federation, 0),
    )
    on_surrogate = solver_of(description, clients, lr=eta, batch_size=16)
    of_w = on_surrogate.init(3, 1, torch.float64)
    state = method.init(clients, server, Draws(0, 0), torch.float64)
    for k in range(1, 4):
        w = state.model
        state = method.round(state, clients, server.at(k, np.ones(3, bool)), Draws(0, k))
        # Samples weigh nothing: theta has their part of the envelope.
        weights = torch.zeros(1, 36, dtype=torch.float64)
        pull, draws = [Proximal(state.personal, strength)], Draws(0, k)

        def step(start, surrogate, of_w=of_w, draws=draws, pull=pull):
            weighted = {"weights": surrogate.weights, "adjustments": pull}
            return on_surrogate(start, of_w, clients, draws, **weighted)[0]

        channel = server.at(k, np.ones(3, bool))
        arguments = w, of_w, PartialSurrogate(weights), on_surrogate, clients, channel, draws, step
        found, of_w = minimise_surrogates(*arguments)
        assert torch.allclose(found, state.model, rtol=1e-12, atol=1e-14)
        assert not torch.allclose(found, w, rtol=0, atol=1e-3)


def test_newton_finds_the_minimiser_of_a_weighted_logistic_risk(make_clients):
    clients, description = make_clients([25, 7], shape=(3,))
    model, q = linear(description), random_weights(clients, 2)
    risks = WeightedRisks(model, clients, q, 0.05)
    found = risks.minimisers(torch.zeros(2, 2, 4, dtype=torch.float64))
    at = [0, 25, 32]
    for t, (x, y) in enumerate(client_data(clients)):
        for m in range(2):
            own = q[m, at[t] : at[t + 1]].numpy()

            def risk(theta, x=x, y=y, own=own):
                z = x @ theta[:-1] + theta[-1]
                return (own * (np.logaddexp(0, z) - y * z)).mean() + 0.025 * theta @ theta

            best = minimize(risk, np.zeros(4), method="BFGS", options={"gtol": 1e-9})
            assert np.allclose(found[t, m], best.x, rtol=0, atol=1e-6)
            assert float(risks.losses(found)[t, m]) == pytest.approx(best.fun, abs=1e-12)


@pytest.mark.parametrize("count", [9, 2])
def test_weighted_least_squares_has_its_closed_form(count):
    """With fewer samples than inputs: the solution closest to the start."""
    draw = np.random.default_rng(1)
    x, y, start = draw.normal(size=(count, 3)), draw.normal(size=count), draw.normal(size=3)
    clients, description = clients_of([x], [y], "regression")
    q = random_weights(clients, 2)
    local = solver_of(description, clients)
    risks = WeightedRisks(local.model, clients, q, 0.0)
    begun = torch.from_numpy(np.stack([start, start])[None])
    found = risks.minimisers(begun)
    for m in range(2):
        root = np.sqrt(q[m].numpy())
        move = np.linalg.lstsq(x * root[:, None], root * (y - x @ start), rcond=None)[0]
        assert np.allclose(found[0, m], start + move, rtol=0, atol=1e-9)


def test_the_improvement_of_gradient_steps_on_quadratics():
    """(1 - eta a)^(2 E) for f = a (x - c)^2 / 2; the largest of a = 1, 3 is that of a = 1."""
    clients, description = clients_of([[[1.0]], [[3**0.5]]], [[0.0], [4 * 3**0.5]])
    local = solver_of(description, clients, lr=0.1, epochs=4)
    start = torch.full((2, 1, 1), 10.0, dtype=torch.float64)
    ones = torch.ones(1, 2, dtype=torch.float64)
    found, _ = local(start, local.init(2, 1, torch.float64), clients, Draws(0, 1), weights=ones)
    risks = WeightedRisks(local.model, clients, ones, 0.0)
    assert local_improvement(risks, start, found, clients) == pytest.approx(0.9**8, rel=1e-9)
    best = risks.minimisers(start)
    assert local_improvement(risks, start, best, clients) == 0
    assert local_improvement(risks, best, best, clients) == 0
    assert local_improvement(risks, start, start, clients) == 1


def test_one_client_with_exact_m_steps_is_centralised_em(make_clients):
    """Algorithm 6: the penalised likelihood never falls, as in an independent EM."""
    clients, description = make_clients([60], shape=(3,))
    local = solver_of(description, clients, weight_decay=0.02)
    options = {"n_components": 2, "local_solver": "newton", "mixture_init": "uniform"}
    method, server = (
        find_item("algorithm", "fedem")(local.model, local, **options),
        Server(clients.federation, 0),
    )
    state = method.init(clients, server, Draws(0, 0), torch.float64)
    theta, pi = state.components.numpy(), state.mixture.numpy()
    ((x, y),) = client_data(clients)
    values = []
    for k in range(1, 8):
        channel = server.at(k, np.ones(1, bool))
        state = method.round(state, clients, channel, Draws(0, k))
        q = numpy_posterior(theta, pi[0], x, y)
        pi = q.mean(0)[None]

        def risk(t, weights):
            z = x @ t[:-1] + t[-1]
            return (weights * (np.logaddexp(0, z) - y * z)).mean() + 0.01 * t @ t

        found = [
            minimize(risk, t, (w,), "BFGS", options={"gtol": 1e-10})
            for t, w in zip(theta, q.T, strict=True)
        ]
        theta = np.stack([each.x for each in found])
        assert np.allclose(state.components, theta, rtol=0, atol=1e-5)
        assert np.allclose(state.mixture, pi, rtol=0, atol=1e-6)
        values.append(likelihood(theta, pi, [(x, y)]) / 60 - 0.01 * (theta**2).sum())
        assert float(method.log_likelihoods(state, clients)[0]) == pytest.approx(
            likelihood(state.components.numpy(), state.mixture.numpy(), [(x, y)]), rel=1e-9
        )
    assert (np.diff(values) > -1e-9).all() and values[-1] > values[0]


def test_unseen_clients_reach_the_maximum_of_their_likelihood(make_clients):
    clients, description = make_clients([30, 4, 0, 12])
    theta, _ = random_start(4, 3, 6, seed=8)
    theta *= 3
    model = linear(description)
    found = fitted_mixture(model, torch.from_numpy(theta), clients).numpy()
    assert found[2] == pytest.approx([1 / 3] * 3)  # nothing is known of it
    for t, data in enumerate(client_data(clients)):
        if not len(data[1]):
            continue
        own = likelihood(theta, found[t : t + 1], [data])
        constraint = {"type": "eq", "fun": lambda p: p.sum() - 1}
        best = minimize(
            lambda p, data=data: -likelihood(theta, np.maximum(p, 1e-15)[None], [data]),
            np.full(3, 1 / 3),
            bounds=[(0, 1)] * 3,
            constraints=constraint,
        )
        assert own == pytest.approx(-best.fun, abs=1e-4)
    once = fitted_mixture(model, torch.from_numpy(theta), clients, steps=1)
    likelihoods = log_likelihoods(model, torch.from_numpy(theta), torch.from_numpy(found), clients)
    assert (likelihoods >= log_likelihoods(model, torch.from_numpy(theta), once, clients)).all()


SMALL = {
    "clients": 6,
    "rounds": 2,
    "data.n_test": 20,
    "data.dimension": 8,
    "evaluation.every": 1,
    "local.weight_decay": 0.01,
}


def test_a_run_records_entropies_and_the_improvement(tmp_path):
    run("synthetic-fedem", {**SMALL, "algorithm.record_improvement": True}, tmp_path / "a")
    table = rows(tmp_path / "a")
    with h5py.File(tmp_path / "a" / "clients.h5") as file:
        mixture = torch.from_numpy(file["mixture"][:])
    assert float(table[-1]["mixture_entropy"]) == pytest.approx(float(entropies(mixture).mean()))
    assert all(0 < float(row["local_improvement"]) < 1 for row in table)
    exact = {"algorithm.local_solver": "newton", "algorithm.record_improvement": True}
    run("synthetic-fedem", {**SMALL, **exact}, tmp_path / "b")
    assert all(float(row["local_improvement"]) < 1e-6 for row in rows(tmp_path / "b"))


@pytest.mark.parametrize("exchange", ["server", "gossip"])
@pytest.mark.parametrize("mixture", ["uniform", "random"])
@pytest.mark.parametrize("components", ["equal", "drawn"])
def test_a_beginning_that_stays_as_it_is_is_warned_of(exchange, mixture, components):
    algorithm = {"name": "fedem", "mixture_init": mixture}
    local = {"batch_size": 10_000, "epochs": 1}
    engine = prepared("fedem", exchange, clients=6, algorithm=algorithm, local=local)
    if components == "equal":
        first = engine.state.algorithm.components
        first.copy_(first[..., :1, :].clone())
    lines = evaluation.remarks(engine.setup, engine.state, engine.shards)
    for _ in range(3):
        engine.advance()
    after = engine.state.algorithm.components
    stays = torch.allclose(after, after[..., :1, :].expand_as(after), rtol=0, atol=1e-6)
    assert stays == any("noise of minibatches" in line for line in lines)
    assert stays == (mixture == "uniform" and components == "equal")


RESTARTS = {**SMALL, "algorithm.restarts": 3, "algorithm.restart_rounds": 2}


def test_the_best_of_several_beginnings_is_kept(tmp_path, make_clients):
    """Round 0 is the best trial, at the price of 3 x 2 rounds."""
    run("synthetic-fedem", RESTARTS, tmp_path / "warm")
    run("synthetic-fedem", {**RESTARTS, "algorithm.warm_start": False}, tmp_path / "drawn")
    run("synthetic-fedem", SMALL, tmp_path / "plain")
    warm, drawn, plain = (rows(tmp_path / name) for name in ("warm", "drawn", "plain"))
    a_round = int(plain[-1]["up_bits"]) / 2
    assert int(warm[0]["up_bits"]) == int(drawn[0]["up_bits"]) == 6 * a_round
    assert int(warm[-1]["up_bits"]) == 8 * a_round
    assert float(warm[0]["train_loss"]) < float(drawn[0]["train_loss"])
    said = (tmp_path / "warm" / "log.txt").read_text()
    assert said.count("training log-likelihood") == 3
    trials = [
        float(line.split("log-likelihood ")[1].split()[0])
        for line in said.splitlines()
        if "beginning" in line
    ]
    samples = int(h5py.File(tmp_path / "warm" / "clients.h5")["n_train"][:].sum())
    assert max(trials) / samples == pytest.approx(-float(warm[0]["train_loss"]), rel=1e-4)


@pytest.mark.mpi
@pytest.mark.parametrize("exchange", ["server", "gossip"])
def test_beginnings_are_the_same_on_these_ranks_as_on_one(exchange, tmp_path):
    how = {
        "rounds": 4,
        "exchange": exchange,
        "algorithm.record_improvement": True,
        "evaluation.unseen_fraction": 0.2,
    }
    assert unlike_one_rank({**RESTARTS, **how, "algorithm.unseen_e_steps": None}, tmp_path) == []


@pytest.mark.parametrize("loss", [CROSS_ENTROPY, HALF_SQUARED, SQUARED], ids=lambda loss: loss.name)
def test_weighted_risks_are_sums_of_the_models_loss_with_their_own_derivatives(loss):
    draw = np.random.default_rng(0)
    a, shares, theta = (torch.from_numpy(draw.normal(size=s)) for s in ((7, 3), (2, 7), (2, 3)))
    y = torch.from_numpy(draw.integers(2, size=7)).double()
    risks = OwnRisks(a, y, shares.square(), loss, 0.3)
    z = theta @ a.T
    each = {"squared": (z - y) ** 2, "half_squared": (z - y) ** 2 / 2}.get(loss.name)
    each = torch.log1p(z.exp()) - y * z if each is None else each
    expected = (shares.square() * each).sum(1) + 0.15 * theta.square().sum(1)
    assert torch.allclose(risks.values(theta), expected)
    steps = 1e-5 * torch.eye(3, dtype=torch.float64)
    slopes = [(risks.values(theta + e) - risks.values(theta - e)) / 2e-5 for e in steps]
    gradient, curved = risks.derivatives(theta)
    assert torch.allclose(torch.stack(slopes, 1), gradient, atol=1e-8)
    ups, downs = (([risks.derivatives(theta + s * e)[0] for e in steps]) for s in (1, -1))
    curves = [(up - down) / 2e-5 for up, down in zip(ups, downs, strict=True)]
    assert torch.allclose(torch.stack(curves, 2), curved, atol=1e-7)


# Recovery of clusters: the comparison, the data, and a run that recovers them.


@given(st.integers(0, 10_000), st.permutations(range(4)))
def test_the_names_of_components_do_not_matter(seed, order):
    draw = np.random.default_rng(seed)
    theta, pi = draw.normal(size=(4, 6)), draw.dirichlet(np.ones(4), 9)
    noisy = theta + 0.01 * draw.normal(size=theta.shape)
    found = recovery(noisy[order], pi[:, order], theta, pi)
    same = recovery(noisy, pi, theta, pi)
    assert found.component_distance == pytest.approx(same.component_distance)
    assert found.assigned == 1 and abs(found.mixture_distance) < 1e-12
    assert [list(order).index(m) for m in range(4)] == found.order.tolist()


def synthetic(clients, seed, **options):
    return load_dataset({"name": "synthetic", **options}, clients, seed=seed)


def test_one_hot_mixtures_give_every_client_one_component():
    made = synthetic(40, 3, n_components=3, mixtures="one_hot", n_test=5, dimension=4)
    pi = made.truth.mixture
    assert pi.shape == (40, 3) and set(np.unique(pi)) == {0.0, 1.0} and (pi.sum(1) == 1).all()
    assert (pi.sum(0) > 0).all()
    clean = {"variant": "corrected", "noise": 0.0, "mixtures": "one_hot", "n_test": 5}
    easy = synthetic(40, 3, n_components=3, dimension=4, **clean)
    train = easy.load(np.arange(8), torch.float64).train
    theta = easy.truth.components
    for client in (0, 7):
        own = train.of_client(client)
        assert torch.equal(own.y, (own.x @ torch.tensor(theta[pi[client].argmax()]) > 0).long())
    fewer = synthetic(9, 3, n_components=3, mixtures="one_hot", n_test=5, dimension=4)
    assert (fewer.truth.mixture == pi[:9]).all()
    with pytest.raises(InputError, match=r"data\.mixtures.*'one_hot'.*'released'"):
        synthetic(4, 3, variant="released", mixtures="one_hot")


def test_fedem_recovers_the_clusters_of_separable_clients(tmp_path):
    """App. J.4 on a small scale: every client is assigned to its own cluster."""
    data = {"name": "synthetic", "variant": "corrected", "mixtures": "one_hot", "n_components": 2}
    data |= {"dimension": 10, "n_test": 20}
    result = mpifed.run(
        "synthetic-fedem",
        output=tmp_path / "run",
        quiet=True,
        clients=30,
        rounds=40,
        data=data,
        algorithm={"name": "fedem", "n_components": 2},
        local={"lr": 1.0, "batch_size": 32},
        evaluation={"every": 40},
    )
    truth = load_dataset(data, 30).truth
    learnt = mpifed.load(tmp_path / "run").components
    theta = np.stack([next(each.parameters()).detach().numpy().ravel() for each in learnt])
    found = recovery(theta, result.clients["mixture"], truth.components, truth.mixture)
    assert found.assigned == 1.0
    assert found.component_distance < 0.05 and found.mixture_distance < 0.02
