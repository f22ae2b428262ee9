"""FedEM against an independent float64 numpy version, and its limiting cases."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from test_local_sgd import plain_sgd

from mpifed.algorithms.fedem import FedEM, mixture_weights, posterior
from mpifed.exchange.server import Server
from mpifed.federation.clients import Draws
from mpifed.local.options import LocalOptions
from mpifed.local.solver import LocalSolver
from mpifed.models.linear import linear


def numpy_losses(theta, x, y):
    z = x @ theta[:-1] + theta[-1]
    return np.logaddexp(0, z) - y * z


def numpy_posterior(theta, pi, x, y):
    """Eq. 8 for one client: (samples, M)."""
    joint = np.stack(
        [p * np.exp(-numpy_losses(t, x, y)) for t, p in zip(theta, pi, strict=True)], 1
    )
    return joint / joint.sum(1, keepdims=True)


def client_data(clients):
    train = clients.shards.train
    ends = train.offsets
    return [(train.x[a:b].numpy(), train.y[a:b].numpy()) for a, b in itertools.pairwise(ends)]


def likelihood(theta, pi, data):
    """f of eq. 6, times -n."""
    total = 0.0
    for weights, (x, y) in zip(pi, data, strict=True):
        p = sum(w * np.exp(-numpy_losses(t, x, y)) for w, t in zip(weights, theta, strict=True))
        total += np.log(p).sum()
    return total


def random_start(n_clients, components, parameters, seed=0):
    generator = np.random.default_rng(seed)
    theta = generator.normal(size=(components, parameters))
    return theta, generator.dirichlet(np.ones(components), n_clients)


@pytest.mark.parametrize("per_client", [False, True])
def test_the_e_step_is_eq_8_and_the_mixture_eq_9(make_clients, per_client):
    clients, description = make_clients([7, 1, 30])
    theta, pi = random_start(3, 4, 6)
    components = torch.from_numpy(np.tile(theta, (3, 1, 1)) if per_client else theta)
    q = posterior(linear(description), components, torch.from_numpy(pi), clients)
    expected = np.concatenate(
        [numpy_posterior(theta, p, *d) for p, d in zip(pi, client_data(clients), strict=True)]
    )
    assert np.allclose(q.T, expected, rtol=0, atol=1e-14)
    mixture = mixture_weights(q, clients)
    means = [expected[a:b].mean(0) for a, b in [(0, 7), (7, 8), (8, 38)]]
    assert np.allclose(mixture, means, rtol=0, atol=1e-14)


def test_a_lost_component_stays_lost_and_a_floor_brings_it_back(make_clients):
    clients, description = make_clients([5, 5])
    theta, _ = random_start(2, 3, 6)
    pi = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]], dtype=torch.float64)
    q = posterior(linear(description), torch.from_numpy(theta), pi, clients)
    assert torch.isfinite(q).all() and (q[2, :5] == 0).all()
    assert mixture_weights(q, clients)[0, 2] == 0
    floored = mixture_weights(q, clients, floor=0.01)
    assert floored[0, 2] >= 0.0099 and torch.allclose(floored.sum(1), torch.ones(2).double())


def make_fedem(description, clients, components, options, horizon=10):
    longest = int(clients.n_train.max())
    solver = LocalSolver(linear(description), options, horizon, longest, torch.device("cpu"))
    return FedEM(solver.model, solver, n_components=components, mixture_init="uniform")


def test_a_whole_round_is_algorithm_1(make_clients):
    clients, description = make_clients([11, 3, 40, 1, 16])
    options = LocalOptions(lr=0.4, momentum=0.9, weight_decay=1e-3, batch_size=8)
    algorithm = make_fedem(description, clients, 3, options)
    server = Server(clients.federation, 0)
    state = algorithm.init(clients, server, Draws(0, 0), torch.float64)
    theta, pi = state.components.numpy(), state.mixture.numpy()
    momentum = np.zeros((5, 3, 6))
    everyone = np.ones(5, bool)
    data = client_data(clients)
    for round in (1, 2, 3):
        state = algorithm.round(state, clients, server.at(round, everyone), Draws(0, round))
        q = [numpy_posterior(theta, p, *d) for p, d in zip(pi, data, strict=True)]
        pi = np.stack([part.mean(0) for part in q])
        start = np.broadcast_to(theta, (5, 3, 6)).copy()
        trained, momentum = plain_sgd(
            clients, start, momentum, options, np.concatenate(q).T, Draws(0, round), [0.4] * 5
        )
        theta = np.tensordot(clients.n_train / clients.n_train.sum(), trained, 1)
        assert np.allclose(state.components, theta, rtol=0, atol=1e-12)
        assert np.allclose(state.mixture, pi, rtol=0, atol=1e-12)


def test_exact_em_never_lowers_the_likelihood(make_clients):
    clients, description = make_clients([20, 35, 12], shape=(3,))
    data = client_data(clients)
    theta, pi = random_start(3, 2, 4, seed=4)
    model = linear(description)
    values = [likelihood(theta, pi, data)]
    for _ in range(25):
        q = posterior(model, torch.from_numpy(theta), torch.from_numpy(pi), clients)
        pi = mixture_weights(q, clients).numpy()
        values.append(likelihood(theta, pi, data))  # eq. 9 alone already raises it
        x = np.concatenate([x for x, _ in data])
        y = np.concatenate([y for _, y in data])
        for m in range(2):  # eq. 10 by Newton's method, to the minimum
            theta[m] = weighted_logistic(theta[m], x, y, q[m].numpy())
        values.append(likelihood(theta, pi, data))
    assert (np.diff(values) >= -1e-9).all() and values[-1] > values[0] + 1


def weighted_logistic(theta, x, y, q):
    x = np.column_stack([x, np.ones(len(x))])
    value = lambda t: (q * (np.logaddexp(0, x @ t) - y * (x @ t))).sum()  # noqa: E731
    for _ in range(50):
        p = np.exp(-np.logaddexp(0, -(x @ theta)))
        gradient = x.T @ (q * (p - y))
        hessian = (x * (q * p * (1 - p))[:, None]).T @ x + 1e-10 * np.eye(len(theta))
        step, length = np.linalg.solve(hessian, gradient), 1.0
        while value(theta - length * step) > value(theta) and length > 1e-10:
            length /= 2
        theta = theta - length * step if length > 1e-10 else theta
    return theta


def test_initial_states(make_clients):
    clients, description = make_clients([5] * 6)
    server = Server(clients.federation, 0)
    solver = LocalSolver(linear(description), LocalOptions(), 10, 5, torch.device("cpu"))
    random = FedEM(solver.model, solver, n_components=3).init(
        clients, server, Draws(0, 0), torch.float32
    )
    assert random.components.shape == (3, 6) and random.components.dtype == torch.float32
    assert len({tuple(row) for row in random.components.tolist()}) == 3
    assert torch.allclose(random.mixture.sum(1), torch.ones(6)) and random.mixture.std() > 0.1
