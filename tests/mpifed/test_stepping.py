"""Clients that step one by one are plain PyTorch scripts; both ways of stepping agree."""

from __future__ import annotations

from dataclasses import dataclass

import network_modules
import numpy as np
import pytest
import torch
from torch import nn

from mpifed.federation.clients import Clients, Draws
from mpifed.local.adjustments import Coupling, Minibatch, Proximal, Shift
from mpifed.local.minibatches import draw_orders, work_of
from mpifed.local.optimizers import WithBuffers
from mpifed.local.options import LocalOptions
from mpifed.local.solver import LocalSolver
from mpifed.models.linear import linear
from mpifed.models.mlp import mlp
from mpifed.models.modules import module_model
from mpifed.random import bits_at

COUNTS = [37, 9, 20]
OPTIMIZERS = {
    "sgd": {"lr": 0.1},
    "momentum": {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4},
    "adam": {"optimizer": "adam", "lr": 0.01, "weight_decay": 5e-4},
    "adamw": {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1, "beta1": 0.8},
}
SHARP = OPTIMIZERS | {"sharp": {"lr": 0.1, "momentum": 0.5, "sam_radius": 0.1}}
NETWORKS = {
    "cnn": ("cnn", {}),
    "norm and dropout": ("cnn", {"norm": True, "dropout": 0.4}),
    "lstm": ("lstm", {}),
}


def model_of(name, options, description):
    return module_model(
        lambda: getattr(network_modules, name)(description, **options),
        description.input_shape,
        (description.n_outputs,),
    )


def solver_of(model, **options) -> LocalSolver:
    return LocalSolver(model, LocalOptions(**options), 10, max(COUNTS), torch.device("cpu"))


def torch_optimizer(module, options: LocalOptions) -> torch.optim.Optimizer:
    common = {"lr": options.lr, "weight_decay": options.weight_decay}
    if options.optimizer == "sgd":
        return torch.optim.SGD(module.parameters(), momentum=options.momentum, **common)
    kind = torch.optim.Adam if options.optimizer == "adam" else torch.optim.AdamW
    return kind(
        module.parameters(),
        betas=(options.beta1, options.beta2),
        eps=options.epsilon,
        foreach=False,
        **common,
    )


def script(model, row, clients, client, options, draws) -> np.ndarray:
    """What a PyTorch user writes for one client; minibatches and noise are the run's."""
    module = model.module(row).to(memory_format=torch.channels_last).train()
    optimizer = torch_optimizer(module, options)
    alone = Clients(clients.federation, clients.shards, clients.rows[client : client + 1])
    work = work_of(alone.n_train, options.batch_size, options.epochs, options.steps)
    keys = draws.client_keys("minibatches", alone.ids)
    visits = draw_orders(keys, alone.starts, work, 1, "shuffled")
    noise = draws.client_keys("minibatches noise", alone.ids)
    torch.manual_seed(int(bits_at(noise, np.array([0]))[0]))
    for epoch in visits.split(int(alone.n_train[0])):
        for batch in epoch.split(options.batch_size):
            optimizer.zero_grad()
            outputs = module(clients.shards.train.x[batch])
            nn.functional.cross_entropy(outputs, clients.shards.train.y[batch]).backward()
            optimizer.step()
    return model.layout.row(module)


@pytest.mark.parametrize("how", OPTIMIZERS)
@pytest.mark.parametrize("network", NETWORKS)
def test_one_client_is_a_plain_script_bit_for_bit(make_clients, network, how):
    clients, description = make_clients(COUNTS, (8, 8), 10, torch.float32)
    model = model_of(*NETWORKS[network], description)
    options = LocalOptions(batch_size=8, epochs=2, **OPTIMIZERS[how])
    solver = LocalSolver(model, options, 10, max(COUNTS), torch.device("cpu"))
    draws = Draws(3, 1)
    start = torch.from_numpy(model.init(np.random.default_rng(0))).float()
    trained, _ = solver(start.expand(3, 1, -1), solver.init(3, 1, torch.float32), clients, draws)
    for client in range(3):
        expected = script(model, start, clients, client, options, draws)
        assert np.array_equal(trained[client, 0].double().numpy(), expected)


@pytest.mark.parametrize("how", SHARP)
def test_stacked_and_one_by_one_agree_for_a_module(make_clients, how):
    clients, description = make_clients(COUNTS, (8, 8), 10)
    model = model_of("cnn", {}, description)
    rows = np.stack([model.init(np.random.default_rng(seed)) for seed in range(6)])
    start = torch.from_numpy(rows).view(3, 2, -1)
    q = torch.rand(2, sum(COUNTS), dtype=torch.float64)
    found = []
    for stepping in ("stacked", "one_by_one"):
        options = {**SHARP[how], "batch_size": 8, "epochs": 2, "stepping": stepping}
        solver = solver_of(model, **options)
        state = solver.init(3, 2, torch.float64)
        for round in (1, 2):
            trained, state = solver(start, state, clients, Draws(3, round), weights=q)
        found.append((trained, *solver.rule.moments(state)))
    for stacked, alone in zip(*found, strict=True):
        assert torch.allclose(stacked, alone, atol=1e-10)


@pytest.mark.parametrize("make", [linear, mlp])
@pytest.mark.parametrize("how", SHARP)
def test_stepping_changes_no_bit_of_a_model_with_formulas(make_clients, make, how):
    clients, description = make_clients(COUNTS, (6,), 4, torch.float32)
    model = make(description)
    start = torch.rand(3, 2, model.n_parameters) - 0.5
    found = []
    for stepping in ("stacked", "one_by_one"):
        solver = solver_of(model, batch_size=8, stepping=stepping, **SHARP[how])
        state = solver.init(3, 2, torch.float32)
        found.append(solver(start, state, clients, Draws(0, 1))[0])
    assert torch.equal(*found)


def ascend(module, radius, train) -> None:
    """Replaces the gradients by those at theta + radius g / ||g||."""
    parameters = [p for p in module.parameters() if p.grad is not None]
    norm = torch.cat([p.grad.flatten() for p in parameters]).norm()
    moves = [radius * p.grad / norm for p in parameters]
    for sign in (1, -1):
        with torch.no_grad():
            for parameter, move in zip(parameters, moves, strict=True):
                parameter += sign * move
        if sign == 1:
            module.zero_grad()
            nn.functional.cross_entropy(module(train.x), train.y).backward()


@pytest.mark.parametrize("how", SHARP)
@pytest.mark.parametrize("stepping", ["stacked", "one_by_one"])
def test_optimizers_of_rows_are_those_of_torch(make_clients, how, stepping):
    """In float64, over two rounds, so that moments and counts of steps are kept."""
    clients, description = make_clients([16], (8, 8), 10)
    model = model_of("lazy", {}, description)
    options = LocalOptions(batch_size=16, steps=3, stepping=stepping, **SHARP[how])
    solver = LocalSolver(model, options, 10, 16, torch.device("cpu"))
    start = torch.from_numpy(model.init(np.random.default_rng(0)))
    module = model.module(start).train()
    optimizer = torch_optimizer(module, options)
    rows, state = start.expand(1, 1, -1), solver.init(1, 1, torch.float64)
    for round in (1, 2):
        rows, state = solver(rows, state, clients, Draws(0, round))
    for _ in range(6):
        optimizer.zero_grad()
        train = clients.shards.train
        nn.functional.cross_entropy(module(train.x), train.y).backward()
        if options.sam_radius:
            ascend(module, options.sam_radius, train)
        optimizer.step()
    assert np.allclose(rows[0, 0].numpy(), model.layout.row(module), atol=1e-12)


@pytest.mark.parametrize("stepping", ["stacked", "one_by_one"])
def test_a_proximal_term_is_its_gradient_and_a_shift_is_added(make_clients, stepping):
    clients, description = make_clients(COUNTS, (8, 8), 10)
    model = model_of("cnn", {}, description)
    solver = solver_of(model, lr=0.1, batch_size=64, stepping=stepping)
    start, anchor, shift = torch.rand(3, 3, 2, model.n_parameters, dtype=torch.float64)
    state = solver.init(3, 2, torch.float64)
    plain, _ = solver(start, state, clients, Draws(0, 1))
    terms = [Proximal(anchor, 0.25), Shift(shift)]
    moved, _ = solver(start, state, clients, Draws(0, 1), adjustments=terms)
    expected = plain - 0.1 * (0.25 * (start - anchor) + shift)
    assert torch.allclose(moved, expected, atol=1e-12)
    shared = [Proximal(anchor[:1, :1], 0.25), Shift(shift[:1, :1])]
    moved, _ = solver(start, state, clients, Draws(0, 1), adjustments=shared)
    expected = plain - 0.1 * (0.25 * (start - anchor[:1, :1]) + shift[:1, :1])
    assert torch.allclose(moved, expected, atol=1e-12)


@pytest.mark.parametrize("how", OPTIMIZERS)
@pytest.mark.parametrize("stepping", ["stacked", "one_by_one"])
def test_what_is_masked_does_not_move(make_clients, how, stepping):
    clients, description = make_clients(COUNTS, (8, 8), 10)
    model = model_of("cnn", {}, description)
    solver = solver_of(model, batch_size=8, stepping=stepping, **OPTIMIZERS[how])
    start = torch.rand(3, 1, model.n_parameters, dtype=torch.float64)
    mask = torch.arange(model.n_parameters) % 2 == 1
    state = solver.init(3, 1, torch.float64)
    # Moments of a phase in which all was trained must not move the masked part afterwards.
    _, state = solver(start, state, clients, Draws(0, 1))
    trained, _ = solver(start, state, clients, Draws(0, 2), mask=mask)
    moved = trained != start
    assert torch.equal(moved, mask.expand_as(moved))


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("how", OPTIMIZERS)
def test_a_frozen_layer_changes_no_bit_of_the_others(monkeypatch, make_clients, how, network):
    """Against whole gradients and updates, after which all that is not trained is restored."""
    clients, description = make_clients(COUNTS, (8, 8), 10, torch.float32)
    model = model_of(*NETWORKS[network], description)
    solvers = [
        solver_of(model, batch_size=8, epochs=2, stepping=stepping, **OPTIMIZERS[how])
        for stepping in model.steppings
    ]
    start = torch.from_numpy(model.init(np.random.default_rng(0))).float().expand(3, 2, -1)
    none = solvers[0].init(3, 2, torch.float32)
    _, state = solvers[0](start, none, clients, Draws(0, 1))
    first = model.mask([model.layout.parameters[0].name])
    last = model.mask([model.layout.parameters[-1].name.rpartition(".")[0]])

    def found() -> list[torch.Tensor]:
        rounds = [
            solver(start, state, clients, Draws(0, 2), mask=mask)
            for solver in solvers
            for mask in (last, ~last, first)
        ]
        return [t for rows, after in rounds for t in (rows, *solvers[0].rule.moments(after))]

    quick = found()
    training = type(model).training
    monkeypatch.setattr(type(model), "training", lambda *its: training(*its[:3]))
    assert all(map(torch.equal, quick, found()))


def test_gradients_of_frozen_layers_are_not_computed(make_clients, monkeypatch):
    clients, description = make_clients(COUNTS, (8, 8), 10)
    model = model_of("cnn", {}, description)
    solver = solver_of(model, batch_size=8)
    start = torch.from_numpy(model.init(np.random.default_rng(0))).expand(3, 1, -1)
    computed, backward = set(), torch.Tensor.backward

    def noted(total, inputs):
        leaves = {id(leaf) for leaf in inputs}
        computed.update(n for n, p in model.network.named_parameters() if id(p) in leaves)
        backward(total, inputs=inputs)

    monkeypatch.setattr(torch.Tensor, "backward", noted)
    state = solver.init(3, 1, torch.float64)
    solver(start, state, clients, Draws(0, 1), mask=model.mask(["8"]))
    assert computed == {"8.weight", "8.bias"}
    untouched, _ = solver(start, state, clients, Draws(0, 1), mask=model.mask([]))
    assert torch.equal(untouched, start)
    assert computed == {"8.weight", "8.bias"}
    computed.clear()
    solver(start, state, clients, Draws(0, 1), mask=model.mask(["2", "8.bias"]))
    assert computed == {"2.weight", "2.bias", "8.bias"}


def test_local_buffers_stay_with_the_client(make_clients):
    clients, description = make_clients(COUNTS, (8, 8), 10)
    model = model_of("normalised", {}, description)
    solver = solver_of(model, batch_size=8, buffers="local")
    start = torch.from_numpy(model.init(np.random.default_rng(0))).expand(1, -1)
    state = solver.init(3, 1, torch.float64)
    assert torch.equal(solver.with_statistics(start, state), start.expand(3, 1, -1))
    trained, state = solver(start.expand(3, 1, -1), state, clients, Draws(0, 1))
    assert isinstance(state, WithBuffers)
    own = solver.with_statistics(start, state)
    split = model.n_parameters - model.n_buffers
    assert torch.equal(own[..., :split], start.expand(3, 1, -1)[..., :split])
    assert torch.equal(own[..., split:], trained[..., split:])
    # The second round begins with each client's own statistics, whatever the server sends.
    again, _ = solver(start.expand(3, 1, -1), state, clients, Draws(0, 2))
    direct, _ = solver_of(model, batch_size=8)(
        own, solver_of(model).init(3, 1, torch.float64), clients, Draws(0, 2)
    )
    assert torch.equal(again, direct)


def test_a_client_alone_has_the_same_bits_among_others(make_clients):
    clients, description = make_clients(COUNTS, (8, 8), 10, torch.float32)
    model = model_of("cnn", {"norm": True, "dropout": 0.3}, description)
    solver = solver_of(model, batch_size=8, momentum=0.9)
    start = torch.from_numpy(model.init(np.random.default_rng(0))).float().expand(3, 2, -1)
    state = solver.init(3, 2, torch.float32)
    whole, _ = solver(start, state, clients, Draws(1, 5))
    for client in range(3):
        one = Clients(clients.federation, clients.shards, np.array([client]))
        alone, _ = solver(start[:1], solver.init(1, 2, torch.float32), one, Draws(1, 5))
        assert torch.equal(alone[0], whole[client])


def test_dropout_differs_between_clients_components_and_rounds_and_leaves_torchs_generator(
    make_clients,
):
    clients, description = make_clients([16, 16], (8, 8), 10)
    train = clients.shards.train
    train.x[16:], train.y[16:] = train.x[:16], train.y[:16]
    model = model_of("cnn", {"dropout": 0.5}, description)
    solver = solver_of(model, batch_size=16)
    start = torch.from_numpy(model.init(np.random.default_rng(0))).expand(2, 2, -1)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first, _ = solver(start, solver.init(2, 2, torch.float64), clients, Draws(0, 1))
    assert torch.equal(torch.rand(3), expected)
    second, _ = solver(start, solver.init(2, 2, torch.float64), clients, Draws(0, 2))
    rows = [*first.flatten(0, 1), *second.flatten(0, 1)]
    assert all(not torch.equal(a, b) for i, a in enumerate(rows) for b in rows[:i])


# Models of a client that move together, on the same minibatches, in both ways of stepping.


FEW = [37, 9, 20]
COUPLED = {
    "momentum": {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4},
    "adam": {"optimizer": "adam", "lr": 0.01},
}


class Apart(Coupling):
    """Steps every model as if there were no coupling, but on one minibatch."""

    def move(self, batch: Minibatch) -> None:
        for m in range(batch.rows.shape[1]):
            batch.step(batch.gradient(batch.rows[:, m], m), m)


@dataclass
class Twice(Coupling):
    """Two steps of the first model on each minibatch; the second one counts them, by client."""

    seen: torch.Tensor
    steps: int = 2

    def move(self, batch: Minibatch) -> None:
        for _ in range(2):
            batch.step(batch.gradient(batch.rows[:, 0], 0), 0)
        batch.rows[:, 1] += 1
        self.seen[batch.clients] += batch.number + 1


def network(name, description, **options):
    return module_model(
        lambda: getattr(network_modules, name)(description, **options),
        description.input_shape,
        (description.n_outputs,),
    )


def solver_of_models(model, **options) -> LocalSolver:
    options = {"batch_size": 8, **options}
    return LocalSolver(model, LocalOptions(**options), 10, max(FEW), torch.device("cpu"))


def rows_of(model, count, dtype=torch.float64):
    rows = np.stack([model.init(np.random.default_rng(seed)) for seed in range(3 * count)])
    return torch.from_numpy(rows).to(dtype).view(3, count, -1)


def models(make_clients, dtype=torch.float64):
    clients, description = make_clients(FEW, (8, 8), 10, dtype)
    return clients, {
        "linear": linear(description),
        "cnn": network("cnn", description),
        "norm and dropout": network("cnn", description, norm=True, dropout=0.3),
    }


CASES = [
    ("linear", "stacked"),
    ("linear", "one_by_one"),
    ("cnn", "stacked"),
    ("cnn", "one_by_one"),
    ("norm and dropout", "one_by_one"),
]


@pytest.mark.parametrize("how", COUPLED)
@pytest.mark.parametrize(("name", "stepping"), CASES)
def test_one_model_that_is_stepped_as_ever_has_the_bits_of_the_solver_alone(
    make_clients, name, stepping, how
):
    clients, found = models(make_clients, torch.float32)
    solver = solver_of_models(found[name], epochs=2, stepping=stepping, **COUPLED[how])
    start = rows_of(found[name], 1, torch.float32)
    ends = []
    for coupling in (None, Apart()):
        rows, state = start, solver.init(3, 1, torch.float32)
        for round in (1, 2):
            terms = [Proximal(start, 0.1)]
            rows, state = solver(
                rows, state, clients, Draws(3, round), adjustments=terms, coupling=coupling
            )
        ends.append((rows, *solver.rule.moments(state), torch.from_numpy(solver.rule.steps(state))))
    assert all(torch.equal(*pair) for pair in zip(*ends, strict=True))


@pytest.mark.parametrize("how", COUPLED)
def test_models_of_a_client_see_the_same_minibatches(make_clients, how):
    """Equal models remain equal; without a coupling each has minibatches of its own."""
    clients, found = models(make_clients)
    solver = solver_of_models(found["linear"], **COUPLED[how])
    start = rows_of(found["linear"], 1).expand(3, 2, -1)
    state = solver.init(3, 2, torch.float64)
    apart, _ = solver(start, state, clients, Draws(0, 1))
    together, _ = solver(start, state, clients, Draws(0, 1), coupling=Apart())
    assert not torch.equal(apart[:, 0], apart[:, 1])
    assert torch.equal(together[:, 0], together[:, 1])


@pytest.mark.parametrize("how", COUPLED)
@pytest.mark.parametrize("name", ["linear", "cnn"])
def test_both_ways_of_stepping_agree(make_clients, name, how):
    clients, found = models(make_clients)
    start, ends = rows_of(found[name], 2), []
    for stepping in ("stacked", "one_by_one"):
        solver = solver_of_models(found[name], stepping=stepping, **COUPLED[how])
        state, seen = solver.init(3, 1, torch.float64), torch.zeros(3, dtype=torch.int64)
        rows = start
        for round in (1, 2):
            rows, state = solver(rows, state, clients, Draws(3, round), coupling=Twice(seen))
        assert seen.tolist() == [2 * (1 + 2 + 3 + 4 + 5), 2 * (1 + 2), 2 * (1 + 2 + 3)]
        assert torch.allclose(
            rows[:, 1], start[:, 1] + 2 * torch.tensor([[5.0], [2], [3]]).double()
        )
        ends.append((rows[:, 0], *solver.rule.moments(state)))
    for stacked, alone in zip(*ends, strict=True):
        assert torch.allclose(stacked, alone, atol=1e-10)


def test_two_steps_on_a_minibatch_are_two_epochs_of_a_client_with_one_minibatch(make_clients):
    clients, found = models(make_clients)
    options = {"batch_size": 64, "optimizer": "adam", "lr": 0.01}
    model, start = found["linear"], rows_of(found["linear"], 2)
    solver, twice = (
        solver_of_models(model, **options),
        solver_of_models(model, epochs=2, **options),
    )
    state = twice.init(3, 1, torch.float64)
    expected, plain = twice(start[:, :1], state, clients, Draws(0, 1))
    coupling = Twice(torch.zeros(3, dtype=torch.int64))
    rows, kept = solver(
        start, solver.init(3, 1, torch.float64), clients, Draws(0, 1), coupling=coupling
    )
    assert torch.allclose(rows[:, :1], expected, atol=1e-12)
    assert (solver.rule.steps(kept) == twice.rule.steps(plain)).all()


@pytest.mark.parametrize(("name", "stepping"), CASES)
def test_models_of_a_client_alone_have_the_same_bits_among_others(make_clients, name, stepping):
    clients, found = models(make_clients, torch.float32)
    solver = solver_of_models(found[name], stepping=stepping, momentum=0.9)
    start = rows_of(found[name], 2, torch.float32)

    def trained(rows):
        some = Clients(clients.federation, clients.shards, np.array(rows))
        state = solver.init(len(rows), 2, torch.float32)
        return solver(start[rows], state, some, Draws(1, 5), coupling=Apart())[0]

    whole = trained([0, 1, 2])
    for client in range(3):
        assert torch.equal(trained([client])[0], whole[client])


def test_running_statistics_are_those_of_the_model_that_is_named(make_clients):
    """A module that puts new tensors in place of its buffers, and two models with statistics."""
    clients, found = models(make_clients)
    model = found["norm and dropout"]
    start = rows_of(model, 1).expand(3, 2, -1)

    class OfTheSecond(Coupling):
        def move(self, batch: Minibatch) -> None:
            batch.gradient(batch.rows[:, 0], 1)

    solver = solver_of_models(model, buffers="local")
    rows, state = solver(
        start, solver.init(3, 2, torch.float64), clients, Draws(0, 1), coupling=OfTheSecond()
    )
    split = solver.n_trained
    assert torch.equal(rows[:, 0], start[:, 0])
    assert torch.equal(rows[:, 1, :split], start[:, 1, :split])
    changed = (rows[:, 1, split:] != start[:, 1, split:]).any(1)
    assert changed.all()
    assert torch.equal(solver.with_statistics(start, state)[..., split:], rows[..., split:])


def test_steps_of_a_call_take_the_place_of_those_of_the_options(make_clients):
    clients, found = models(make_clients)
    start = rows_of(found["linear"], 1)
    solver, other = (
        solver_of_models(found["linear"], epochs=4),
        solver_of_models(found["linear"], steps=7),
    )
    state = solver.init(3, 1, torch.float64)
    given = solver(start, state, clients, Draws(0, 1), steps=7)
    expected = other(start, state, clients, Draws(0, 1))
    assert torch.equal(given[0], expected[0]) and torch.equal(given[1].epochs, expected[1].epochs)


@pytest.mark.parametrize("kind", [linear, "cnn"])
def test_auto_is_the_way_of_stepping_that_the_model_names(make_clients, kind):
    _, description = make_clients(COUNTS, *(() if kind is linear else ((1, 8, 8),)))
    model = kind(description) if kind is linear else model_of("cnn", {}, description)
    auto, named = solver_of(model), solver_of(model, stepping=model.stepping)
    (other,) = {"stacked", "one_by_one"} - {model.stepping}
    sizes = [getattr(solver.stacked, "block_bytes", None) for solver in (auto, named)]
    assert sizes[0] == sizes[1]
    if other in model.steppings:
        assert getattr(solver_of(model, stepping=other).stacked, "block_bytes", None) != sizes[0]
