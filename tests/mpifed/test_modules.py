"""Torch modules as models: their rows, what is found out about them, and what is refused."""

from __future__ import annotations

import h5py
import mistaken_modules as mistakes
import network_modules
import numpy as np
import pytest
import torch
from commands import call
from network_cases import data
from network_modules import Constants, Normalised
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import mpifed
from mpifed.errors import InputError
from mpifed.federation.clients import Draws
from mpifed.local.adjustments import Shift
from mpifed.local.options import LocalOptions
from mpifed.local.scoring import train_losses
from mpifed.local.solver import LocalSolver
from mpifed.models.layout import layout_of
from mpifed.models.linear import Linear
from mpifed.models.mlp import Mlp
from mpifed.models.modules import module_model


def model_of(name: str, **options):
    class About:
        n_outputs = 10

    return module_model(lambda: getattr(network_modules, name)(About, **options), (8, 8), (10,))


def row_of(model, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(model.init(np.random.default_rng(seed)))


def test_a_row_has_parameters_then_running_statistics():
    model = model_of("cnn", norm=True)
    # Convolution 6 x 1 x 3 x 3 + 6, normalisation 2 x 6, head 54 x 10 + 10.
    assert model.n_parameters - model.n_buffers == 54 + 6 + 12 + 550
    assert model.n_buffers == 6 + 6 + 1
    assert torch.equal(row_of(model)[-13:], torch.tensor([0.0] * 6 + [1.0] * 6 + [0.0]).double())


@pytest.mark.parametrize("name", ["cnn", "lstm", "normalised", "constants", "lazy"])
def test_a_row_makes_the_module_again(name):
    model = model_of(name)
    row = row_of(model).float()
    module = model.module(row)
    x = torch.rand(5, 8, 8)
    with torch.no_grad():  # recurrences have another kernel for training
        assert torch.equal(model.shared_logits(row[None], x)[0], module(x))
    assert np.array_equal(model.layout.row(module), row.double().numpy())


def test_kernels_are_stored_with_channels_last_and_given_back_as_torch_has_them():
    module = nn.Conv2d(2, 3, 2)
    layout = layout_of(module)
    row = torch.from_numpy(layout.row(module))
    assert torch.equal(row[:2], module.weight[0, :, 0, 0].double())
    again = nn.Conv2d(2, 3, 2).double()
    layout.fill(again, row)
    assert torch.equal(again.weight, module.weight.double())


def test_what_is_not_trained_is_no_part_of_a_row_and_is_the_same_for_all_components():
    model = model_of("constants")
    assert model.n_parameters == 16 * 10 + 10
    first, second = (model.module(row_of(model, seed).float()) for seed in (0, 1))
    assert isinstance(first, Constants) and isinstance(second, Constants)
    assert torch.equal(first.projection.weight, second.projection.weight)
    assert torch.equal(first.mask, second.mask)
    assert not torch.equal(first.head.weight, second.head.weight)


@pytest.mark.parametrize(
    ("name", "options", "deterministic", "stackable"),
    [
        ("cnn", {}, True, True),
        ("cnn", {"dropout": 0.5}, False, False),
        ("cnn", {"norm": True}, False, False),
        ("normalised", {}, False, False),
        ("lstm", {}, True, False),
        ("lazy", {}, True, True),
    ],
)
def test_dropout_and_batch_normalisation_are_found(name, options, deterministic, stackable):
    model = model_of(name, **options)
    assert model.deterministic is deterministic
    assert ("stacked" in model.steppings) is stackable


def test_a_gradient_alone_is_that_of_autograd_and_running_statistics_move_as_torchs():
    model = model_of("normalised")
    row = row_of(model).float()
    module = model.module(row).train()
    x, y = torch.rand(9, 8, 8), torch.arange(9)
    gradient = torch.empty(model.n_parameters - model.n_buffers)
    with model.training(row, gradient) as compute:
        compute(x, y, torch.full((9,), 1 / 9))
    nn.functional.cross_entropy(module(x), y).backward()
    assert isinstance(module, Normalised)
    expected = torch.cat([p.grad.flatten() for p in module.parameters()])
    assert torch.equal(gradient, expected)
    assert np.array_equal(model.layout.row(module), row.double().numpy())
    assert (
        module.norm.num_batches_tracked == 1
        and module.norm.num_batches_tracked.dtype == torch.int64
    )


def test_several_layers_of_batch_normalisation_are_differentiated():
    def build():
        layers = (nn.BatchNorm1d(3), nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        return nn.Sequential(*layers)

    model = module_model(build, (3,), (2,))
    row = row_of(model).float()
    module = model.module(row).train()
    gradient = torch.empty(model.n_parameters - model.n_buffers)
    x, y = torch.rand(6, 3), torch.arange(6) % 2
    with model.training(row, gradient) as compute:
        for _ in range(2):
            compute(x, y, torch.full((6,), 1 / 6))
    for _ in range(2):
        module.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
    assert torch.equal(gradient, torch.cat([p.grad.flatten() for p in module.parameters()]))
    assert np.array_equal(model.layout.row(module), row.double().numpy())


@pytest.mark.parametrize("stepping", ["stacked", "one_by_one"])
def test_a_layer_that_changes_its_inputs_does_not_change_the_data(make_clients, stepping):
    clients, description = make_clients([9, 5], (8, 8), 10)
    found = []
    for name in ("in_place", "not_in_place"):
        model = module_model(
            lambda name=name: getattr(network_modules, name)(description), (8, 8), (10,)
        )
        options = LocalOptions(batch_size=4, stepping=stepping)
        solver = LocalSolver(model, options, 1, 9, torch.device("cpu"))
        start = row_of(model).expand(2, 1, -1)
        before = clients.shards.train.x.clone()
        losses = train_losses(model, start[0], clients.shards.train, clients.rows)
        trained, _ = solver(start, solver.init(2, 1, torch.float64), clients, Draws(0, 1))
        assert torch.equal(clients.shards.train.x, before)
        found.append((losses, trained))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_a_server_that_takes_steps_of_adam_averages_running_statistics(tmp_path):
    result = mpifed.run(
        "digits-fedem",
        rounds=8,
        clients=3,
        output=tmp_path / "run",
        quiet=True,
        algorithm="fedadam",
        **{"model.name": "network_modules:cnn", "model.norm": True},
    )
    assert np.isfinite(result.metrics["test_loss"]).all()
    with h5py.File(tmp_path / "run/checkpoints/round-000008.h5") as file:
        buffers = file["server/model"][0, -13:]
    assert (buffers[6:12] > 0).all()


def test_one_sample_alone_is_normalised_by_the_running_statistics():
    model = model_of("normalised")
    row = row_of(model).float()
    module = model.module(row)
    gradient = torch.empty(model.n_parameters - model.n_buffers)
    x, y = torch.rand(1, 8, 8), torch.tensor([3])
    before = row.clone()
    with model.training(row, gradient) as compute:
        compute(x, y, torch.ones(1))
    nn.functional.cross_entropy(module(x), y).backward()
    assert torch.equal(gradient, torch.cat([p.grad.flatten() for p in module.parameters()]))
    assert torch.equal(row, before)


def test_stacked_convolutions_are_the_groups_of_one():
    model, rows = model_of("cnn"), 5
    groups = []

    class Look(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function is torch.ops.aten.convolution.default:
                groups.append(args[8])
            elif function is torch.ops.aten.convolution_backward.default:
                groups.append(-args[9])
            return function(*args, **(kwargs or {}))

    parameters = torch.stack([row_of(model, seed).float() for seed in range(rows)])
    with Look():
        model.gradient(
            parameters, torch.rand(rows, 4, 8, 8), torch.zeros(rows, 4).long(), torch.ones(rows, 4)
        )
    assert groups == [rows, -rows]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("wrong_outputs", "(2, 7)"),
        ("untrained", "parameters"),
        ("same_module", "layer"),
    ],
)
def test_mistakes_get_one_sentence_with_the_remedy(name, words, tmp_path, capfd):
    run = ["digits-fedem", f"model.name=network_modules:{name}", "clients=3"]
    done = call([*run, "--output", tmp_path / "run"], capfd)
    assert done.code == 2 and len(done.messages) == 1, done.err
    assert words in done.messages[0] and len(done.messages[0]) <= 500
    assert not (tmp_path / "run").exists()


# How often a user's module is built, what is loaded of it, and names of another form.


SMALL = {"clients": 3, "rounds": 1, "algorithm": "fedavg"}


def model_of_mistakes(build):
    return module_model(lambda: build(data((8, 8))), (8, 8), (10,))


def test_lazy_layers_may_be_built_in_another_type():
    assert model_of_mistakes(mistakes.lazy_in_double).n_parameters == 650


@pytest.mark.parametrize("build", [mistakes.weight_norm, mistakes.parametrised, mistakes.Keeps])
def test_modules_whose_attributes_have_a_graph_are_trained_and_loaded(build, tmp_path):
    """Their row is as long as that of the parameters, and what is loaded is what was scored."""
    result = mpifed.run("digits-fedem", output=tmp_path / "run", **SMALL, model=build)
    trained = mpifed.load(tmp_path / "run")
    module, test = trained.client(1), trained.samples(1).test
    with torch.no_grad():
        loss = nn.functional.cross_entropy(module(test.x), test.y)
    assert float(loss) == pytest.approx(result.clients["test_loss"][1], rel=1e-5)
    own = build(data((8, 8)))
    own.load_state_dict(module.state_dict())
    with torch.no_grad():
        assert torch.allclose(own.eval()(test.x), module(test.x))


def test_statistics_are_as_before_the_trial():
    model = module_model(lambda: nn.BatchNorm1d(4), (4,), (4,))
    assert bool((model.network.running_mean == 0).all())
    assert int(model.network.num_batches_tracked) == 0


# Modules that are unusual: what a trial finds out about them, and that they train as in torch.


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


def model_of_unusual(build, **options):
    return module_model(build, (6,), (3,), **options)


def row_of_unusual(model, dtype=torch.float64):
    return torch.from_numpy(model.init(np.random.default_rng(0))).to(dtype)


UNUSUAL = [Tied, NormalisedTwice, Replaced, Centred, Branching, InPlace, Frozen, Instances]


@pytest.mark.parametrize("samples", [7, 1])
@pytest.mark.parametrize("build", UNUSUAL)
def test_unusual_modules_train_as_in_torch(make_clients, build, samples):
    """Three steps in float64; one sample alone too, but for batches that need two."""
    if samples == 1 and build is NormalisedTwice:
        samples = 2
    clients, _ = make_clients([samples], (6,), 3)
    model = model_of_unusual(build, dtype=torch.float64)
    row, train = row_of_unusual(model), clients.shards.train
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
    assert model_of_unusual(build).stepping == expected


def test_evaluation_changes_no_buffer_of_the_state():
    model = model_of_unusual(Counting)
    row, x = row_of_unusual(model, torch.float32), torch.rand(4, 6)
    before = row.clone()
    first = model.shared_logits(row[None], x)
    assert torch.equal(row, before) and torch.equal(model.shared_logits(row[None], x), first)


def test_a_lazy_layer_without_parameters_is_completed():
    def build():
        return nn.Sequential(nn.LazyBatchNorm1d(affine=False), nn.Linear(6, 3))

    assert model_of_unusual(build).n_buffers == 6 + 6 + 1


def test_frozen_layers_follow_the_type_of_stacked_rows():
    model = model_of_unusual(Frozen, dtype=torch.float64)
    rows = row_of_unusual(model).expand(2, -1)
    x, y = torch.rand(2, 4, 6, dtype=torch.float64), torch.zeros(2, 4, dtype=torch.int64)
    found = model.gradient(rows, x, y, torch.full((2, 4), 0.25, dtype=torch.float64))
    assert found.dtype == torch.float64 and found.isfinite().all()


def test_autocast_is_applied_to_small_dense_networks_too(make_clients):
    clients, _ = make_clients([16], (6,), 3, torch.float32)
    found = []
    for cast in (None, torch.bfloat16):
        model = model_of_unusual(Base, autocast=cast)
        solver = LocalSolver(model, LocalOptions(), 10, 16, torch.device("cpu"))
        start = row_of_unusual(model, torch.float32).view(1, 1, -1)
        trained, _ = solver(start, solver.init(1, 1, torch.float32), clients, Draws(0, 1))
        assert trained.dtype == torch.float32
        found.append(trained)
    assert not torch.equal(*found) and torch.allclose(*found, atol=1e-2)


def test_masks_of_models_with_formulas():
    assert Linear(3, 2).mask(["bias"]).tolist() == 6 * [False] + 2 * [True]
    layered = Mlp((3, 4, 2))
    assert layered.mask(["layers.1"]).tolist() == 16 * [False] + 10 * [True]
    with pytest.raises(InputError, match=r"'bias'.* weight"):
        Linear(3, 2, bias=False).mask(["bias"])


@pytest.mark.parametrize("stepping", ["stacked", "one_by_one"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_moments_of_what_is_masked_do_not_change(make_clients, optimizer, stepping):
    clients, _ = make_clients([9, 4], (6,), 3)
    model = model_of_unusual(Base, dtype=torch.float64)
    momentum = 0.9 if optimizer == "sgd" else 0.0
    options = LocalOptions(
        optimizer=optimizer, momentum=momentum, weight_decay=0.1, batch_size=4, stepping=stepping
    )
    solver = LocalSolver(model, options, 10, 9, torch.device("cpu"))
    start, mask = row_of_unusual(model).expand(2, 1, -1), model.mask(["head"])
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


class Mirrored(nn.Module):
    """A linear classifier that sees some samples with the other sign, in training alone."""

    def __init__(self, data, *, share: float) -> None:
        super().__init__()
        self.net, self.share = nn.Linear(64, data.n_outputs, bias=False), share
        nn.init.zeros_(self.net.weight)

    def forward(self, x):
        if self.training:
            x = torch.where(torch.rand(len(x), 1, 1) < self.share, -x, x)
        return self.net(x.flatten(1))


def test_an_augmentation_is_of_training_alone(tmp_path):
    def weights(share):
        model = {"name": f"{__name__}:Mirrored", "share": share}
        run = mpifed.run("digits-fedem", algorithm="fedavg", model=model, clients=4, rounds=2,
                         output=tmp_path / f"{share}")  # fmt: skip
        return mpifed.load(run.directory).components[0].net.weight

    plain = weights(0.0)
    assert plain.abs().max() > 0.01
    # From zero, training on -x gives -w, whose predictions of x are the opposite ones.
    assert torch.equal(weights(1.0), -plain)
    assert not torch.equal(weights(0.5).abs(), plain.abs())
