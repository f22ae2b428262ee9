"""FedMM-OT and FedAdam on the transport benchmark, and FedAdam's identities."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mpifed.algorithms.fedavg.fedadam import FedAdam
from mpifed.algorithms.fedavg.fedavg import FedAvg
from mpifed.algorithms.fedmm.fedmm_ot import FedAdamOT, FedMMOT, batches_of
from mpifed.algorithms.fedmm.transport import (
    FlatAdam,
    TransportObjective,
    conjugate_steps,
    joint_gradient,
    omega_gradient,
)
from mpifed.data.base import Description, Shards, Split
from mpifed.exchange.server import Server
from mpifed.federation.clients import Clients, Draws
from mpifed.federation.federation import Federation, participants
from mpifed.federation.participation import Bernoulli
from mpifed.local.options import LocalOptions
from mpifed.local.solver import LocalSolver
from mpifed.models.icnn import icnn
from mpifed.models.linear import linear
from mpifed.mpi.communicator import Alone
from mpifed.optimal_transport.dataset import Transport
from mpifed.state import merge, select

CLIENTS, BATCH, LR = 4, 64, 0.02
GAMMAS = {
    "constant": [0.4, 0.4],
    "sqrt": [0.4 / 1.4**0.5, 0.4 / 2.4**0.5],
    "inverse": [1, 1 / 2],
    "inverse_kept": [1 / 2, 1 / 3],
}


class Run:
    """A method on the plane's Gaussians, round by round, with participation as the engine does."""

    def __init__(
        self, kind, participation=1.0, dtype=torch.float64, local=None, data=None, **options
    ):
        plane = {"benchmark": "gaussian", "dimension": 2, "samples": BATCH}
        data = Transport(CLIENTS, 0, Alone(), **plane, **(data or {}))
        counts, ids = data.description.n_train, np.arange(CLIENTS)
        federation = Federation(Alone(), 0 * ids, ids < 0, counts, participation)
        self.everyone = Clients(federation, data.load(ids, dtype), ids)
        self.model = icnn(data.description, hidden=[8, 8])
        chosen = LocalOptions(**{"lr": LR, "batch_size": BATCH, **(local or {})})
        solver = LocalSolver(self.model, chosen, 1, BATCH, torch.device("cpu"))
        self.method = kind(self.model, solver, pretraining=300, **options)
        self.server, self.round = Server(federation, 0), 0
        draws = Draws(0, 0)
        self.state = self.method.init(self.everyone, self.server, draws, dtype)
        self.state = self.method.prepare(self.state, self.everyone, self.server, draws)

    def go(self, rounds=1):
        federation = self.everyone.federation
        for _ in range(rounds):
            self.round += 1
            active = participants(federation, federation.participation, 0, self.round)
            rows = np.flatnonzero(active)
            clients = Clients(federation, self.everyone.shards, rows)
            channel = self.server.at(self.round, active)
            part = select(self.state, torch.from_numpy(rows), False)
            part = self.method.round(part, clients, channel, Draws(0, self.round))
            self.state = merge(self.state, part, torch.from_numpy(rows), False)
        return self

    def score(self):
        draws = Draws(0, self.round)
        return self.method.measure(self.state, self.everyone, self.server, draws)


def pooled(run, k, dtype=torch.float64):
    """All clients' samples of P and the batch of Q in the first local step of round ``k``."""
    draws = Draws(0, k)
    x = torch.cat(batches_of(run.everyone, draws, "samples 0", BATCH))
    return x, run.model.problem.sample_target(draws.stream("target 0"), BATCH, dtype)


def same(a, b, tolerance=1e-12):
    return torch.allclose(a, b, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_it_is_the_centralised_alternating_scheme_on_pooled_batches(dtype, tolerance):
    run = Run(FedMMOT, dtype=dtype)
    objective, adam = TransportObjective(run.model), FlatAdam(1e-3)
    omega = theta = run.state.omega
    kept, benchmark = adam.init(theta), run.model.problem
    for k in range(1, 6):
        omega = omega - LR * omega_gradient(objective, omega, theta, *pooled(run, k, dtype))
        omega = run.model.convexify(omega)
        generator = Draws(0, k).stream("conjugate")
        targets = [benchmark.sample_target(generator, BATCH, dtype) for _ in range(10)]
        theta, kept = conjugate_steps(objective, omega, theta, adam, kept, targets)
        run.go()
        assert same(run.state.omega, omega, tolerance)
        assert same(run.state.theta, theta, tolerance)


def test_with_everyone_control_variates_cancel():
    plain = Run(FedMMOT)
    other = Run(FedMMOT, control_variate_rate=0.5)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(other.state.variates.shape, generator=generator, dtype=torch.float64)
    other.state = replace(other.state, variates=rows, variate=rows.mean(0))
    plain.go(6)
    other.go(6)
    assert same(plain.state.omega, other.state.omega)
    assert same(other.state.variates.mean(0), other.state.variate)
    assert not same(other.state.variates, rows, 1e-3)


@pytest.mark.parametrize("participation", [0.5, Bernoulli(p=0.4)])
def test_variates_keep_their_mean_and_absent_clients_theirs(participation):
    run = Run(FedMMOT, participation, control_variate_rate=0.3, step=0.5)
    for k in range(1, 9):
        before = run.state
        run.go()
        active = participants(run.everyone.federation, participation, 0, k)
        moved = (run.state.variates != before.variates).any(1).numpy()
        assert np.array_equal(moved, active)
        assert same(run.state.variates.mean(0), run.state.variate)


def test_more_local_steps_go_further_and_the_map_improves():
    one, three = Run(FedMMOT), Run(FedMMOT, local={"steps": 3})
    start = one.score()["l2_uvp"]
    assert start == pytest.approx(69.28, rel=0.1)  # both begin near the identity
    first = one.state.omega
    one.go()
    three.go()
    assert (three.state.omega - first).norm() > 1.5 * (one.state.omega - first).norm()
    assert one.go(25).score()["l2_uvp"] < start / 2


def test_two_dimensional_gaussians_come_below_five_per_cent():
    run = Run(FedMMOT, dtype=torch.float32)
    assert run.go(50).score()["l2_uvp"] < 5


def test_fedadam_is_adam_on_the_mean_of_the_joint_gradients():
    adam = FlatAdam(0.01)
    run = Run(
        FedAdamOT, server_lr=0.01, beta1=0.9, beta2=0.999, tau=adam.epsilon, bias_correction=True
    )
    objective = TransportObjective(run.model, "w2gn")
    both = run.state.model[0]
    kept = adam.init(both)
    for k in range(1, 6):
        draws = Draws(0, k)
        y = run.model.problem.sample_target(draws.stream("target 0"), BATCH, torch.float64)
        omega, theta = both.view(2, -1)
        rows = [
            torch.cat(joint_gradient(objective, omega, theta, x, y))
            for x in batches_of(run.everyone, draws, "samples 0", BATCH)
        ]
        both, kept = adam.step(both, torch.stack(rows).mean(0), kept)
        both = torch.cat([run.model.convexify(half) for half in both.view(2, -1)])
        run.go()
        assert same(run.state.model[0], both, 1e-11)
    assert run.go(60).score()["l2_uvp"] < 50


def classification(kind, **options):
    """FedAvg or FedAdam on three small clients, without randomness: whole shards, two epochs."""
    draw = np.random.default_rng(0)
    counts = np.array([8, 8, 16])
    offsets = np.concatenate([[0], np.cumsum(counts)])
    x = torch.from_numpy(draw.normal(size=(32, 3)))
    split = Split(x, torch.from_numpy(draw.integers(0, 2, 32)), offsets)
    ids = np.arange(3)
    data = Description("test", (3,), 2, counts, 0 * counts, 0 * counts, "classification")
    model = linear(data)
    federation = Federation(Alone(), 0 * ids, ids < 0, counts)
    empty = Split(x[:0], split.y[:0], 0 * offsets)
    everyone = Clients(federation, Shards(ids, split, empty, empty), ids)
    solver = LocalSolver(
        model, LocalOptions(lr=0.1, batch_size=16, epochs=2), 10, 16, torch.device("cpu")
    )
    server, method = Server(federation, 0), kind(model, solver, **options)
    state = method.init(everyone, server, Draws(0, 0), torch.float64)
    models = [state.model]
    for k in range(1, 5):
        state = method.round(state, everyone, server.at(k, ids >= 0), Draws(0, k))
        models.append(state.model)
    return models


def test_fedadam_with_a_large_tau_is_fedavg_with_a_step():
    averaged = classification(FedAvg)
    tau = 1e8
    adapted = classification(FedAdam, beta1=0.0, beta2=0.0, server_lr=tau, tau=tau)
    for a, b in zip(averaged, adapted, strict=True):
        assert same(a, b, 1e-7)
    half = classification(FedAdam, beta1=0.0, beta2=0.0, server_lr=tau / 2, tau=tau)
    assert same(half[1] - half[0], (averaged[1] - averaged[0]) / 2, 1e-7)


def test_fedadam_without_memory_or_tau_moves_by_signs():
    averaged = classification(FedAvg)
    signs = classification(FedAdam, beta1=0.0, beta2=0.0, server_lr=0.3, tau=1e-300)
    expected = signs[0] + 0.3 * torch.sign(averaged[1] - averaged[0])
    assert same(signs[1], expected, 1e-12)


def bent(run, vector):
    """``vector`` with every fifth of the weights that must not be negative below 0."""
    vector = vector.clone()
    vector[run.model.n_skip :: 5] = -0.2
    return vector


@pytest.mark.parametrize("step", [1.0, 0.4])
def test_the_potential_moves_by_gamma_and_stays_convex(step):
    """With the options of the losses and of the server's Adam, of which all have an effect."""
    options = {"theta_objective": "w2gn", "lambda_cycle": 0.5, "cycle": "both"}
    run = Run(FedMMOT, step=step, conjugate_steps=2, conjugate_lr=0.05, **options)
    omega = bent(run, run.state.omega)
    theta = run.state.theta
    run.state = replace(run.state, omega=omega)
    objective, draws, benchmark = (
        TransportObjective(run.model, **options),
        Draws(0, 1),
        run.model.problem,
    )
    free = omega - step * LR * omega_gradient(objective, omega, theta, *pooled(run, 1))
    assert (free[run.model.n_skip :] < 0).any()
    generator, adam = draws.stream("conjugate"), FlatAdam(0.05)
    targets = [benchmark.sample_target(generator, BATCH, torch.float64) for _ in range(2)]
    expected = run.model.convexify(free)
    run.go()
    assert same(run.state.omega, expected)
    moved, _ = conjugate_steps(objective, expected, theta, adam, adam.init(theta), targets)
    assert same(run.state.theta, moved)
    assert not same(moved, theta, 0.01)


@pytest.mark.parametrize("rule", GAMMAS)
def test_the_potential_moves_by_the_gamma_of_each_round(rule):
    run = Run(FedMMOT, step_rule=rule, step=0.4)
    objective = TransportObjective(run.model)
    for k, gamma in enumerate(GAMMAS[rule], 1):
        omega, theta = run.state.omega, run.state.theta
        free = omega - gamma * LR * omega_gradient(objective, omega, theta, *pooled(run, k))
        assert same(run.go().state.omega, run.model.convexify(free))


def test_local_steps_are_gradient_steps_from_where_the_client_is_on_new_batches():
    run = Run(FedMMOT, local={"steps": 3, "batch_size": BATCH // 2})
    objective, draws, state = TransportObjective(run.model), Draws(0, 1), run.state
    rows = [state.omega] * CLIENTS
    for step in range(3):
        xs = batches_of(run.everyone, draws, f"samples {step}", BATCH // 2)
        y = run.model.problem.sample_target(
            draws.stream(f"target {step}"), BATCH // 2, torch.float64
        )
        rows = [
            row - LR * omega_gradient(objective, row, state.theta, x, y)
            for row, x in zip(rows, xs, strict=True)
        ]
    found = run.method.local_steps(state, run.everyone, draws)
    assert same(found, torch.stack(rows))


def test_fedadam_keeps_both_potentials_convex_and_takes_the_options_of_its_losses():
    options = {"lambda_cycle": 0.5, "cycle": "both"}
    run = Run(FedAdamOT, server_lr=0.01, beta1=0.0, beta2=0.0, tau=1.0, **options)
    omega, theta = (bent(run, half) for half in run.state.model.view(2, -1))
    run.state = replace(run.state, model=torch.cat([omega, theta])[None])
    objective, draws = TransportObjective(run.model, "w2gn", **options), Draws(0, 1)
    y = run.model.problem.sample_target(draws.stream("target 0"), BATCH, torch.float64)
    gradient = torch.stack(
        [
            torch.cat(joint_gradient(objective, omega, theta, x, y))
            for x in batches_of(run.everyone, draws, "samples 0", BATCH)
        ]
    ).mean(0)
    free = torch.cat([omega, theta]) - 0.01 * gradient / (gradient.abs() + 1)
    halves = free.view(2, -1)
    assert (halves[:, run.model.n_skip :] < 0).any(1).all()
    expected = torch.cat([run.model.convexify(half) for half in halves])
    assert same(run.go().state.model[0], expected)


def test_scores_are_on_the_same_points_in_every_round():
    run = Run(FedMMOT)
    first = run.score()
    run.round = 3
    assert run.score() == first


@pytest.mark.parametrize("kind", [FedMMOT, FedAdamOT])
def test_scores_divide_by_the_variance_that_the_data_name(kind):
    """The covariance [[2, 1], [1, 2]] of Q has the trace 4; its absolute entries add up to 6."""
    trace, printed = Run(kind), Run(kind, data={"target_variance": "l1"})
    assert printed.score()["l2_uvp"] * 6 == pytest.approx(trace.score()["l2_uvp"] * 4, rel=1e-12)
    assert printed.score()["cosine"] == trace.score()["cosine"]


def test_fedadam_without_bias_correction_begins_with_tau_squared():
    """x + eta m / (sqrt(v) + tau), m = (1 - beta1) D, v = beta2 tau^2 + (1 - beta2) D^2."""
    averaged = classification(FedAvg)
    adapted = classification(FedAdam, server_lr=0.3, beta1=0.9, beta2=0.8, tau=0.1)
    delta = averaged[1] - averaged[0]
    second = 0.8 * 0.1**2 + 0.2 * delta**2
    assert same(adapted[1] - adapted[0], 0.3 * 0.1 * delta / (second.sqrt() + 0.1), 1e-14)
