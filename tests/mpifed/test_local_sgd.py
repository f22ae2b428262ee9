"""The batched solver against a plain loop over clients, components and minibatches."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mpifed
from mpifed.federation.clients import Draws
from mpifed.local.minibatches import draw_orders, plan_minibatches, work_of
from mpifed.local.options import LocalOptions
from mpifed.local.solver import SCHEDULES, LocalSolver, learning_rates
from mpifed.models.linear import linear


def logistic_gradient(w, x, y, q):
    """Of sum_i q_i l(w; x_i, y_i), with w = (weights, bias)."""
    slope = (1 / (1 + np.exp(-(x @ w[:-1] + w[-1]))) - y) * q
    return np.append(x.T @ slope, slope.sum())


def plain_sgd(clients, start, momentum, options, q, draws, rates):
    """Trains every (client, component) by itself, in float64 numpy."""
    train = clients.shards.train
    x, y = train.x.numpy(), train.y.numpy()
    size, how = options.batch_size, options.sampling
    work = work_of(clients.n_train, size, options.epochs, options.steps, how)
    keys = draws.client_keys("minibatches", clients.ids)
    components = start.shape[1]
    orders = draw_orders(keys, clients.starts, work, components, options.sampling).numpy()
    trained, buffers = start.copy(), momentum.copy()
    place = 0
    for t in range(len(clients)):
        n = int(work.samples[t])
        if how == "uniform":
            n = min(n, size) * int(work.per_epoch[t])
        for m in range(components):
            w, v = trained[t, m], buffers[t, m]
            sequence = orders[place : place + n * int(work.epochs[t])]
            place += len(sequence)
            for step in range(int(work.steps[t])):
                epoch, index = divmod(step, int(work.per_epoch[t]))
                begin = epoch * n + index * size
                batch = sequence[begin : min(begin + size, (epoch + 1) * n)]
                assert how == "shuffled" or len(batch) == min(size, work.samples[t])
                about = x[batch], y[batch], q[m, batch] / len(batch)
                g = logistic_gradient(w, *about)
                if options.sam_radius:
                    g = logistic_gradient(w + options.sam_radius * g / np.linalg.norm(g), *about)
                v[:] = options.momentum * v + g + options.weight_decay * w
                w -= rates[t] * v
    return trained, buffers


@pytest.mark.parametrize("components", [1, 3])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"momentum": 0.9, "weight_decay": 5e-4, "epochs": 3},
        {"steps": 7, "momentum": 0.5},
        {"steps": 2, "sampling": "uniform"},
        {"epochs": 2, "sampling": "uniform"},
        {"batch_size": 1000},
        {"sam_radius": 0.2, "momentum": 0.5, "weight_decay": 5e-4},
    ],
)
def test_the_batched_solver_is_the_plain_loop(make_clients, components, changes):
    clients, description = make_clients([11, 3, 40, 1, 16])
    options = LocalOptions(**{"lr": 0.5, "batch_size": 8, **changes})
    solver = LocalSolver(linear(description), options, 10, 40, torch.device("cpu"))
    generator = np.random.default_rng(0)
    start = generator.normal(size=(5, components, 6))
    q = generator.random((components, 71))
    scale = np.linspace(0.5, 1.5, 5)
    draws = Draws(3, 4)
    trained, optimizer = solver(
        torch.from_numpy(start),
        solver.init(5, components, torch.float64),
        clients,
        draws,
        weights=torch.from_numpy(q),
        step_scale=scale,
    )
    expected, buffers = plain_sgd(
        clients, start, np.zeros_like(start), options, q, draws, options.lr * scale
    )
    assert np.allclose(trained, expected, rtol=0, atol=1e-12)
    if options.momentum:
        assert np.allclose(optimizer.momentum, buffers, rtol=0, atol=1e-12)
    else:
        assert optimizer.momentum.shape == (5, components, 0)


def test_buffers_live_on_the_client_from_round_to_round_unless_reset(make_clients):
    clients, description = make_clients([9, 4])
    results = {}
    for reset in (False, True):
        options = LocalOptions(lr=0.1, momentum=0.9, batch_size=4, reset_momentum=reset)
        solver = LocalSolver(linear(description), options, 10, 9, torch.device("cpu"))
        rows = torch.zeros(2, 1, 6, dtype=torch.float64)
        first, optimizer = solver(rows, solver.init(2, 1, rows.dtype), clients, Draws(0, 1))
        results[reset] = solver(first, optimizer, clients, Draws(0, 2))[0]
        fresh = solver(first, solver.init(2, 1, rows.dtype), clients, Draws(0, 2))[0]
        assert torch.equal(results[reset], fresh) == reset
    assert not torch.equal(results[True], results[False])


def test_every_epoch_is_a_fresh_permutation_and_components_shuffle_apart(make_clients):
    clients, _ = make_clients([6, 9])
    work = work_of(clients.n_train, 4, 2, None)
    keys = Draws(0, 1).client_keys("minibatches", clients.ids)
    orders = draw_orders(keys, clients.starts, work, 2, "shuffled").numpy()
    passes = [*orders[:24].reshape(4, 6), *orders[24:].reshape(4, 9)]
    for which, visited in enumerate(passes):
        owned = range(6) if which < 4 else range(6, 15)
        assert sorted(visited) == list(owned)
    assert len({tuple(p) for p in passes}) == 8


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=6),
    st.integers(1, 40),
    st.integers(1, 3),
    st.one_of(st.none(), st.integers(1, 7)),
)
def test_uniform_minibatches_are_whole(sizes, batch, components, steps):
    """Each has as many samples as asked for, or as the client has; a pass has as many of them as
    a shuffled one.
    """
    n_train = np.array(sizes)
    work = work_of(n_train, batch, 2, steps, "uniform")
    shuffled = work_of(n_train, batch, 2, steps, "shuffled")
    assert (work.steps == shuffled.steps).all() and (work.epochs == shuffled.epochs).all()
    width = -(-min(batch, n_train.max()) // 32) * 32
    made = plan_minibatches(work, batch, width, components, 2, torch.float64, torch.device("cpu"))
    scale = made.scale.numpy().reshape(-1, width)
    clients = [t for step in made.steps for t in range(step.first, step.last)]
    whole = np.minimum(batch, n_train)[made.order][np.repeat(clients, components)]
    assert ((scale > 0).sum(1) == whole).all()
    assert scale.sum(1) == pytest.approx(np.ones(len(scale)))
    starts = np.cumsum(n_train) - n_train
    keys = Draws(0, 1).client_keys("minibatches", np.arange(len(sizes)))
    rows = draw_orders(keys, starts, work, components, "uniform")[made.positions].numpy()
    owners = made.order[np.repeat(clients, components * width)]
    assert (rows >= starts[owners]).all() and (rows < (starts + n_train)[owners]).all()


def test_uniform_minibatches_draw_every_sample_alike():
    """Also the sample whose minibatch a remainder would have been."""
    work = work_of(np.array([9]), 8, 4000, None, "uniform")
    drawn = draw_orders(np.array([7], np.uint64), np.array([0]), work, 1, "uniform").numpy()
    assert len(drawn) == 4000 * 2 * 8
    found = np.bincount(drawn, minlength=9) / len(drawn)
    # Four standard deviations of the estimated frequencies.
    assert np.abs(found - 1 / 9).max() < 4 * np.sqrt(1 / 9 * 8 / 9 / len(drawn))


@pytest.mark.parametrize(
    ("name", "factors"),
    [
        ("constant", {0: 1, 50: 1, 99: 1}),
        ("multi_step", {0: 1, 49: 1, 50: 0.1, 74: 0.1, 75: 0.01, 99: 0.01}),
        ("sqrt", {0: 1, 1: 1, 4: 0.5, 100: 0.1}),
        ("linear", {0: 1, 1: 1, 4: 0.25}),
        ("cosine", {0: 1, 50: 0.5, 100: 0}),
    ],
)
def test_schedules(name, factors):
    for step, factor in factors.items():
        assert SCHEDULES[name](step, 100) == pytest.approx(factor, abs=1e-15)


def test_multi_step_breaks_after_the_floors():
    # R = 7: floor(7 / 2) = 3 and 3 floor(7 / 4) = 3.
    assert [SCHEDULES["multi_step"](k, 7) for k in range(5)] == pytest.approx([1, 1, 1, 0.01, 0.01])


@pytest.mark.parametrize(("horizon", "first"), [(1, 0.01), (2, 0.1), (3, 0.1), (4, 1.0)])
def test_multi_step_begins_lower_in_fewer_than_four_rounds_and_says_so(horizon, first, tmp_path):
    assert SCHEDULES["multi_step"](0, horizon) == pytest.approx(first)
    words = {"clients": 2, "algorithm": "fedavg", "local.lr_schedule": "multi_step"}
    run = mpifed.run("digits-fedem", **words, rounds=horizon, output=tmp_path / "run")
    log = (run.directory / "log.txt").read_text()
    assert (f"begins at local.lr / {round(1 / first)}" in log) == (first < 1)


@pytest.mark.parametrize("schedule", ["constant", "cosine", "multi_step"])
def test_warm_up_rises_by_equal_steps_to_what_the_schedule_says(schedule):
    work, done = work_of(np.array([8]), 8, epochs=1, steps=None), torch.tensor([0])
    for k in range(1, 21):
        plain = LocalOptions(lr=0.5, lr_schedule=schedule)
        warmed = dataclasses.replace(plain, lr_warmup=8)
        expected = min(1, k / 8) * learning_rates(plain, 20, k, done, work, None)
        assert learning_rates(warmed, 20, k, done, work, None) == pytest.approx(expected)


def test_warm_up_counts_what_the_clock_counts():
    work, done = work_of(np.array([8, 8]), 8, epochs=2, steps=None), torch.tensor([0, 3])
    options = LocalOptions(lr=1.0, lr_warmup=4, lr_clock="local_epoch")
    rates = learning_rates(options, 10, 5, done, work, None)
    assert rates.tolist() == [[0.25, 0.5], [1.0, 1.0]]


def test_fine_tuning_does_not_warm_up(tmp_path):
    words = {"clients": 3, "rounds": 1, "algorithm": "fedavg_ft", "local.lr": 1e-12}
    words |= {"algorithm.tune_lr": 0.3, "output": tmp_path / "plain"}
    plain = mpifed.run("digits-fedem", **words)
    warmed = mpifed.run(
        "digits-fedem", **{**words, "output": tmp_path / "warmed", "local.lr_warmup": 100}
    )
    scores = [each.metrics["test_accuracy"][-1] for each in (plain, warmed)]
    assert scores[0] == pytest.approx(scores[1]) and scores[0] > 0.3


def test_the_local_epoch_clock_counts_a_clients_own_epochs():
    work, done = work_of(np.array([8, 8]), 8, epochs=2, steps=None), torch.tensor([0, 3])
    by_epoch = LocalOptions(lr=1.0, lr_schedule="linear", lr_clock="local_epoch")
    rates = learning_rates(by_epoch, 10, 5, done, work, None)
    assert rates.tolist() == [[1.0, 1.0], [1 / 3, 1 / 4]]
    by_round = LocalOptions(lr=1.0, lr_schedule="linear")
    assert learning_rates(by_round, 10, 5, done, work, None).tolist() == [[1 / 4, 1 / 4]] * 2
