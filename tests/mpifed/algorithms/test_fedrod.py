"""FedRoD: a generic model on the balanced softmax loss, personal heads on empirical risks."""

from __future__ import annotations

import copy

import network_modules
import numpy as np
import pytest
import torch
from convex import Run, clients_of
from numpy_mlp import present
from server_rounds import after
from torch import nn

from mpifed.algorithms.fedavg.fedrod import log_counts
from mpifed.data.base import Description
from mpifed.exchange.server import Server
from mpifed.federation.clients import Clients, Draws, participants
from mpifed.local.options import LocalOptions
from mpifed.local.solver import LocalSolver
from mpifed.models.heads import normalisation_layers
from mpifed.models.linear import linear
from mpifed.models.mlp import mlp
from mpifed.models.modules import module_model

SIZES = (5, 9, 4, 7)


def solver_of(model, longest=40, **options):
    return LocalSolver(model, LocalOptions(**options), 10, longest, torch.device("cpu"))


def labelled(xs, ys, n_classes, participation=1.0):
    """Clients with the given samples, and the description of data of so many classes."""
    clients, about = clients_of(xs, ys, "classification", participation)
    counts = about.n_train
    return clients, Description(
        "test", about.input_shape, n_classes, counts, 0 * counts, 0 * counts
    )


def test_without_inputs_the_generic_model_is_uniform_and_the_personal_ones_are_frequencies():
    """softmax(b + log n_m) = n_m / n_m. at b = 0, whatever the client; log n_m is the best phi."""
    labels = [[0, 1, 2, 2], [0, 0, 0, 1, 2], [0, 1, 1, 1, 1, 2]]
    data = labelled([np.zeros((len(y), 1)) for y in labels], [np.array(y) for y in labels], 3)
    model = linear(data[1])
    run = Run("fedrod", data, model=model, local={"lr": 1.0, "epochs": 5}).go(60)
    generic = torch.softmax(run.state.model[0, -3:], 0)
    assert generic.numpy() == pytest.approx(1 / 3, abs=1e-9)
    found = torch.softmax(torch.from_numpy(run.models()[:, -3:]), 1)
    shares = [np.bincount(y, minlength=3) / len(y) for y in labels]
    assert found.numpy() == pytest.approx(np.array(shares), abs=1e-9)


def torch_network(row):
    network = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    nn.utils.vector_to_parameters(torch.from_numpy(row.copy()), network.parameters())
    return network


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_four_rounds_of_a_plain_torch_program(weight_decay):
    """Unequal clients, about half of whom take part; one lacks a label, whose log n is -inf."""
    draw = np.random.default_rng(0)
    samples = [(draw.normal(size=(n, 2)), draw.integers(0, 3, n)) for n in SIZES]
    samples[1] = samples[1][0], samples[1][1] % 2
    data = labelled(*map(list, zip(*samples, strict=True)), 3, 0.5)
    model = mlp(data[1], hidden=[3], activation="tanh")
    local = {"lr": 0.3, "batch_size": 64, "epochs": 2, "weight_decay": weight_decay}
    run = Run("fedrod", data, model=model, local=local)
    shared, heads = run.state.model[0].numpy(), np.zeros((4, 12))
    took = set()
    for round in range(1, 5):
        who, weights = present(data[0], round)
        trained = []
        for i in who:
            network, head = torch_network(shared), torch_network(shared)[2]
            nn.utils.vector_to_parameters(torch.from_numpy(heads[i].copy()), head.parameters())
            x, y = map(torch.from_numpy, samples[i])
            prior = torch.bincount(y, minlength=3).double().log()
            for _ in range(2):
                steps = torch.optim.SGD(
                    [*network.parameters(), *head.parameters()], 0.3, weight_decay=weight_decay
                )
                body, generic = network[:2](x), network(x)
                balanced = nn.functional.cross_entropy(generic + prior, y)
                personal = generic.detach() + head(body.detach())
                (balanced + nn.functional.cross_entropy(personal, y)).backward()
                steps.step()
                steps.zero_grad()
            trained.append(nn.utils.parameters_to_vector(network.parameters()).detach().numpy())
            heads[i] = nn.utils.parameters_to_vector(head.parameters()).detach().numpy()
            took.add(i)
        if len(who):
            shared = weights @ np.array(trained)
    run.go(4)
    assert 1 in took
    assert run.state.model[0].numpy() == pytest.approx(shared, abs=1e-12)
    assert run.state.heads[:, 0].numpy() == pytest.approx(heads, abs=1e-12)
    both = np.tile(shared, (4, 1))
    both[:, -12:] += heads
    assert run.models() == pytest.approx(both, abs=1e-12)


def torch_hypernetwork(numbers):
    """U is stored by its columns, and so is V."""
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 12)).double()
    u, b, v, c = torch.from_numpy(numbers.copy()).split([12, 4, 48, 12])
    parts = u.view(3, 4).T, b, v.view(4, 12).T, c
    for parameter, part in zip(network.parameters(), parts, strict=True):
        parameter.data = part.clone()
    return network


def test_four_rounds_of_a_plain_torch_program_with_a_hypernetwork():
    """Clients as above."""
    draw = np.random.default_rng(0)
    samples = [(draw.normal(size=(n, 2)), draw.integers(0, 3, n)) for n in SIZES]
    samples[1] = samples[1][0], samples[1][1] % 2
    data = labelled(*map(list, zip(*samples, strict=True)), 3, 0.5)
    model = mlp(data[1], hidden=[3], activation="tanh")
    local = {"lr": 0.3, "batch_size": 64, "epochs": 2, "weight_decay": 0.1}
    run = Run("fedrod_hyper", data, model=model, local=local, hyper_width=4)
    shared, nu = run.state.model[0].numpy(), run.state.hyper[0].numpy()
    assert run.models() == pytest.approx(np.tile(shared, (4, 1)), abs=1e-15)
    a = [np.bincount(y, minlength=3) / len(y) for _, y in samples]
    for round in range(1, 5):
        who, weights = present(data[0], round)
        trained = []
        for i in who:
            network, hyper = torch_network(shared), torch_hypernetwork(nu)
            x, y = map(torch.from_numpy, samples[i])
            steps = torch.optim.SGD(
                [*network.parameters(), *hyper.parameters()], 0.3, weight_decay=0.1
            )
            for _ in range(2):
                body, generic = network[:2](x), network(x)
                phi = hyper(torch.from_numpy(a[i]))
                personal = generic.detach() + body.detach() @ phi[:9].view(3, 3).T + phi[9:]
                prior = torch.bincount(y, minlength=3).double().log()
                losses = [nn.functional.cross_entropy(z, y) for z in (generic + prior, personal)]
                sum(losses).backward()
                steps.step()
                steps.zero_grad()
            u, b, v, c = hyper.parameters()
            parts = [*network.parameters(), u.T, b, v.T, c]
            trained.append(torch.cat([part.detach().reshape(-1) for part in parts]).numpy())
        if len(who):
            both = weights @ np.array(trained)
            shared, nu = both[: len(shared)], both[len(shared) :]
    run.go(4)
    assert run.state.model[0].numpy() == pytest.approx(shared, abs=1e-12)
    assert run.state.hyper[0].numpy() == pytest.approx(nu, abs=1e-12)
    heads = torch_hypernetwork(nu)(torch.from_numpy(np.array(a))).detach().numpy()
    rows = np.tile(shared, (4, 1))
    rows[:, -12:] += heads
    assert run.models() == pytest.approx(rows, abs=1e-12)
    assert np.ptp(heads, axis=0).max() > 1e-3


def test_a_hypernetwork_gives_unseen_clients_heads_by_their_labels(make_clients):
    """With one output: two labels. Equal shares give equal heads; without samples they are half."""
    clients, about = make_clients([8, 4, 2, 0], (3,), 2, dtype=torch.float32)
    clients.shards.train.y[:] = torch.tensor([0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 1, 0, 1, 0])
    method = FedRoDHyper(mlp(about), solver_of(mlp(about), batch_size=4, lr=0.5), hyper_width=3)
    state = after(method, clients, 3, torch.float32)
    exchange, draws = Server(clients.federation, 0), Draws(0, 3)
    found = method.adapt(state, clients, exchange, draws).parameters
    heads = found - state.model
    assert torch.equal(heads[0], heads[1]) and not torch.equal(heads[0], heads[2])
    assert torch.equal(heads[2], heads[3])
    assert heads[..., ~method.two.head].abs().max() == 0
    for i in range(4):
        alone = Clients(clients.federation, clients.shards, np.array([i]))
        assert torch.equal(method.adapt(state, alone, exchange, draws).parameters[0], found[i])


@pytest.mark.parametrize("network", ["mlp", "normalised"])
def test_where_labels_are_equally_many_the_generic_model_is_that_of_fedavg(network, make_clients):
    """Bit for bit, running statistics included: each step moves them once."""
    clients, about = make_clients([20, 8, 30], (3,), 2, dtype=torch.float32)
    clients.shards.train.y[:] = torch.arange(58) % 2
    if network == "mlp":
        model = mlp(about)
    else:
        model = module_model(lambda: network_modules.normalised_mlp(about), (3,), (1,))
    solver = solver_of(model, batch_size=8, epochs=2, momentum=0.9)
    method = FedRoD(model, solver)
    hyper = FedRoDHyper(model, solver)
    found, plain, third = (
        after(m, clients, 3, torch.float32) for m in (method, FedAvg(model, solver), hyper)
    )
    assert torch.equal(found.model, plain.model) and torch.equal(third.model, plain.model)
    assert found.heads.abs().max() > 0.01
    unseen = method.adapt(found, clients, Server(clients.federation, 0), Draws(0, 3)).parameters
    assert torch.equal(unseen, plain.model)


def test_logarithms_of_counts(make_clients):
    clients, _ = make_clients([4, 2, 5], (3,), 3)
    clients.shards.train.y[:] = torch.tensor([0, 0, 0, 1, 2, 2, 0, 1, 2, 2, 1])
    some = Clients(clients.federation, clients.shards, np.array([0, 2]))
    found = log_counts(some, 3, torch.zeros(1, dtype=torch.float64)).exp()[:, 0]
    assert found.numpy() == pytest.approx(np.array([[0.75, 0.25, 0], [0.2, 0.4, 0.4]]), abs=1e-15)
    clients.shards.train.y.clamp_(max=1)
    odds = log_counts(some, 1, torch.zeros(1, dtype=torch.float64)).exp()[:, 0, 0]
    assert odds.numpy() == pytest.approx([1 / 3, 4])


# FedBN: normalisation layers stay with the clients, all else is averaged.


SIZES_FEDBN = (5, 9, 4, 7)
NORM = "2."


def problem(participation=0.5):
    draw = np.random.default_rng(0)
    xs = [draw.normal(size=(n, 3)) + i for i, n in enumerate(SIZES_FEDBN)]
    ys = [draw.integers(0, 2, n) for n in SIZES_FEDBN]
    data = clients_of(xs, ys, "classification", participation=participation)
    network = network_modules.normalised_mlp
    model = module_model(lambda: network(data[1]), (3,), (1,), dtype=torch.float64)
    return data, list(zip(xs, ys, strict=True)), model


def solver_of_fedbn(model, **options):
    return LocalSolver(model, LocalOptions(**options), 10, max(SIZES_FEDBN), torch.device("cpu"))


def test_four_rounds_of_a_plain_torch_program_of_fedbn():
    """Unequal clients, of whom about half take part; steps of all samples."""
    data, samples, model = problem()
    run = Run("fedbn", data, model=model, local={"lr": 0.3, "batch_size": 64, "epochs": 2})
    first = model.module(torch.from_numpy(run.models()[0])).state_dict()
    own = [copy.deepcopy(first) for _ in SIZES_FEDBN]
    shared = copy.deepcopy(first)
    federation = run.clients.federation
    for round in range(1, 5):
        who = np.flatnonzero(participants(federation, 0.5, 0, round))
        trained = []
        for i in who:
            start = {k: (own[i] if k.startswith(NORM) else shared)[k] for k in shared}
            network = network_modules.normalised_mlp(data[1]).double().train()
            network.load_state_dict(start)
            steps = torch.optim.SGD(network.parameters(), lr=0.3)
            x, y = (torch.from_numpy(part).double() for part in samples[i])
            for _ in range(2):
                steps.zero_grad()
                nn.functional.binary_cross_entropy_with_logits(network(x)[:, 0], y).backward()
                steps.step()
            own[i] = copy.deepcopy(network.state_dict())
            trained.append(own[i])
        weights = np.array(SIZES_FEDBN)[who] / np.array(SIZES_FEDBN)[who].sum()
        for k in shared if len(who) else []:
            shared[k] = sum(w * t[k] for w, t in zip(weights, trained, strict=True))
    found = run.go(4).models()
    for i, row in enumerate(found):
        state = model.module(torch.from_numpy(row)).state_dict()
        for k in first:
            expected = (own[i] if k.startswith(NORM) else shared)[k]
            assert torch.allclose(state[k].double(), expected.double(), atol=1e-10), k
    assert not torch.allclose(own[0]["2.running_mean"], own[1]["2.running_mean"])


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_with_one_client_it_is_fedavg(buffers, make_clients):
    clients, _ = make_clients([SIZES_FEDBN[1]], (3,), 2)
    model = problem()[2]
    solver = solver_of_fedbn(model, batch_size=4, buffers=buffers)
    method, plain = FedBN(model, solver), FedAvg(model, solver)
    found, expected = (after(m, clients, 3, torch.float64) for m in (method, plain))
    assert torch.equal(method.joined(found.body, found.heads)[0], expected.model)


def test_what_is_sent_has_no_numbers_of_normalisation():
    _, _, model = problem()
    method = FedBN(model, solver_of_fedbn(model))
    # Scale, shift, running mean and variance of five units, and the counter of batches.
    assert method.payload() == model.n_parameters - 4 * 5 - 1


def test_which_layers_normalise():
    def build():
        layers = [nn.Linear(3, 4), nn.GroupNorm(2, 4), nn.BatchNorm1d(4), nn.LayerNorm(4)]
        return nn.Sequential(*layers, nn.LayerNorm(4, elementwise_affine=False), nn.Linear(4, 1))

    model = module_model(build, (3,), (1,))
    assert normalisation_layers(model) == ["2"]
    assert normalisation_layers(model, every=True) == ["1", "2", "3"]
