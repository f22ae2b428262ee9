"""FedALA: clients begin between the global model and their own, by weights that they train."""

from __future__ import annotations

import network_modules
import numpy as np
import pytest
import torch
from convex import Run, two_quadratics
from documented_methods import after
from numpy_mlp import BODY, HEAD, SIZES, descended, gradient, present, regressions

from mpifed.algorithms.global_model.fedavg import FedAvg
from mpifed.algorithms.personal.fedala import FedALA
from mpifed.federation.clients import Clients, Draws
from mpifed.local.minibatches import share_weights
from mpifed.local.options import LocalOptions
from mpifed.local.solver import LocalSolver
from mpifed.models.heads import Between
from mpifed.models.mlp import mlp
from mpifed.models.modules import module_model

WHOLE = {"lr": 0.3, "batch_size": 64, "epochs": 2}


def solver_of(model, longest=40, **options):
    return LocalSolver(model, LocalOptions(**options), 10, longest, torch.device("cpu"))


def test_clients_of_quadratics_end_at_their_own_minimisers():
    """A client's own model is nearer to its minimiser than the mean: W_i goes to 0."""
    how = {"ala_share": 1.0, "ala_lr": 0.1}
    run = Run(FedALA, two_quadratics(), local={"lr": 0.1, "epochs": 5}, **how).go(60)
    assert run.state.weights.max() == 0
    assert run.deployed()[:, 0] == pytest.approx([0, 4], abs=1e-9)


def test_without_a_head_it_is_fedavg_bit_for_bit(make_clients):
    clients, about = make_clients([37, 9, 20], (6,), 4, dtype=torch.float32)
    model = mlp(about)
    solver = solver_of(model, batch_size=8, epochs=2, momentum=0.9)
    method, plain = FedALA(model, solver, head=[]), FedAvg(model, solver)
    found, expected = (after(m, clients, 3, torch.float32) for m in (method, plain))
    assert torch.equal(found.model, expected.model)
    deployed = method.deploy(found, clients, Draws(0, 3)).parameters
    assert torch.equal(deployed, expected.model.expand(3, 1, -1))


def test_four_rounds_written_out():
    """Unequal clients, of whom about half take part; all samples in every step."""
    data, samples, model = regressions()
    how = {"ala_share": 1.0, "ala_lr": 3.0, "first_epochs": 4}
    run = Run(FedALA, data, model=model, local=WHOLE, **how)
    shared = run.state.model[0].numpy()
    own, w, rounds = {}, np.ones((len(SIZES), len(HEAD))), np.zeros(len(SIZES), int)
    clipped = 0
    for round in range(1, 7):
        who, weights = present(data[0], round)
        for i in who:
            start = shared.copy()
            if rounds[i]:
                difference = shared[HEAD] - own[i][HEAD]
                for _ in range(4 if rounds[i] == 1 else 1):
                    start[HEAD] = own[i][HEAD] + difference * w[i]
                    moved = w[i] - 3.0 * gradient(start, *samples[i])[HEAD] * difference
                    w[i] = moved.clip(0, 1)
                    clipped += (moved != w[i]).sum()
                start[HEAD] = own[i][HEAD] + difference * w[i]
            own[i] = descended(start, *samples[i], 0.3, 2)
            rounds[i] += 1
        if len(who):
            shared = weights @ np.array([own[i] for i in who])
    run.go(6)
    assert run.state.model[0].numpy() == pytest.approx(shared, abs=1e-12)
    assert run.state.weights[:, 0].numpy() == pytest.approx(w, abs=1e-12)
    assert clipped and (w < 1).any() and (rounds > 2).any()


def test_a_client_without_a_model_of_its_own_deploys_the_global_one():
    data, _, model = regressions(participation=0.25)
    run = Run(FedALA, data, model=model, local=WHOLE).go(1)
    absent = (run.state.rounds == 0).numpy()
    assert 0 < absent.sum() < len(absent)
    assert (run.deployed()[absent] == run.state.model.numpy()).all()
    # Below the head all clients take the global model.
    assert (run.deployed()[:, BODY] == run.state.model.numpy()[:, BODY]).all()


def test_evaluation_leaves_no_trace():
    data, _, model = regressions()
    plain, watched = (Run(FedALA, data, model=model, local=WHOLE) for _ in range(2))
    plain.go(3)
    for _ in range(3):
        watched.deployed()
        watched.go(1)
    assert torch.equal(plain.state.weights, watched.state.weights)
    assert torch.equal(plain.state.model, watched.state.model)


def test_a_share_of_the_samples_has_weights_with_mean_one(make_clients):
    clients, _ = make_clients([10, 3, 7])
    some = Clients(clients.federation, clients.shards, np.array([0, 2]))
    found = share_weights(some, Draws(0, 1), "share", 0.8, torch.zeros(1))[0]
    parts = np.split(found.numpy(), [10, 13])
    assert [np.count_nonzero(part) for part in parts] == [8, 0, 6]
    assert [part.mean() for part in parts] == pytest.approx([1, 0, 1])
    other = share_weights(some, Draws(0, 2), "share", 0.8, torch.zeros(1))[0]
    assert (other != found).any()


@pytest.mark.parametrize("stepping", ["stacked", "one_by_one"])
def test_gradients_of_models_between_two_are_those_of_the_chain_rule(stepping):
    _, samples, inner = regressions()
    between = Between(inner, torch.isin(torch.arange(inner.n_parameters), torch.from_numpy(HEAD)))
    draw = np.random.default_rng(1)
    w, own, other = draw.uniform(size=len(HEAD)), *draw.normal(size=(2, inner.n_parameters))
    row = between.rows_of(*(torch.from_numpy(part) for part in (w, own, other)))
    x, y = samples[1]
    difference, middle = (other - own)[HEAD], other.copy()
    middle[HEAD] = own[HEAD] + difference * w
    expected = gradient(middle, x, y)[HEAD] * difference
    ones = np.ones(len(x)) / len(x)
    data = [torch.from_numpy(part) for part in (x, y[:, None], ones)]
    if stepping == "stacked":
        found = between.gradient(row[None], *(part[None] for part in data))[0]
    else:
        found = torch.empty(between.n_parameters, dtype=torch.float64)
        with between.training(row, found) as compute:
            compute(*data)
    assert found[: len(HEAD)].numpy() == pytest.approx(expected, abs=1e-12)
    assert not found[len(HEAD) :].any()


def test_running_statistics_are_those_of_fedavg(make_clients):
    clients, about = make_clients([20, 9], (3,), 2)
    network = network_modules.normalised_mlp
    model = module_model(lambda: network(about), (3,), (1,), dtype=torch.float64)
    solver = solver_of(model, batch_size=8)
    method = FedALA(model, solver, head=["2"], ala_lr=1e-12)
    found, plain = (after(m, clients, 3, torch.float64) for m in (method, FedAvg(model, solver)))
    assert method.count == 10  # scales and shifts alone
    assert torch.allclose(found.model, plain.model, atol=1e-9)
