"""FedEM against an independent float64 numpy version, and its limiting cases."""

from __future__ import annotations

import numpy as np
import pytest
from convex import Run, gossip, random_labels
from numpy_logistic import likelihood, logistic_gradient, numpy_posterior, random_start


@pytest.mark.parametrize("exchange", ["server", "gossip"])
def test_the_e_step_is_eq_8_and_the_mixture_eq_9(exchange):
    """Under gossip each client has components of its own."""
    problem = random_labels([7, 1, 30])
    theta, pi = random_start(3, 4, 6)
    components = np.stack([theta + i for i in range(3)])
    if exchange == "server":
        components[:] = theta
    section = exchange if exchange == "server" else gossip(topology="complete")
    run = Run("fedem", problem, n_components=4, exchange=section)
    run.start_from(components=theta if exchange == "server" else components, mixture=pi).go()
    means = [
        numpy_posterior(own, p, x, y).mean(0)
        for own, p, (x, y) in zip(components, pi, problem.samples, strict=True)
    ]
    assert run.state.mixture.numpy() == pytest.approx(np.array(means), abs=1e-14)


@pytest.mark.parametrize("floor", [0.0, 0.01])
def test_a_lost_component_stays_lost_and_a_floor_brings_it_back(floor):
    theta, _ = random_start(2, 3, 6)
    run = Run("fedem", random_labels([5, 5]), n_components=3, mixture_floor=floor)
    run.start_from(components=theta, mixture=[[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])
    mixture = run.go().state.mixture.numpy()
    assert np.isfinite(run.state.components.numpy()).all()
    assert mixture[0, 2] == 0 if not floor else mixture[0, 2] >= 0.0099
    assert mixture.sum(1) == pytest.approx(1)


def test_a_whole_round_is_algorithm_1():
    """Steps of all samples, with momenta that clients keep between rounds."""
    problem = random_labels([11, 3, 40, 1, 16])
    local = {"lr": 0.4, "momentum": 0.9, "weight_decay": 1e-3, "batch_size": 64, "epochs": 2}
    run = Run("fedem", problem, local=local, n_components=3, mixture_init="uniform")
    theta, pi = run.state.components.numpy(), run.state.mixture.numpy()
    momentum, sizes = np.zeros((5, 3, 6)), np.array([len(y) for _, y in problem.samples])
    for _ in range(3):
        trained, after = np.tile(theta, (5, 1, 1)), pi.copy()
        for i, (x, y) in enumerate(problem.samples):
            q = numpy_posterior(theta, pi[i], x, y)
            after[i] = q.mean(0)
            for m in range(3):
                for _ in range(2):
                    slope = logistic_gradient(trained[i, m], x, y, q[:, m] / len(y))
                    momentum[i, m] = 0.9 * momentum[i, m] + slope + 1e-3 * trained[i, m]
                    trained[i, m] -= 0.4 * momentum[i, m]
        theta, pi = np.tensordot(sizes / sizes.sum(), trained, 1), after
        run.go()
        assert run.state.components.numpy() == pytest.approx(theta, abs=1e-12)
        assert run.state.mixture.numpy() == pytest.approx(pi, abs=1e-12)


@pytest.mark.parametrize("lr", [1e-300, 0.2])
def test_a_round_of_small_steps_never_lowers_the_likelihood(lr):
    """Eq. 9 alone raises it too, with components that stay."""
    problem = random_labels([20, 35, 12], (3,))
    theta, pi = random_start(3, 2, 4, seed=4)
    run = Run("fedem", problem, local={"lr": lr}, n_components=2)
    run.start_from(components=theta, mixture=pi)
    values = []
    for _ in range(25):
        states = run.state.components.numpy(), run.state.mixture.numpy()
        values.append(likelihood(*states, problem.samples))
        run.go()
    assert (np.diff(values) >= -1e-9).all() and values[-1] > values[0] + 1


def test_initial_states():
    state = Run("fedem", random_labels([5] * 6), n_components=3, dtype="float32").state
    components, mixture = state.components.numpy(), state.mixture.numpy()
    assert components.shape == (3, 6) and components.dtype == np.float32
    assert len({tuple(row) for row in components.tolist()}) == 3
    assert mixture.sum(1) == pytest.approx(1, abs=1e-6) and mixture.std() > 0.1
