"""Torch modules as models: their rows, what is found out about them, and what is refused."""

from __future__ import annotations

import h5py
import network_modules
import numpy as np
import pytest
import torch
from commands import call
from network_modules import Constants, Normalised
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import mpifed
from mpifed.federation.clients import Draws
from mpifed.local.options import LocalOptions
from mpifed.local.scoring import train_losses
from mpifed.local.solver import LocalSolver
from mpifed.models.layout import binding_of, layout_of
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
    binding_of(layout, again).fill(row)
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


def test_batch_normalisation_without_running_statistics_is_found():
    def build():
        norm = nn.BatchNorm2d(1, track_running_stats=False)
        return nn.Sequential(nn.Unflatten(1, (1, 8)), norm, nn.Flatten(), nn.Linear(64, 2))

    model = module_model(build, (8, 8), (2,))
    assert model.n_buffers == 0 and not model.deterministic


def test_small_dense_networks_are_stacked_by_default_and_others_step_alone():
    assert model_of("lazy").stepping == "stacked"
    assert model_of("cnn").stepping == "one_by_one"
    assert model_of("lstm").stepping == "one_by_one"
    wide = module_model(lambda: nn.Linear(700, 700), (700,), (700,))
    assert wide.stepping == "one_by_one"


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
        ("wrong_outputs", "gives outputs of shape (2, 7)"),
        ("untrained", "no parameters that are trained"),
        ("pair", "returns tuple; it must return one tensor"),
        ("same_module", "share a layer or parameter"),
        ("number", "which gives a int, but"),
    ],
)
def test_mistakes_get_one_sentence_with_the_remedy(name, words, tmp_path, capfd):
    run = ["digits-fedem", f"model.name=network_modules:{name}", "clients=3"]
    done = call([*run, "--output", tmp_path / "run"], capfd)
    assert done.code == 2 and len(done.messages) == 1, done.err
    assert words in done.messages[0] and len(done.messages[0]) <= 500
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("model.dropout=0.5", "local.stepping=stacked"), "allowed: auto, one_by_one"),
        (("model.name=network_modules:lstm", "local.stepping=stacked"), "vmap does not take"),
        (("model.norm=true", "algorithm=fomaml"), "computes gradients of whole risks"),
        (("local.optimizer=adam", "local.momentum=0.9"), "local.momentum is 0.9"),
        (("local.beta1=0.5",), "local.beta1 is 0.5"),
        (("model.norm=true", "compression=quantise"), "variances could become negative"),
        (
            ("model.norm=true", "participation={name: uniform, fraction: 0.5, weights: unbiased}"),
            "participation.weights is 'unbiased'",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(words, message, tmp_path, capfd):
    run = ["digits-fedem", "model.name=network_modules:cnn", *words, "clients=3"]
    done = call([*run, "--output", tmp_path / "run"], capfd)
    assert done.code == 2 and message in done.messages[0]
    assert not (tmp_path / "run").exists()
