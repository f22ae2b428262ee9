"""Muon on hidden matrices: steps of its authors' formula in numpy, and runs on any ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from convex import Run, random_labels
from on_ranks import SMALL, unlike_one_rank_though_resumed
from torch import nn

from mpifed.errors import InputError
from mpifed.testing import run_rounds

COUNTS = [37, 9, 20]
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


MLP = {"name": "mlp", "hidden": [9, 6], "activation": "tanh"}
CASES = [
    (MLP, (5,), {"1.weight", "3.weight"}),
    ("network_modules:cnn", (8, 8), {"2.weight"}),
]


@pytest.mark.parametrize(("model", "shape", "hidden"), CASES, ids=["mlp", "cnn"])
def test_two_rounds_are_steps_of_the_authors_formula(model, shape, hidden):
    problem = random_labels(COUNTS, shape, 4, model=model)
    run = Run("local", problem, local={**MUON, "epochs": STEPS})
    starts = [torch.from_numpy(row) for row in run.models()]
    rows = run.go(2).models()
    for client, start in enumerate(starts):
        expected = reference(run.model, start, run.clients, client, hidden, 2 * STEPS)
        for name, found in run.model.module(torch.from_numpy(rows[client])).state_dict().items():
            np.testing.assert_allclose(found, expected[name], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_client_has_the_same_bits_alone_and_among_others(dtype):
    problem = random_labels(COUNTS, (5,), 4, model=MLP)
    options = {"model": MLP, "local": {**MUON, "epochs": 2, "batch_size": 8}, "dtype": dtype}
    together, alone = (
        run_rounds("local", problem.samples, rounds=2, ranks=ranks, **options) for ranks in (1, 3)
    )
    assert together.digest == alone.digest


@pytest.mark.parametrize("head", ["layers.0", "layers.2"])
def test_what_is_masked_does_not_move(head):
    """FedBABU leaves the head as it was."""
    problem = random_labels(COUNTS, (5,), 4, model=MLP)
    run = Run("fedbabu", problem, local=MUON, head=[head])
    before = run.state
    after = run.go(2).state
    assert torch.equal(after.heads, before.heads)
    assert (after.body != before.body).all()


def test_a_model_without_hidden_matrices_is_refused():
    with pytest.raises(InputError, match=r"local\.optimizer.*'muon'.*adamw"):
        Run("local", random_labels(COUNTS), local=MUON)


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
