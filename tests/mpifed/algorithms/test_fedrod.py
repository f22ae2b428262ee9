"""FedRoD: a generic model on the balanced softmax loss, personal heads on empirical risks."""

from __future__ import annotations

import copy

import network_modules
import numpy as np
import pytest
import torch
from convex import Run, problem_of
from numpy_mlp import present
from torch import nn

from mpifed.dataset import alike
from mpifed.method import Clients
from mpifed.model import module_model, normalisation_layers

SIZES = (5, 9, 4, 7)


def network_of(samples, participation=1.0):
    """Clients with the given samples and a network of one tanh layer."""
    network = {"name": "mlp", "hidden": [3], "activation": "tanh"}
    return problem_of(*zip(*samples, strict=True), "classification", participation, network)


def test_without_inputs_the_generic_model_is_uniform_and_the_personal_ones_are_frequencies():
    """softmax(b + log n_m) = n_m / n_m. at b = 0, whatever the client; log n_m is the best phi."""
    labels = [[0, 1, 2, 2], [0, 0, 0, 1, 2], [0, 1, 1, 1, 1, 2]]
    xs, ys = [np.zeros((len(y), 1)) for y in labels], [np.array(y) for y in labels]
    data = problem_of(xs, ys, "classification", model="linear")
    run = Run("fedrod", data, local={"lr": 1.0, "epochs": 5}).go(60)
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
    data = network_of(samples, 0.5)
    local = {"lr": 0.3, "batch_size": 64, "epochs": 2, "weight_decay": weight_decay}
    run = Run("fedrod", data, local=local)
    shared, heads = run.state.model[0].numpy(), np.zeros((4, 12))
    took = set()
    for _ in range(4):
        who, weights = present(run)
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
        run.go()
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
    data = network_of(samples, 0.5)
    local = {"lr": 0.3, "batch_size": 64, "epochs": 2, "weight_decay": 0.1}
    run = Run("fedrod_hyper", data, local=local, hyper_width=4)
    shared, nu = run.state.model[0].numpy(), run.state.hyper[0].numpy()
    assert run.models() == pytest.approx(np.tile(shared, (4, 1)), abs=1e-15)
    a = [np.bincount(y, minlength=3) / len(y) for _, y in samples]
    for _ in range(4):
        who, weights = present(run)
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
        run.go()
    assert run.state.model[0].numpy() == pytest.approx(shared, abs=1e-12)
    assert run.state.hyper[0].numpy() == pytest.approx(nu, abs=1e-12)
    heads = torch_hypernetwork(nu)(torch.from_numpy(np.array(a))).detach().numpy()
    rows = np.tile(shared, (4, 1))
    rows[:, -12:] += heads
    assert run.models() == pytest.approx(rows, abs=1e-12)
    assert np.ptp(heads, axis=0).max() > 1e-3


def test_a_hypernetwork_gives_unseen_clients_heads_by_their_labels():
    """With one output: two labels. Equal shares give equal heads; without samples they are half."""
    xs = np.split(np.random.default_rng(0).uniform(-1, 1, (14, 3)), [8, 12, 14])
    ys = [np.array(y, int) for y in ([0, 0, 0, 1, 0, 0, 0, 1], [0, 0, 1, 0], [1, 0], [])]
    run = Run(
        "fedrod_hyper",
        problem_of(xs, ys, "classification", model={"name": "mlp", "hidden": [7]}),
        dtype="float32",
        local={"batch_size": 4, "lr": 0.5},
        hyper_width=3,
    ).go(3)
    rows = run.adapted()
    heads = rows - run.state.model.numpy()
    assert np.array_equal(heads[0], heads[1]) and not np.array_equal(heads[0], heads[2])
    assert np.array_equal(heads[2], heads[3])
    assert not heads[:, :-8].any()
    for i in range(4):
        alone = Clients(run.clients.federation, run.clients.shards, np.array([i]))
        assert np.array_equal(run.adapted(alone)[0], rows[i])


@pytest.mark.parametrize("network", ["mlp", "network_modules:normalised_mlp"])
def test_where_labels_are_equally_many_the_generic_model_is_that_of_fedavg(network):
    """Bit for bit, running statistics included: each step moves them once."""
    xs = np.split(np.random.default_rng(0).uniform(-1, 1, (58, 3)), [20, 28])
    ys = np.split(np.arange(58) % 2, [20, 28])
    problem = problem_of(xs, ys, "classification", model=network)
    how = {"dtype": "float32", "local": {"batch_size": 8, "epochs": 2, "momentum": 0.9}}
    run, plain, third = (
        Run(name, problem, **how).go(3) for name in ("fedrod", "fedavg", "fedrod_hyper")
    )
    expected = plain.state.model
    assert torch.equal(run.state.model, expected) and torch.equal(third.state.model, expected)
    assert run.state.heads.abs().max() > 0.01
    assert (run.adapted() == expected.numpy()).all()


# FedBN: normalisation layers stay with the clients, all else is averaged.


SIZES_FEDBN = (5, 9, 4, 7)
NORM = "2."


def problem(participation=0.5):
    draw = np.random.default_rng(0)
    xs = [draw.normal(size=(n, 3)) + i for i, n in enumerate(SIZES_FEDBN)]
    ys = [draw.integers(0, 2, n) for n in SIZES_FEDBN]
    network = "network_modules:normalised_mlp"
    data = problem_of(xs, ys, "classification", participation, network)
    return data, list(zip(xs, ys, strict=True))


def test_four_rounds_of_a_plain_torch_program_of_fedbn():
    """Unequal clients, of whom about half take part; steps of all samples."""
    data, samples = problem()
    run = Run("fedbn", data, local={"lr": 0.3, "batch_size": 64, "epochs": 2})
    first = run.model.module(torch.from_numpy(run.models()[0])).state_dict()
    own = [copy.deepcopy(first) for _ in SIZES_FEDBN]
    shared = copy.deepcopy(first)
    about = alike("test", (3,), 2, 4, (5, 0, 5), "classification")
    for _ in range(4):
        who = run.participants
        trained = []
        for i in who:
            start = {k: (own[i] if k.startswith(NORM) else shared)[k] for k in shared}
            network = network_modules.normalised_mlp(about).double().train()
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
        run.go()
    for i, row in enumerate(run.models()):
        state = run.model.module(torch.from_numpy(row)).state_dict()
        for k in first:
            expected = (own[i] if k.startswith(NORM) else shared)[k]
            assert torch.allclose(state[k].double(), expected.double(), atol=1e-10), k
    assert not torch.allclose(own[0]["2.running_mean"], own[1]["2.running_mean"])


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_with_one_client_it_is_fedavg(buffers):
    draw = np.random.default_rng(1)
    x, y = draw.uniform(-1, 1, (9, 3)), np.arange(9) % 2
    data = problem_of([x], [y], "classification", model="network_modules:normalised_mlp")
    local = {"batch_size": 4, "buffers": buffers}
    run, plain = (Run(name, data, local=local).go(3) for name in ("fedbn", "fedavg"))
    assert np.array_equal(run.models(), plain.models())


def test_what_is_sent_has_no_numbers_of_normalisation():
    run = Run("fedbn", problem()[0])
    # Scale, shift, running mean and variance of five units, and the counter of batches.
    assert run.algorithm.payload() == run.model.n_parameters - 4 * 5 - 1


def test_which_layers_normalise():
    def build():
        layers = [nn.Linear(3, 4), nn.GroupNorm(2, 4), nn.BatchNorm1d(4), nn.LayerNorm(4)]
        return nn.Sequential(*layers, nn.LayerNorm(4, elementwise_affine=False), nn.Linear(4, 1))

    model = module_model(build, (3,), (1,))
    assert normalisation_layers(model) == ["2"]
    assert normalisation_layers(model, every=True) == ["1", "2", "3"]
