"""Muon on hidden matrices: steps of its authors' formula in numpy, and runs on any ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from on_ranks import SMALL, unlike_one_rank_though_resumed
from test_stepping import COUNTS, model_of, solver_of
from torch import nn

from mpifed.errors import InputError
from mpifed.federation.clients import Clients, Draws
from mpifed.local.optimizers import orthogonalised
from mpifed.models.linear import linear
from mpifed.models.mlp import mlp

LR, DECAY, B1, B2, STEPS = 0.05, 0.1, 0.9, 0.95, 3
MUON = {"optimizer": "muon", "lr": LR, "weight_decay": DECAY, "beta2": B2, "batch_size": 64}


def newton_schulz(g):
    """Jordan et al. 2024: a X + b (X X') X + c (X X')^2 X, five times, on the shorter side."""
    x = g / (np.linalg.norm(g) + 1e-7)
    x = x.T if g.shape[0] > g.shape[1] else x
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x - 4.7750 * (a @ x) + 2.0315 * (a @ (a @ x))
    return x.T if g.shape[0] > g.shape[1] else x


def stepped(parameters, gradients, kept, t, hidden):
    """One step of Muon with Nesterov's momentum for ``hidden`` tensors, and of AdamW for others."""
    for name, g in gradients.items():
        m, v = kept.setdefault(name, [0 * g, 0 * g])
        m = B1 * m + (1 - B1) * g
        if name in hidden:
            rows = len(g)
            move = newton_schulz(((1 - B1) * g + B1 * m).reshape(rows, -1)).reshape(g.shape)
            move = move * max(1, rows / (g.size / rows)) ** 0.5
        else:
            v = B2 * v + (1 - B2) * g**2
            move = m / (1 - B1**t) / (np.sqrt(v / (1 - B2**t)) + 1e-8)
        kept[name] = [m, v]
        parameters[name] = parameters[name] * (1 - LR * DECAY) - LR * move


def reference(model, row, clients, client, hidden, steps):
    """A client's model after full-batch steps; gradients are those of torch."""
    module, kept = model.module(row).double(), {}
    own = slice(*clients.shards.train.offsets[client : client + 2].tolist())
    x, y = clients.shards.train.x[own], clients.shards.train.y[own]
    for t in range(1, steps + 1):
        module.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        named = dict(module.named_parameters())
        values = {name: p.detach().numpy() for name, p in named.items()}
        stepped(values, {name: p.grad.numpy() for name, p in named.items()}, kept, t, hidden)
        for name, p in named.items():
            p.data = torch.from_numpy(values[name])
    return module.state_dict()


def mlp_of(description):
    return mlp(description, hidden=[9, 6], activation="tanh")


CASES = [
    (mlp_of, (5,), {"1.weight", "3.weight"}),
    (lambda description: model_of("cnn", {}, description), (8, 8), {"2.weight"}),
]


@pytest.mark.parametrize(("build", "shape", "hidden"), CASES, ids=["mlp", "cnn"])
def test_two_rounds_are_steps_of_the_authors_formula(make_clients, build, shape, hidden):
    clients, description = make_clients(COUNTS, shape, 4)
    model = build(description)
    solver = solver_of(model, epochs=STEPS, **MUON)
    start = torch.from_numpy(model.init(np.random.default_rng(0)))
    rows, state = start.expand(3, 1, -1), solver.init(3, 1, torch.float64)
    for round in (1, 2):
        rows, state = solver(rows, state, clients, Draws(0, round))
    for client in range(3):
        expected = reference(model, start, clients, client, hidden, 2 * STEPS)
        for name, found in model.module(rows[client, 0]).state_dict().items():
            np.testing.assert_allclose(found, expected[name], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("shape", [(8, 5), (5, 8), (6, 6)])
def test_the_iteration_moves_singular_values_near_one(shape):
    draw = np.random.default_rng(3)
    u, _, v = np.linalg.svd(draw.normal(size=shape), full_matrices=False)
    s = np.geomspace(0.02, 1, min(shape))
    found = orthogonalised(torch.from_numpy(u * s @ v)).numpy()
    moved = u.T @ found @ v.T
    np.testing.assert_allclose(moved, np.diag(np.diag(moved)), atol=1e-9)
    assert np.diag(moved).min() > 0.68 and np.diag(moved).max() < 1.14


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_client_has_the_same_bits_alone_and_among_others(make_clients, dtype):
    clients, description = make_clients(COUNTS, (5,), 4, dtype)
    model = mlp_of(description)
    solver = solver_of(model, epochs=2, **{**MUON, "batch_size": 8})
    start = torch.from_numpy(model.init(np.random.default_rng(0))).to(dtype)

    def trained(rows):
        some = Clients(clients.federation, clients.shards, np.array(rows))
        models = start.expand(len(rows), 2, -1)
        return solver(models, solver.init(len(rows), 2, dtype), some, Draws(3, 1))[0]

    together = trained([0, 1, 2])
    for client in range(3):
        assert torch.equal(trained([client])[0], together[client])


@pytest.mark.parametrize("mask", ["layers.0", "layers.2"])
def test_what_is_masked_does_not_move(make_clients, mask):
    clients, description = make_clients(COUNTS, (5,), 4)
    model = mlp_of(description)
    solver, part = solver_of(model, **MUON), model.mask([mask])
    start = torch.from_numpy(model.init(np.random.default_rng(0))).expand(3, 1, -1)
    found, state = solver(start, solver.init(3, 1, torch.float64), clients, Draws(0, 1), mask=part)
    for old, new in ((start, found), (0 * start, state.first)):
        assert torch.equal((old != new).any(0)[0], part)


def test_a_model_without_hidden_matrices_is_refused(make_clients):
    _, description = make_clients(COUNTS)
    with pytest.raises(InputError, match="no matrix before its last layer; allowed: adamw"):
        solver_of(linear(description), **MUON)


MULOCO = {
    **SMALL,
    "algorithm": "fedavg",
    "model": {"name": "mlp", "hidden": [7, 5]},
    "local.momentum": 0.0,
    "local.optimizer": "muon",
    "participation": 0.6,
}
SETTINGS = {
    "muloco": {"server_optimizer": {"name": "nesterov", "lr": 0.9, "beta": 0.8}},
    "one by one, gossip": {
        "model": "network_modules:normalised_mlp",
        "model.width": 5,
        "exchange": "gossip",
    },
}


@pytest.mark.mpi
@pytest.mark.parametrize("case", SETTINGS)
def test_files_depend_neither_on_ranks_nor_on_resumes(case, tmp_path):
    assert unlike_one_rank_though_resumed({**MULOCO, **SETTINGS[case]}, tmp_path) == []
