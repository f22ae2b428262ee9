"""FedProx: its fixed points, FedAvg where nothing pulls, and the method written out in numpy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from convex import Run, problem_of, two_quadratics
from least_squares import LeastSquares

from mpifed.errors import InputError
from mpifed.testing import run_rounds

PARTIAL = {"name": "stragglers", "rate": 0.6, "late": "partial"}


def digest(method, exchange="server", **keys):
    local = {"batch_size": 16, "momentum": 0.9}
    return run_rounds(method, rounds=3, exchange=exchange, local=local, **keys).digest


def test_many_steps_solve_the_proximal_problem():
    """x = sum_i b_i c_i / sum_i b_i with b_i = a_i / (a_i + mu)."""
    run = Run("fedprox", two_quadratics(), local={"lr": 0.1, "epochs": 80}, mu=2.0).go(40)
    assert run.models() == pytest.approx(2.571428571, abs=1e-9)


@pytest.mark.parametrize("exchange", ["server", "gossip"])
@pytest.mark.parametrize("participation", [1.0, PARTIAL])
def test_without_a_pull_it_is_fedavg_bit_for_bit(exchange, participation):
    how = {"participation": participation}
    plain = digest("fedavg", exchange, **how)
    for mu in (0, 1):
        pulled = digest({"name": "fedprox", "mu": mu}, exchange, **how)
        assert (pulled == plain) == (mu == 0)


def test_stragglers_send_what_a_part_of_their_steps_gave():
    """The systems heterogeneity of the paper is an option of the participation."""
    assert digest("fedprox", participation=PARTIAL) != digest("fedprox")


def test_four_rounds_are_those_of_numpy():
    problem = LeastSquares()
    local = {"lr": 0.1, "epochs": 3, "batch_size": 20, "weight_decay": 0.05}
    run = Run("fedprox", problem.data, local=local, mu=0.7)
    x = problem.starts(run)
    for _ in range(4):
        chosen, trained = run.participants, []
        for t in chosen:
            w = x.copy()
            for _ in range(3):
                w -= 0.1 * (problem.gradient(t, w) + 0.7 * (w - x) + 0.05 * w)
            trained.append(w)
        p = problem.shares[chosen] / problem.shares[chosen].sum()
        x = p @ np.array(trained)
        run.go()
    assert run.models()[0] == pytest.approx(x, abs=1e-13)


# q-FFL: FedAvg for q = 0, the minimiser of its objective, and the method written out in numpy.


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_it_is_fedavg_where_q_is_0(participation):
    problem = LeastSquares(participation=participation)
    local = {"lr": 0.1, "epochs": 2, "batch_size": 4, "momentum": 0.5}
    run = Run("qffl", problem.data, local=local, q=0.0)
    plain = Run("fedavg", problem.data, local=local)
    for _ in range(5):
        assert run.go().models() == pytest.approx(plain.go().models(), abs=1e-14)


@pytest.mark.parametrize(("q", "epochs"), [(0, 5), (1, 1), (1, 5), (2.5, 1)])
def test_it_ends_where_the_weighted_moves_cancel(q, epochs):
    """F_1^q g_1 x = F_2^q g_2 (4 - x) with g_i = 1 - (1 - eta a_i)^E.

    One step (q-FedSGD) ends at the minimiser of sum F^(q+1): 4 r / (1 + r), r^(2q+1) = 3^(q+1).
    """
    local = {"lr": 0.2, "epochs": epochs}
    run = Run("qffl", two_quadratics(), local=local, q=float(q)).go(120)
    g = 1 - (1 - 0.2 * np.array([1.0, 3.0])) ** epochs
    r = (3**q * g[1] / g[0]) ** (1 / (2 * q + 1))
    if epochs == 1:
        assert r ** (2 * q + 1) == pytest.approx(3 ** (q + 1))
    assert run.models() == pytest.approx(4 * r / (1 + r), rel=1e-9)


def test_larger_q_is_fairer():
    """Both risks are equal at 4 sqrt(3) / (1 + sqrt(3)), where the larger is least."""
    ends = [
        Run("qffl", two_quadratics(), local={"lr": 0.2}, q=q).go(100).models()[0, 0]
        for q in (0.0, 1.0, 8.0)
    ]
    equal = 4 * 3**0.5 / (1 + 3**0.5)
    assert 3 + 1e-9 > ends[0] > ends[1] > ends[2] > equal
    assert ends[2] == pytest.approx(equal, abs=0.04)


@pytest.mark.parametrize(("q", "lipschitz"), [(1.0, None), (0.5, 3.0)])
def test_four_rounds_are_those_of_numpy_of_qffl(q, lipschitz):
    problem, lr = LeastSquares(), 0.1
    local = {"lr": lr, "epochs": 3, "batch_size": 20}
    run = Run("qffl", problem.data, local=local, q=q, lipschitz=lipschitz)
    x, big = problem.starts(run), lipschitz or 1 / lr
    for _ in range(4):
        delta, h = np.zeros_like(x), 0.0
        for t in run.participants:
            w = x.copy()
            for _ in range(3):
                w -= lr * problem.gradient(t, w)
            move, risk = big * (x - w), problem.risk(t, x)
            delta += problem.shares[t] * risk**q * move
            h += problem.shares[t] * (q * risk ** (q - 1) * move @ move + big * risk**q)
        x = x - delta / h
        assert run.go().models()[0] == pytest.approx(x, abs=1e-12)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", ["qffl", "fednova"])
def test_a_message_is_a_move_and_one_number(kind, compressed):
    problem, section = LeastSquares(participation=1.0), ("rand_k", {"k": 2})
    local = {"lr": 0.1, "batch_size": 20}
    run = Run(kind, problem.data, section if compressed else None, local=local).go(3)
    # From what is left of a move, the server cannot tell how long it was.
    sent = 2 + 1 + (kind == "qffl") if compressed else len(problem.starts(run)) + 1
    assert run.exchange.ledger.up_floats == 3 * len(problem.xs) * sent


def test_a_client_that_fits_its_samples_leaves_the_model_finite():
    data = problem_of([np.eye(2), np.eye(2)], [np.zeros(2), np.zeros(2)])
    run = Run("qffl", data, local={"lr": 0.5, "epochs": 10}, q=0.5).go(60)
    assert np.abs(run.models()).max() < 1e-3


# AFL: its saddle points, and the method written out in numpy.


ROOT = 3**0.5
norm = np.linalg.norm


def nearest_in_the_simplex(v):
    """By trying every support, of which the best feasible one is the projection."""
    best = None
    for size in range(1, len(v) + 1):
        for chosen in map(list, itertools.combinations(range(len(v)), size)):
            point = np.zeros_like(v)
            point[chosen] = v[chosen] + (1 - v[chosen].sum()) / size
            if point.min() >= 0 and (best is None or norm(point - v) < norm(best - v)):
                best = point
    return best


def test_it_ends_where_both_risks_are_equal():
    """x^2 / 2 = 3 (x - 4)^2 / 2 and lambda_1 x = 3 lambda_2 (4 - x)."""
    run = Run("agnostic", two_quadratics(), deployed="last").go(300)
    assert run.models() == pytest.approx(4 * ROOT / (1 + ROOT), abs=1e-9)
    found = run.algorithm.learnt(run.state, run.exchange)["lambda"]
    assert found.numpy() == pytest.approx(np.array([ROOT, 1]) / (1 + ROOT), abs=1e-9)


def test_a_client_whose_risk_is_always_larger_decides_alone():
    """F_1 = (w - 1)^2 / 2, F_2 = (w^2 + (w - 50)^2) / 4, which is least at 25."""
    data = problem_of([np.ones((1, 1)), np.ones((2, 1))], [np.ones(1), np.array([0.0, 50.0])])
    run = Run("agnostic", data, deployed="last").go(250)
    assert run.state.mixture.numpy() == pytest.approx([0, 1])
    assert run.models() == pytest.approx(25, abs=1e-8)


@pytest.mark.parametrize("deployed", ["average", "last"])
@pytest.mark.parametrize("participation", [0.5, 1.0])
def test_four_rounds_are_those_of_numpy_of_agnostic(deployed, participation):
    problem = LeastSquares(participation=participation)
    steps = {"gamma_w": 0.2, "gamma_lambda": 0.3}
    run = Run("agnostic", problem.data, deployed=deployed, **steps)
    w, mixture, p = problem.starts(run), problem.shares.copy(), 1.0
    if participation < 1:
        p = len(run.participants) / len(problem.xs)
    passed = []
    for _ in range(4):
        chosen = run.participants
        risks = np.zeros(len(mixture))
        risks[chosen] = [problem.risk(t, w) for t in chosen]
        w = w - 0.2 / p * sum(mixture[t] * problem.gradient(t, w) for t in chosen)
        mixture = nearest_in_the_simplex(mixture + 0.3 / p * risks)
        passed.append(w)
        run.go()
        assert run.state.mixture.numpy() == pytest.approx(mixture, abs=1e-12)
        expected = np.mean(passed, 0) if deployed == "average" else w
        assert run.models()[0] == pytest.approx(expected, abs=1e-12)
    assert (mixture == 0).any()


# SCAFFOLD: no drift, FedAvg where none is possible, and the method written out in numpy.


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("steps", [1, 5])
def test_it_ends_at_the_minimiser_whatever_the_number_of_steps(option, steps):
    """c_i is then the gradient of f_i, and c that of f, 0."""
    local = {"lr": 0.1, "epochs": steps}
    run = Run("scaffold", two_quadratics(), local=local, variate_option=option).go(160 // steps)
    assert run.models() == pytest.approx(3.0, abs=1e-10)
    assert run.state.variates.flatten().numpy() == pytest.approx([3, -3], abs=1e-10)
    assert run.state.variate.numpy() == pytest.approx(0, abs=1e-10)


@pytest.mark.parametrize("option", ["I", "II"])
def test_one_step_is_the_gradient_step_of_fedavg(option):
    problem = LeastSquares(participation=1.0)
    local = {"lr": 0.2, "batch_size": 20, "weight_decay": 0.1}
    run = Run("scaffold", problem.data, local=local, variate_option=option)
    plain = Run("fedavg", problem.data, local=local)
    for _ in range(4):
        assert run.go().models() == pytest.approx(plain.go().models(), abs=1e-14)


@pytest.mark.parametrize("weights", ["samples", "uniform"])
@pytest.mark.parametrize("option", ["I", "II"])
def test_four_rounds_are_those_of_numpy_of_scaffold(option, weights):
    problem, lr, decay, eta = LeastSquares(), 0.1, 0.05, 0.7
    options = {"variate_option": option, "client_weights": weights, "server_lr": eta}
    local = {"lr": lr, "epochs": 3, "batch_size": 20, "weight_decay": decay}
    run = Run("scaffold", problem.data, local=local, **options)
    n = len(problem.xs)
    p = problem.shares if weights == "samples" else np.full(n, 1 / n)
    x = problem.starts(run)
    c, own = np.zeros_like(x), np.zeros((n, len(x)))

    def gradient(t, w):
        return problem.gradient(t, w) + decay * w

    for _ in range(4):
        chosen = run.participants
        moves, changes = np.zeros((2, n, len(x)))
        for t in chosen:
            y = x.copy()
            for _ in range(3):
                y -= lr * (gradient(t, y) - own[t] + c)
            new = gradient(t, x) if option == "I" else own[t] - c + (x - y) / (3 * lr)
            moves[t], changes[t] = y - x, new - own[t]
        x = x + eta * (p @ moves) / p[chosen].sum()
        c, own = c + p @ changes, own + changes
        run.go()
        assert run.models()[0] == pytest.approx(x, abs=1e-13)
        assert run.state.variate[0].numpy() == pytest.approx(c, abs=1e-13)
        assert c == pytest.approx(p @ own, abs=1e-13)


def test_the_mean_of_the_variates_is_that_of_the_server_with_unbiased_weights_too():
    problem = LeastSquares(
        participation={"name": "uniform", "fraction": 0.4, "weights": "unbiased"}
    )
    local = {"lr": 0.1, "epochs": 2, "batch_size": 4}
    run = Run("scaffold", problem.data, local=local).go(5)
    mean = problem.shares @ run.state.variates[:, 0].numpy()
    assert run.state.variate[0].numpy() == pytest.approx(mean, abs=1e-13)


@pytest.mark.parametrize("local", [{"momentum": 0.9}, {"optimizer": "adam"}])
def test_other_steps_than_those_of_plain_sgd_are_refused(local):
    with pytest.raises(InputError, match=r"local\.(optimizer|momentum).*'scaffold'"):
        run_rounds("scaffold", local=local, rounds=0)
