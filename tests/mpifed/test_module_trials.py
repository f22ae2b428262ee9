"""Modules that are unusual: what a trial finds out about them, and that they train as in torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from commands import call
from torch import nn

from mpifed.errors import InputError
from mpifed.federation.clients import Draws
from mpifed.local.adjustments import Shift
from mpifed.local.options import LocalOptions
from mpifed.local.solver import LocalSolver
from mpifed.models.linear import Linear
from mpifed.models.mlp import Mlp
from mpifed.models.modules import module_model


class Base(nn.Module):
    """A layer without and a layer with three outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.body(x).relu())


class Tied(Base):
    """A layer that is used twice, under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Linear(6, 6)
        self.again.weight = self.body.weight

    def forward(self, x):
        return self.head(self.again(self.body(x).relu()))


class NormalisedTwice(Base):
    """One layer of batch normalisation, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x):
        return super().forward(self.norm(self.body(self.norm(x))))


class Replaced(Base):
    """A buffer that is replaced, not changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return super().forward(x - self.mean)


class Centred(Base):
    """What a sample gives depends on the others of its batch."""

    def forward(self, x):
        return super().forward(x - x.mean(0))


class Branching(Base):
    """A branch on values."""

    def forward(self, x):
        z = super().forward(x)
        return z if z.sum() > 0 else 2 * z


class InPlace(Base):
    """Outputs written into a new tensor."""

    def forward(self, x):
        z = torch.zeros(len(x), 6, dtype=x.dtype)
        z[:] = self.body(x)
        return self.head(z)


class Frozen(Base):
    def __init__(self) -> None:
        super().__init__()
        self.body.requires_grad_(False)


class Counting(Base):
    """Counts its calls, in evaluation too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return super().forward(x) / self.calls


class Instances(Base):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm1d(2, affine=True, track_running_stats=True)

    def forward(self, x):
        return super().forward(self.norm(x.unflatten(1, (2, 3))).flatten(1))


def model_of(build, **options):
    return module_model(build, (6,), (3,), **options)


def row_of(model, dtype=torch.float64):
    return torch.from_numpy(model.init(np.random.default_rng(0))).to(dtype)


UNUSUAL = [Tied, NormalisedTwice, Replaced, Centred, Branching, InPlace, Frozen, Instances]


@pytest.mark.parametrize("samples", [7, 1])
@pytest.mark.parametrize("build", UNUSUAL)
def test_unusual_modules_train_as_in_torch(make_clients, build, samples):
    """Three steps in float64; one sample alone too, but for batches that need two."""
    if samples == 1 and build is NormalisedTwice:
        samples = 2
    clients, _ = make_clients([samples], (6,), 3)
    model = model_of(build, dtype=torch.float64)
    row, train = row_of(model), clients.shards.train
    module = model.module(row).train()
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(train.x), train.y).backward()
        optimizer.step()
    solver = LocalSolver(
        model, LocalOptions(steps=3, batch_size=8), 10, samples, torch.device("cpu")
    )
    start = row.view(1, 1, -1)
    trained, _ = solver(start, solver.init(1, 1, torch.float64), clients, Draws(0, 1))
    assert np.allclose(trained[0, 0].numpy(), model.layout.row(module), atol=1e-12)
    assert not np.allclose(trained[0, 0].numpy(), row.numpy(), atol=1e-4)


@pytest.mark.parametrize("build", UNUSUAL)
def test_what_cannot_be_stacked_steps_alone_by_default(build):
    expected = "stacked" if build in (Tied, Frozen) else "one_by_one"
    assert model_of(build).stepping == expected


def test_evaluation_changes_no_buffer_of_the_state():
    model = model_of(Counting)
    row, x = row_of(model, torch.float32), torch.rand(4, 6)
    before = row.clone()
    first = model.shared_logits(row[None], x)
    assert torch.equal(row, before) and torch.equal(model.shared_logits(row[None], x), first)


def test_a_lazy_layer_without_parameters_is_completed():
    def build():
        return nn.Sequential(nn.LazyBatchNorm1d(affine=False), nn.Linear(6, 3))

    assert model_of(build).n_buffers == 6 + 6 + 1


def test_frozen_layers_follow_the_type_of_stacked_rows():
    model = model_of(Frozen, dtype=torch.float64)
    rows = row_of(model).expand(2, -1)
    x, y = torch.rand(2, 4, 6, dtype=torch.float64), torch.zeros(2, 4, dtype=torch.int64)
    found = model.gradient(rows, x, y, torch.full((2, 4), 0.25, dtype=torch.float64))
    assert found.dtype == torch.float64 and found.isfinite().all()


def test_autocast_is_applied_to_small_dense_networks_too(make_clients):
    clients, _ = make_clients([16], (6,), 3, torch.float32)
    found = []
    for cast in (None, torch.bfloat16):
        model = model_of(Base, autocast=cast)
        solver = LocalSolver(model, LocalOptions(), 10, 16, torch.device("cpu"))
        start = row_of(model, torch.float32).view(1, 1, -1)
        trained, _ = solver(start, solver.init(1, 1, torch.float32), clients, Draws(0, 1))
        assert trained.dtype == torch.float32
        found.append(trained)
    assert not torch.equal(*found) and torch.allclose(*found, atol=1e-2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("dtype=float64",), "local.autocast is 'bfloat16', which torch does not apply"),
        (("local.stepping=stacked",), "computes in bfloat16"),
    ],
)
def test_autocast_is_refused_where_it_would_not_apply(words, message, tmp_path, capfd):
    run = [
        "digits-fedem",
        "model.name=network_modules:lazy",
        "local.autocast=bfloat16",
        "clients=3",
    ]
    done = call([*run, *words, "--output", tmp_path / "run"], capfd)
    assert done.code == 2 and message in done.messages[0], done.err


def test_masks_of_models_with_formulas():
    assert Linear(3, 2).mask(["bias"]).tolist() == 6 * [False] + 2 * [True]
    layered = Mlp((3, 4, 2))
    assert layered.mask(["layers.1"]).tolist() == 16 * [False] + 10 * [True]
    with pytest.raises(InputError, match="allowed: weight"):
        Linear(3, 2, bias=False).mask(["bias"])


@pytest.mark.parametrize("stepping", ["stacked", "one_by_one"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_moments_of_what_is_masked_do_not_change(make_clients, optimizer, stepping):
    clients, _ = make_clients([9, 4], (6,), 3)
    model = model_of(Base, dtype=torch.float64)
    momentum = 0.9 if optimizer == "sgd" else 0.0
    options = LocalOptions(
        optimizer=optimizer, momentum=momentum, weight_decay=0.1, batch_size=4, stepping=stepping
    )
    solver = LocalSolver(model, options, 10, 9, torch.device("cpu"))
    start, mask = row_of(model).expand(2, 1, -1), model.mask(["head"])
    _, before = solver(start, solver.init(2, 1, torch.float64), clients, Draws(0, 1))
    _, after = solver(start, before, clients, Draws(0, 2), mask=mask)
    for old, new in zip(solver.rule.moments(before), solver.rule.moments(after), strict=True):
        assert torch.equal((old != new).any(0)[0], mask)


@pytest.mark.parametrize("clock", ["round", "local_epoch"])
@pytest.mark.parametrize("effort", [None, [0.3, 1.0, 0.6]])
def test_total_rates_are_what_a_constant_gradient_moves(make_clients, clock, effort):
    """On inputs of zeros the weights feel the shift alone; the last client has one sample."""
    clients, _ = make_clients([20, 7, 1])
    clients.shards.train.x.zero_()
    if effort is not None:
        clients = type(clients)(clients.federation, clients.shards, clients.rows, np.array(effort))
    model = Linear(5, 1)
    options = LocalOptions(
        steps=9, batch_size=4, lr_schedule="cosine", lr_clock=clock, weight_decay=0.0
    )
    solver = LocalSolver(model, options, 10, 20, torch.device("cpu"))
    start, shift = torch.zeros(3, 1, 6, dtype=torch.float64), torch.ones(1, 1, 6)
    state = solver.init(3, 1, torch.float64)
    for round in (1, 2):
        scale = np.array([1.0, 2.0, 3.0])
        total = solver.total_rates(state, clients, Draws(0, round), scale)
        trained, state = solver(
            start, state, clients, Draws(0, round), step_scale=scale, adjustments=[Shift(shift)]
        )
        assert torch.allclose(-trained[:, 0, 0], total, atol=1e-12)
