"""Models of a client that move together, on the same minibatches, in both ways of stepping."""

from __future__ import annotations

from dataclasses import dataclass

import network_modules
import numpy as np
import pytest
import torch

from mpifed.federation.clients import Clients, Draws
from mpifed.local.adjustments import Coupling, Minibatch, Proximal
from mpifed.local.options import LocalOptions
from mpifed.local.solver import LocalSolver
from mpifed.models.linear import linear
from mpifed.models.modules import module_model

COUNTS = [37, 9, 20]
OPTIMIZERS = {
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


def solver_of(model, **options) -> LocalSolver:
    options = {"batch_size": 8, **options}
    return LocalSolver(model, LocalOptions(**options), 10, max(COUNTS), torch.device("cpu"))


def rows_of(model, count, dtype=torch.float64):
    rows = np.stack([model.init(np.random.default_rng(seed)) for seed in range(3 * count)])
    return torch.from_numpy(rows).to(dtype).view(3, count, -1)


def models(make_clients, dtype=torch.float64):
    clients, description = make_clients(COUNTS, (8, 8), 10, dtype)
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


@pytest.mark.parametrize("how", OPTIMIZERS)
@pytest.mark.parametrize(("name", "stepping"), CASES)
def test_one_model_that_is_stepped_as_ever_has_the_bits_of_the_solver_alone(
    make_clients, name, stepping, how
):
    clients, found = models(make_clients, torch.float32)
    solver = solver_of(found[name], epochs=2, stepping=stepping, **OPTIMIZERS[how])
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


@pytest.mark.parametrize("how", OPTIMIZERS)
def test_models_of_a_client_see_the_same_minibatches(make_clients, how):
    """Equal models remain equal; without a coupling each has minibatches of its own."""
    clients, found = models(make_clients)
    solver = solver_of(found["linear"], **OPTIMIZERS[how])
    start = rows_of(found["linear"], 1).expand(3, 2, -1)
    state = solver.init(3, 2, torch.float64)
    apart, _ = solver(start, state, clients, Draws(0, 1))
    together, _ = solver(start, state, clients, Draws(0, 1), coupling=Apart())
    assert not torch.equal(apart[:, 0], apart[:, 1])
    assert torch.equal(together[:, 0], together[:, 1])


@pytest.mark.parametrize("how", OPTIMIZERS)
@pytest.mark.parametrize("name", ["linear", "cnn"])
def test_both_ways_of_stepping_agree(make_clients, name, how):
    clients, found = models(make_clients)
    start, ends = rows_of(found[name], 2), []
    for stepping in ("stacked", "one_by_one"):
        solver = solver_of(found[name], stepping=stepping, **OPTIMIZERS[how])
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
    solver, twice = solver_of(model, **options), solver_of(model, epochs=2, **options)
    state = twice.init(3, 1, torch.float64)
    expected, plain = twice(start[:, :1], state, clients, Draws(0, 1))
    coupling = Twice(torch.zeros(3, dtype=torch.int64))
    rows, kept = solver(
        start, solver.init(3, 1, torch.float64), clients, Draws(0, 1), coupling=coupling
    )
    assert torch.allclose(rows[:, :1], expected, atol=1e-12)
    assert (solver.rule.steps(kept) == twice.rule.steps(plain)).all()


@pytest.mark.parametrize(("name", "stepping"), CASES)
def test_a_client_alone_has_the_same_bits_among_others(make_clients, name, stepping):
    clients, found = models(make_clients, torch.float32)
    solver = solver_of(found[name], stepping=stepping, momentum=0.9)
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

    solver = solver_of(model, buffers="local")
    rows, state = solver(
        start, solver.init(3, 2, torch.float64), clients, Draws(0, 1), coupling=OfTheSecond()
    )
    split = solver.n_trained
    assert torch.equal(rows[:, 0], start[:, 0])
    assert torch.equal(rows[:, 1, :split], start[:, 1, :split])
    changed = (rows[:, 1, split:] != start[:, 1, split:]).any(1)
    assert changed.all()
    assert torch.equal(solver.own(start, state)[..., split:], rows[..., split:])


def test_steps_of_a_call_take_the_place_of_those_of_the_options(make_clients):
    clients, found = models(make_clients)
    start = rows_of(found["linear"], 1)
    solver, other = solver_of(found["linear"], epochs=4), solver_of(found["linear"], steps=7)
    state = solver.init(3, 1, torch.float64)
    given = solver(start, state, clients, Draws(0, 1), steps=7)
    expected = other(start, state, clients, Draws(0, 1))
    assert torch.equal(given[0], expected[0]) and torch.equal(given[1].epochs, expected[1].epochs)
