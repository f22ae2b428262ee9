"""FLIX by FedAvg: local SGD on f_i(T_i(x)), against programs in numpy, FedAvg and ``flix``."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from convex import EXACT, Problem, Run, gossip, logistic
from least_squares import LeastSquares

import mpifed
from mpifed.errors import InputError
from mpifed.testing import run_rounds

ALPHA = [0.3, 1.0, 0.0, 0.75, 0.5]
ADAM = {"name": "adam", "lr": 0.05, "tau": 1e-3}
RATE, MOMENTUM, STEPS, EPOCHS = 0.05, 0.6, 3, 7


def descended(problem, client, w, alpha, own, rate, steps, velocity):
    """SGD with momentum on x -> f_i(alpha x + (1 - alpha) own), along alpha grad f_i."""
    for _ in range(steps):
        point = alpha * w + (1 - alpha) * own
        velocity = MOMENTUM * velocity + alpha * problem.gradient(client, point)
        w = w - rate * velocity
    return w, velocity


@pytest.mark.parametrize("server", ["sgd", "adam"])
@pytest.mark.parametrize("alpha", [0.4, ALPHA], ids=str)
def test_rounds_with_a_server_optimizer_are_those_of_numpy(alpha, server):
    """Half of the clients take steps on x in a round; they count by their samples."""
    problem = LeastSquares()
    local = {"lr": RATE, "momentum": MOMENTUM, "steps": STEPS, "batch_size": 16}
    keys = {"server_optimizer": ADAM} if server == "adam" else {}
    options = {"flix_alpha": alpha, "optimum_epochs": EPOCHS, "optimum_lr": 0.02}
    run = Run("flix_fedavg", problem.data, local=local, keys=keys, **options)
    x, d = problem.starts(run).ravel(), 3
    n, alphas = len(problem.shares), np.broadcast_to(alpha, len(problem.shares))
    optima = np.array(
        [descended(problem, i, x, 1.0, 0.0, 0.02, EPOCHS, np.zeros(d))[0] for i in range(n)]
    )
    assert run.state.optima.numpy() == pytest.approx(optima, abs=1e-13)
    velocities, first, second = np.zeros((n, d)), np.zeros(d), np.full(d, ADAM["tau"] ** 2)
    for _ in range(6):
        chosen, moves = run.participants, np.zeros((n, d))
        for i in chosen:
            how = alphas[i], optima[i], RATE, STEPS, velocities[i]
            after, velocities[i] = descended(problem, i, x, *how)
            moves[i] = after - x
        delta = problem.shares[chosen] @ moves[chosen] / problem.shares[chosen].sum()
        if server == "adam":
            first, second = 0.9 * first + 0.1 * delta, 0.99 * second + 0.01 * delta**2
            delta = ADAM["lr"] * first / (np.sqrt(second) + ADAM["tau"])
        x = x + delta
        assert run.go().x == pytest.approx(x, abs=1e-12)
        expected = alphas[:, None] * x + (1 - alphas[:, None]) * optima
        assert run.models() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("alpha", [0.6, [0.1, 0.4, 1.0, 0.0, 0.7, 0.5]], ids=str)
def test_one_step_of_whole_shards_is_the_gradient_step_of_flix(alpha):
    data, rate = logistic(), 0.7
    exact = Run("flix", data, flix_alpha=alpha, start="ones", step=rate, **EXACT)
    run = Run("flix_fedavg", data, flix_alpha=alpha, local={"lr": rate, "batch_size": 64})
    run.start_from(model=exact.state.model, optima=exact.state.optima)
    for _ in range(5):
        assert run.go().x == pytest.approx(exact.go().x, abs=1e-13)
    assert run.models() == pytest.approx(exact.models(), abs=1e-13)


SETTINGS = {
    "plain": {},
    "adam": {"server_optimizer": "adam"},
    "momentum": {"local": {"momentum": 0.9, "weight_decay": 0.01, "lr_schedule": "sqrt"}},
    "compressed": {"compression": {"name": "top_k", "k": 2}, "participation": 0.5},
    "gossip": {"exchange": gossip()},
}


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("alpha", [1.0, [1.0] * 6], ids=["one", "list"])
def test_with_alpha_of_one_it_is_fedavg_bit_for_bit(kind, alpha):
    keys = {"dtype": "float32", "rounds": 4, **SETTINGS[kind]}
    keys["local"] = {"lr": 0.3, "batch_size": 16, "epochs": 2, **keys.get("local", {})}
    samples = logistic().samples
    plain = run_rounds("fedavg", samples, **keys)
    run = run_rounds({"name": "flix_fedavg", "flix_alpha": alpha}, samples, **keys)
    assert torch.equal(run.state.model, plain.state.model)
    assert (run.deployed.parameters == plain.deployed.parameters).all()


def test_running_statistics_are_those_of_fedavg_or_stay_variances():
    keys = {
        "rounds": 2,
        "clients": 3,
        "model": {"name": "network_modules:cnn", "norm": True},
        "local": {"lr": 0.1, "batch_size": 32},
    }
    plain = run_rounds("fedavg", "digits", **keys)
    for alpha in (1.0, 0.2):
        method = {"name": "flix_fedavg", "flix_alpha": alpha, "optimum_epochs": 1}
        run = run_rounds(method, "digits", **keys)
        assert torch.equal(run.state.model, plain.state.model) == (alpha == 1)
        (variances,) = (s for s in run.model.spans() if s.name.endswith("running_var"))
        deployed = run.deployed.parameters[..., variances.begin : variances.end]
        assert np.isfinite(run.deployed.parameters).all() and (deployed > 0).all()


def test_with_alpha_of_zero_clients_train_alone_and_send_nothing():
    local = {"lr": 0.3, "batch_size": 16}
    options = {"flix_alpha": 0.0, "optimum_epochs": 4}
    run = Run("flix_fedavg", logistic(), local=local, **options)
    before = run.x.copy()
    run.go(3)
    assert (run.x == before).all()
    assert (run.models() == run.state.optima.numpy()).all()
    assert run.exchange.ledger.up_floats == 0
    own = Run("local", logistic(), local={**local, "batch_size": 40}).go(4)
    same = Run("flix_fedavg", logistic(), local={**local, "batch_size": 40}, **options)
    assert same.models() == pytest.approx(own.models(), abs=1e-15)


def test_coordinates_without_gradients_stay_under_adam():
    """Rounding of T_i(x) is nothing that Adam could make large."""
    x, y = zip(*logistic().samples, strict=True)
    blank = [np.where(np.arange(5) == 2, 0.0, part) for part in x]
    data = Problem(list(zip(blank, y, strict=True)), logistic().model)
    adam = {"server_optimizer": {"name": "adam", "lr": 0.1, "tau": 1e-8}}
    run = Run("flix_fedavg", data, flix_alpha=0.3, dtype="float32", keys=adam)
    run.start_from(model=[[0.1, 0.2, 0.3, 0.4, 0.5]], optima=np.full((6, 5), 1 / 7))
    run.go(5)
    assert run.x[2] == np.float32(0.3)
    assert (np.delete(run.x, 2) != np.delete(np.float32([0.1, 0.2, 0.3, 0.4, 0.5]), 2)).all()


@pytest.mark.parametrize("exchange", ["server", gossip()], ids=["server", "gossip"])
def test_bits_are_the_same_on_ranks_and_after_a_resumption(exchange):
    method = {"name": "flix_fedavg", "flix_alpha": [0.2, 1.0, 0.0, 0.9, 0.5, 0.4]}
    method["optimum_epochs"] = 3
    keys = {"dtype": "float32", "exchange": exchange, "participation": 0.5}
    keys["local"] = {"lr": 0.3, "batch_size": 16, "momentum": 0.9}
    if exchange == "server":
        keys["server_optimizer"] = "adam"
    samples = logistic().samples
    digests = {run_rounds(method, samples, rounds=4, ranks=r, **keys).digest for r in (1, 2, 3)}
    begun = run_rounds(method, samples, rounds=2, ranks=2, **keys)
    assert {*digests, begun.resumed(ranks=3).advance(2).digest} == digests
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("options", "keys", "words"),
    [
        ({}, {"local": {"optimizer": "adam"}}, "local.optimizer is 'adam'"),
        ({}, {"exchange": gossip("led")}, "exchange.correction"),
        ({"flix_alpha": [0.5, 0.5]}, {}, "flix_alpha has 2 entries, but there are 6 clients"),
        ({"flix_alpha": 1.5}, {}, "algorithm.flix_alpha"),
        ({}, {"clients": 6, "evaluation": {"unseen_fraction": 0.5}}, "cannot serve unseen"),
    ],
)
def test_what_does_not_go_with_it_is_refused(options, keys, words):
    data = "synthetic" if "clients" in keys else logistic().samples
    with pytest.raises(InputError, match=words):
        run_rounds({"name": "flix_fedavg", **options}, data, rounds=0, **keys)


def test_the_shakespeare_experiment_runs_with_adam_at_the_server(tmp_path):
    speeches = {"ANNA": "the cat sat on the mat. ", "BOB": "to be or not to be. "}
    play = "\n\n".join(f"{role}:\n{text * 20}" for role, text in speeches.items())
    (tmp_path / "play.txt").write_text(play)
    keys = {"data.path": str(tmp_path / "play.txt"), "data.targets": "every"}
    keys |= {"data.sequence_length": 20, "data.stride": 10, "model.weighting": "none"}
    keys |= {"model.hidden": 8, "model.layers": 1, "local.lr": 1.0, "local.lr_schedule": "constant"}
    keys |= {"server_optimizer": "adam", "server_optimizer.lr": 0.1}
    method = {"name": "flix_fedavg", "flix_alpha": 0.5, "optimum_epochs": 1}
    how = {"clients": 2, "rounds": 8, "evaluation.every": 4, "algorithm": method}
    result = mpifed.run("shakespeare-fedem", output=tmp_path / "run", quiet=True, **how, **keys)
    losses = result.metrics["train_loss"]
    assert losses[0] > losses[1] > losses[2]
