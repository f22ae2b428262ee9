"""The search for local optima as it is seen from outside: lines of the log, requests to stop."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess

import numpy as np
import pytest
import torch
from commands import call, command, of_rank, rows, started
from convex import ANISOTROPIC, Run, clients_of, logistic, quadratics
from torch import nn

from mpifed.algorithms.flix.flix import Flix
from mpifed.data.base import Split
from mpifed.errors import AgreedInputError, AgreedStop, InputError, StopRequested
from mpifed.federation.clients import Clients, Draws
from mpifed.local import optima
from mpifed.local.minibatches import batches
from mpifed.local.objective import Regulariser
from mpifed.local.optima import Search, local_optima, stochastic_optima
from mpifed.models.linear import linear
from mpifed.models.losses import HALF_SQUARED
from mpifed.models.modules import module_model
from mpifed.mpi.agreement import agree
from mpifed.mpi.communicator import Alone, world
from mpifed.watchdog.heartbeat import raise_if_stop_requested, stop_requests_from

ENDLESS = {"l2": 0.1, "local_tolerance": 1e-300, "local_iterations": 10**9}
SMALL = (
    "synthetic-fedem",
    "clients=5",
    "rounds=2",
    "dtype=float64",
    "data.n_test=10",
    "data.dimension=6",
    "algorithm=flix",
    "algorithm.l2=0",
    "algorithm.local_tolerance=1e-300",
)
BEGINS_AGAIN = "stopped before round 1.*checkpoint"


@pytest.mark.parametrize("solver", ["gd", "lbfgs", "newton", "published_code"])
def test_every_solver_stops_at_the_iteration_after_a_request(solver):
    asked = []

    def stop_requested():
        asked.append(len(asked))
        return len(asked) == 3

    # Newton's method ends by itself where only rounding is left, the others never.
    with stop_requests_from(stop_requested), pytest.raises(AgreedStop):
        Run(Flix, logistic(), local_solver=solver, **ENDLESS)
    assert len(asked) == 3
    raise_if_stop_requested()  # outside nobody asks


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_run_stops_amid_the_search_and_begins_it_again(number, tmp_path, capfd, monkeypatch):
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    words = [*SMALL, "algorithm.local_iterations=300", "--output"]
    monkeypatch.setattr(optima, "EVERY", 0.0)
    with monkeypatch.context() as patched:
        tell = optima.log.info
        patched.setattr(optima.log, "info", lambda line: (os.kill(os.getpid(), number), tell(line)))
        done = call([*words, cut], capfd)
    assert done.code == 75
    assert re.match(BEGINS_AGAIN, done.out.splitlines()[-1])
    assert not cut.exists()
    assert not done.err
    assert call([*words, cut, "--resume"], capfd).code == 0
    assert call([*words, whole], capfd).code == 0
    assert rows(cut) == rows(whole)


@pytest.mark.slow
@pytest.mark.parametrize("to", ["all ranks", "one rank"])
def test_two_ranks_stop_amid_the_search(to, tmp_path):
    target = tmp_path / "run"
    endless = ["algorithm.name=user_components:Talks", "algorithm.local_iterations=1000000000"]
    words = command(2, *SMALL, *endless, "--output", target)
    with started(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert "local optima: " in process.stdout.readline()
        for rank in (0, 1) if to == "all ranks" else (1,):
            os.kill(of_rank(rank, target), signal.SIGUSR1)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 75, err
    assert re.search(BEGINS_AGAIN, out if to == "all ranks" else err)
    assert not target.exists()


@pytest.mark.mpi
def test_ranks_agree_to_stop_and_bad_input_comes_first():
    communicator = world()
    last = communicator.rank == communicator.size - 1

    def stops():
        if last:
            raise StopRequested

    def refuses():
        if communicator.rank == 0:
            raise InputError("too small")
        stops()

    with pytest.raises(AgreedStop):
        agree(communicator, stops)
    sentence = "too small"
    with pytest.raises(AgreedInputError, match=sentence):
        agree(communicator, refuses)
    assert agree(communicator, lambda: communicator.rank) == communicator.rank


def test_one_process_agrees_with_itself():
    def stops():
        raise StopRequested

    with pytest.raises(AgreedStop):
        agree(Alone(), stops)


# Pure local models as the published code of FLIX finds them, beside numpy alone.


STEPS, DRAWS = 700, Draws(3, 0)


def problem(noise, n_val=0, n=5, d=4):
    """Least squares with 20 to 60 samples; the first client has no validation samples."""
    draw = np.random.default_rng(1)
    counts = [20 + 10 * i for i in range(n)]
    xs = [draw.normal(size=(m, d)) * 1.5 for m in counts]
    truth = draw.normal(size=(n, d))
    ys = [x @ w + noise * draw.normal(size=len(x)) for x, w in zip(xs, truth, strict=True)]
    clients, description = clients_of(xs, ys)
    held = [0, *[n_val] * (n - 1)]
    vx = [draw.normal(size=(m, d)) for m in held]
    vy = [x @ w + noise * draw.normal(size=len(x)) for x, w in zip(vx, truth, strict=True)]
    val = Split(
        torch.from_numpy(np.concatenate(vx)),
        torch.from_numpy(np.concatenate(vy))[:, None],
        np.concatenate([[0], np.cumsum(held)]),
    )
    shards = dataclasses.replace(clients.shards, val=val)
    clients = Clients(clients.federation, shards, clients.rows)
    model = linear(description, bias=False, loss="half_squared")
    return model, clients, xs, ys, vx, vy, truth


def found(model, clients, tolerance=1e-2, steps=STEPS):
    start = torch.zeros(len(clients), model.n_parameters, dtype=torch.float64)
    regulariser = Regulariser("l2", 0.0)
    return stochastic_optima(
        model, clients, regulariser, start, DRAWS, tolerance, steps, Search(clients)
    )


def paths(clients, xs, ys, steps):
    """The iterates of every client, (steps + 1, clients, d), by numpy."""
    sizes = np.array([int(np.ceil(0.7 * len(x))) for x in xs])
    x = np.zeros((len(xs), xs[0].shape[1]))
    path = [x]
    for step in range(steps):
        x = x.copy()
        for i, batch in enumerate(batches(clients, DRAWS, f"local step {step}", sizes)):
            own = batch - int(clients.starts[i])
            assert len(set(own)) == sizes[i]
            a, b = xs[i][own], ys[i][own]
            x[i] -= 0.01 * a.T @ (a @ x[i] - b) / len(own)
        path.append(x)
    return np.stack(path)


def half_squared(a, b, w):
    return 0.5 * np.mean((a @ w - b) ** 2)


def test_without_validation_it_stops_at_the_first_small_gradient_with_a_small_loss():
    model, clients, xs, ys, *_, truth = problem(noise=0.0)
    got, path = found(model, clients).numpy(), paths(clients, xs, ys, STEPS)
    for i, (a, b) in enumerate(zip(xs, ys, strict=True)):
        gradients = [np.linalg.norm(a.T @ (a @ w - b)) / len(b) for w in path[:, i]]
        losses = [half_squared(a, b, w) for w in path[:, i]]
        small = [g < 1e-2 and f < 1e-4 for g, f in zip(gradients, losses, strict=True)]
        assert 0 < small.index(True) < STEPS
        assert got[i] == pytest.approx(path[small.index(True), i], abs=1e-12)
        assert np.linalg.norm(got[i] - truth[i]) < 0.05


def test_a_small_gradient_alone_does_not_stop_it():
    model, clients, xs, ys, *_ = problem(noise=0.5)
    got, path = found(model, clients, steps=300).numpy(), paths(clients, xs, ys, 300)
    assert got == pytest.approx(path[-1], abs=1e-12)


def test_with_validation_it_keeps_the_best_of_the_steps_before_its_patience_ends():
    model, clients, xs, ys, vx, vy, _ = problem(noise=0.5, n_val=15)
    got, path = found(model, clients).numpy(), paths(clients, xs, ys, STEPS)
    ended_early = 0
    for i in range(1, len(xs)):
        losses = [half_squared(vx[i], vy[i], w) for w in path[:, i]]
        best = 0
        for step, loss in enumerate(losses):
            best = step if loss < losses[best] else best
            if step - best >= 200:
                ended_early += 1
                break
        assert got[i] == pytest.approx(path[best, i], abs=1e-12)
    assert ended_early
    assert got[0] == pytest.approx(path[-1, 0], abs=1e-12)


def test_a_client_finds_the_same_alone():
    model, clients, *_ = problem(noise=0.3, n_val=15)
    together = found(model, clients, steps=60)
    for i in range(len(clients)):
        alone = Clients(clients.federation, clients.shards, clients.rows[i : i + 1])
        assert torch.equal(found(model, alone, steps=60)[0], together[i])


def test_gradient_descent_searches_its_step_where_the_smoothness_is_unknown():
    clients = Run("local", quadratics(*ANISOTROPIC)).clients
    model = module_model(lambda: nn.Linear(2, 1, bias=False), (2,), (1,), HALF_SQUARED)
    start = torch.full((2, 2), 5.0, dtype=torch.float64)
    limits = "gd", 1e-9, 200
    found, norms = local_optima(model, clients, Regulariser(), start, Draws(0, 0), *limits)
    assert torch.allclose(found, torch.tensor(ANISOTROPIC[1], dtype=torch.float64), atol=1e-8)
    assert norms.max() < 1e-9
