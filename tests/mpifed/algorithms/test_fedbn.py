"""FedBN: normalisation layers stay with the clients, all else is averaged."""

from __future__ import annotations

import copy

import network_modules
import numpy as np
import pytest
import torch
from convex import Run, clients_of
from documented_methods import after
from torch import nn

from mpifed.algorithms.global_model.fedavg import FedAvg
from mpifed.algorithms.shared_body.fedbn import FedBN
from mpifed.federation.clients import participants
from mpifed.local.options import LocalOptions
from mpifed.local.solver import LocalSolver
from mpifed.models.heads import normalisation_layers
from mpifed.models.modules import module_model

SIZES = (5, 9, 4, 7)
NORM = "2."


def problem(participation=0.5):
    draw = np.random.default_rng(0)
    xs = [draw.normal(size=(n, 3)) + i for i, n in enumerate(SIZES)]
    ys = [draw.integers(0, 2, n) for n in SIZES]
    data = clients_of(xs, ys, "classification", participation=participation)
    network = network_modules.normalised_mlp
    model = module_model(lambda: network(data[1]), (3,), (1,), dtype=torch.float64)
    return data, list(zip(xs, ys, strict=True)), model


def solver_of(model, **options):
    return LocalSolver(model, LocalOptions(**options), 10, max(SIZES), torch.device("cpu"))


def test_four_rounds_of_a_plain_torch_program():
    """Unequal clients, of whom about half take part; steps of all samples."""
    data, samples, model = problem()
    run = Run(FedBN, data, model=model, local={"lr": 0.3, "batch_size": 64, "epochs": 2})
    first = model.module(torch.from_numpy(run.deployed()[0])).state_dict()
    own = [copy.deepcopy(first) for _ in SIZES]
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
        weights = np.array(SIZES)[who] / np.array(SIZES)[who].sum()
        for k in shared if len(who) else []:
            shared[k] = sum(w * t[k] for w, t in zip(weights, trained, strict=True))
    found = run.go(4).deployed()
    for i, row in enumerate(found):
        state = model.module(torch.from_numpy(row)).state_dict()
        for k in first:
            expected = (own[i] if k.startswith(NORM) else shared)[k]
            assert torch.allclose(state[k].double(), expected.double(), atol=1e-10), k
    assert not torch.allclose(own[0]["2.running_mean"], own[1]["2.running_mean"])


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_with_one_client_it_is_fedavg(buffers, make_clients):
    clients, _ = make_clients([SIZES[1]], (3,), 2)
    model = problem()[2]
    solver = solver_of(model, batch_size=4, buffers=buffers)
    method, plain = FedBN(model, solver), FedAvg(model, solver)
    found, expected = (after(m, clients, 3, torch.float64) for m in (method, plain))
    assert torch.equal(method.joined(found.body, found.heads)[0], expected.model)


def test_what_is_sent_has_no_numbers_of_normalisation():
    _, _, model = problem()
    method = FedBN(model, solver_of(model))
    # Scale, shift, running mean and variance of five units, and the counter of batches.
    assert method.payload() == model.n_parameters - 4 * 5 - 1


def test_which_layers_normalise():
    def build():
        layers = [nn.Linear(3, 4), nn.GroupNorm(2, 4), nn.BatchNorm1d(4), nn.LayerNorm(4)]
        return nn.Sequential(*layers, nn.LayerNorm(4, elementwise_affine=False), nn.Linear(4, 1))

    model = module_model(build, (3,), (1,))
    assert normalisation_layers(model) == ["2"]
    assert normalisation_layers(model, every=True) == ["1", "2", "3"]
