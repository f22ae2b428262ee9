"""The common checks refuse items that break what they check, and shipped items pass them."""

from __future__ import annotations

import dataclasses
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import numpy as np
import pytest
import torch
from annotated_types import Gt, Le

import mpifed
import mpifed.testing as harness
from mpifed import state as states
from mpifed.errors import InputError, RunError
from mpifed.message import ByCoordinates, Colluding, Correction, Moment
from mpifed.testing import find_item

FedAvg, Identity, Sign = (
    find_item("algorithm", "fedavg"),
    find_item("compression", "identity"),
    find_item("compression", "sign"),
)
Median, SignFlip = find_item("aggregator", "median"), find_item("attack", "sign_flip")
Sgd = find_item("server_optimizer", "sgd")

FedAvgState = type(harness.run_rounds("fedavg", rounds=0).state)
RING = {"name": "gossip", "topology": "ring", "weights": "metropolis_hastings"}

REGRESSION = [([[1.0]], [0.0]), ([[1.0]], [4.0])]
HALF_SQUARED = {"name": "linear", "bias": False, "loss": "half_squared"}


class Halved(Identity):
    """Half of every number, which claims to be unbiased."""

    def __call__(self, rows, draws, ids, purpose="compression"):
        return rows / 2


class TooClose(Sign):
    """Signs, which claim to lose next to nothing."""

    def contraction(self, size):
        return 0.999


class InPlace(Identity):
    """A compressor that writes into the rows."""

    def __call__(self, rows, draws, ids, purpose="compression"):
        return rows.mul_(1 + 1e-3)


class Together(Identity):
    """A compressor that scales by all clients' numbers."""

    def __call__(self, rows, draws, ids, purpose="compression"):
        return rows * (rows.max() / rows.max()) if len(rows) == 1 else rows.flip(0)


class OneSize(Identity):
    """Returns a number of bits, not one for each client."""

    def bits(self, size, itemsize, draws, ids, purpose="compression"):
        return 7


class RandomMask(Identity):
    """Random coordinates, which are sent with a probability."""

    def __init__(self, *, share: Annotated[float, Gt(0), Le(1)], loses: bool = False) -> None:
        self.share, self.loses = share, loses

    def omega(self, size):
        return 1 / self.share - 1

    def mask(self, size, draws, ids, purpose):
        drawn = [draws.stream(purpose, client).random(size) for client in ids.tolist()]
        return np.array(drawn).reshape(len(ids), size) < self.share

    def __call__(self, rows, draws, ids, purpose="compression"):
        mask = torch.from_numpy(self.mask(rows.shape[1], draws, ids, purpose))
        return torch.where(mask, rows / self.share, 0) if self.loses else rows * mask / self.share

    def floats(self, size, draws, ids, purpose="compression"):
        return self.mask(size, draws, ids, purpose).sum(1)


class OtherCoordinates(find_item("compression", "rand_k")):
    """Random coordinates, which are not those that it says."""

    def coordinates(self, size, draws, ids, purpose):
        columns = super().coordinates(size, draws, ids, purpose)
        return None if columns is None else (columns + 1) % size


class First(ByCoordinates):
    """The update of the first client."""

    def combine(self, columns):
        return columns[0]


class Enlarging(ByCoordinates):
    """Twice the median."""

    def combine(self, columns):
        return 2 * Median().combine(columns)


class Turns(SignFlip):
    """An attack that changes updates in place."""

    def sent(self, updates, malicious, participants):
        return updates.neg_()


class Nearby(Colluding):
    """A message that depends on who is on the same rank."""

    def message(self, seen):
        return -seen.updates.sum(0)


class Drifts(Sgd):
    """A server that moves by itself."""

    def step(self, mean, state):
        return mean + 1, state


class Kept(ByCoordinates):
    """An aggregate with a row for each client."""

    def combine(self, columns):
        return columns


class RingOnly(Correction):
    """A correction by random numbers where a client does not have two neighbours."""

    def width(self, size):
        return 0

    def step(self, x, moved, memory, neighbours):
        mixed = neighbours.mix(moved)
        return torch.where(neighbours.degrees == 2, mixed, torch.rand_like(mixed)), memory


class MixedTwice(Correction):
    """A correction that sends more numbers than it says."""

    def width(self, size):
        return 0

    def step(self, x, moved, memory, neighbours):
        return neighbours.mix(neighbours.mix(moved)), memory


class WritesMomentum(Correction):
    """A correction that changes its momentum in place."""

    def step(self, x, moved, memory, neighbours):
        return neighbours.mix(memory.mul_(0.5).add_(moved - x).add(x)), memory


class WritesMoments(Sgd):
    """A server that changes its momentum in place, from the second step on."""

    def init(self, like):
        return Moment(torch.zeros_like(like))

    def step(self, mean, state):
        if not state.first.any():
            return mean, Moment(mean.clone())
        return mean + state.first.mul_(0.5), state


@pytest.mark.parametrize(
    ("check", "item", "fault"),
    [
        (harness.check_compressor, Halved, "Halved.*unbiased"),
        (harness.check_compressor, TooClose, "TooClose.*delta.*0.001"),
        (harness.check_compressor, InPlace, "InPlace.*changes.*rows"),
        (harness.check_compressor, Together, "Together.*which clients"),
        (harness.check_compressor, OneSize, "OneSize.*bits.*int"),
        (harness.check_compressor, OtherCoordinates, "coordinates"),
        (harness.check_aggregator, First, "First.*order"),
        (harness.check_aggregator, Enlarging, "Enlarging.* 9 .*equal"),
        (harness.check_aggregator, Kept, "combine.*shape"),
        (harness.check_attack, Turns, "Turns.*updates.*place"),
        (harness.check_attack, Nearby, "Nearby.*number of ranks"),
        (harness.check_server_optimizer, Drifts, "Drifts.*mean.*zero"),
        (harness.check_server_optimizer, WritesMoments, "in place"),
        (harness.check_correction, MixedTwice, "numbers"),
        (harness.check_correction, WritesMomentum, "memory.corrections"),
        (harness.check_correction, RingOnly, "resume"),
    ],
)
def test_an_item_that_breaks_a_promise_is_refused(check, item, fault):
    with pytest.raises(AssertionError, match=fault):
        check(item)


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_a_compressor_that_loses_what_is_not_finite_is_refused_for_certain(share):
    compressor = RandomMask(share=share, loses=True)
    with pytest.raises(AssertionError, match="nan is lost"):
        harness.check_compressor(compressor)
    harness.check_compressor(RandomMask(share=share))


def broken(change):
    """FedAvg whose rounds are changed, as a method of this module."""
    return type("Broken", (FedAvg,), {"round": change, "__module__": __name__})


def _in_place(self, state, clients, channel, draws):
    state.model.add_(1)
    return super(Writes, self).round(state, clients, channel, draws)


def _remembers(self, state, clients, channel, draws):
    self.rounds = getattr(self, "rounds", 0) + 1
    moved = super(Remembers, self).round(state, clients, channel, draws)
    return dataclasses.replace(moved, model=moved.model * self.rounds)


def _by_rank(self, state, clients, channel, draws):
    moved = super(ByRank, self).round(state, clients, channel, draws)
    return dataclasses.replace(moved, model=moved.model * len(clients))


def _silent(self, state, clients, channel, draws):
    return state


Writes, Remembers, ByRank = broken(_in_place), broken(_remembers), broken(_by_rank)
Silent = broken(_silent)


@pytest.mark.parametrize(
    ("method", "fault"),
    [
        (Writes, "model.* in place"),
        (Remembers, "round 3.*resume"),
        (Silent, r"round\(\).*exchanges = \(\)"),
    ],
)
def test_a_method_that_breaks_a_promise_is_refused(method, fault):
    with pytest.raises(AssertionError, match=fault):
        harness.check_method(method, exchanges=("server",))


def with_velocity(declared):
    """FedAvg with heavy-ball momentum, v <- v / 2 + (mean - x), x <- x + v, as a method."""
    fields = [("velocity", torch.Tensor, declared())]
    state_class = dataclasses.make_dataclass("State", fields, bases=(FedAvgState,), frozen=True)

    def init(self, clients, exchange, draws, dtype):
        first = FedAvg.init(self, clients, exchange, draws, dtype)
        return state_class(first.model, first.optimizer, torch.zeros_like(first.model))

    def round(self, state, clients, channel, draws):
        moved = FedAvg.round(self, state, clients, channel, draws)
        velocity = state.velocity / 2 + moved.model - state.model
        return state_class(state.model + velocity, moved.optimizer, velocity)

    return type("Broken", (FedAvg,), {"init": init, "round": round, "__module__": __name__})


OnServer, Shared, Following = map(with_velocity, (states.server, states.shared, states.follows))


@pytest.mark.parametrize(("clients", "round"), [(5, 0), (6, 1)])
def test_rows_of_clients_that_are_declared_the_server_s_are_refused(clients, round):
    """At the first digest where ranks have other numbers of rows, else after the first round."""
    with pytest.raises(RunError, match=r"velocity.* rank 0 .*shared\(\), follows\(\)"):
        rounds = harness.run_rounds(OnServer, clients=clients, exchange=RING, ranks=2, rounds=0)
        assert round or rounds.digest
        rounds.advance()


def test_a_checkpoint_with_rows_that_are_declared_the_server_s_is_refused():
    rounds = harness.run_rounds(OnServer, exchange=RING)
    with pytest.raises(InputError, match=r"velocity.*\(5, 1, .*follows\(\)"):
        rounds.resumed(ranks=2)


@pytest.mark.parametrize(("method", "name"), [(OnServer, "velocity"), (ByRank, "model")])
def test_a_server_s_field_that_differs_between_ranks_is_named(method, name):
    exchange = "server" if method is ByRank else "gossip"
    with pytest.raises(RunError, match=f"{name}.* rank 0 .*on every rank"):
        harness.check_method(method, exchanges=(exchange,))


@pytest.mark.parametrize("method", [Shared, Following])
def test_a_velocity_may_be_shared_or_follow_what_is_shared(method):
    harness.check_method(method, participation=0.5)


def test_a_velocity_moves_as_heavy_ball_momentum_of_the_server():
    options = {"rounds": 4, "dtype": "float64"}
    velocity = harness.run_rounds(Following, **options).state.model
    server_optimizer = {"name": "momentum", "beta": 0.5, "lr": 1.0}
    momentum = harness.run_rounds("fedavg", server_optimizer=server_optimizer, **options)
    assert torch.allclose(velocity, momentum.state.model, atol=1e-12)


def test_rounds_are_those_of_a_run(tmp_path):
    options = {"clients": 4, "data": {"name": "synthetic", "n_test": 5}, "rounds": 3}
    experiment = tmp_path / "own.yaml"
    experiment.write_text(json.dumps({**options, "algorithm": "fedem"}))
    run = mpifed.run(experiment, output=tmp_path / "run")
    rounds = harness.run_rounds("fedem", ranks=2, **options)
    assert rounds.digest == run.summary["state_digest"]
    for name, value in rounds.metrics.items():
        if value is not None and name != "state_digest":
            assert run.metrics[name][-1] == value, name


def test_fedavg_moves_to_the_mean_of_optima_by_the_closed_form():
    """x <- (1 - lr) x + lr c̄ with one step of each client."""
    rounds = harness.run_rounds(
        "fedavg", REGRESSION, model=HALF_SQUARED, rounds=0, local={"lr": 0.5}
    )
    x = rounds.state.model.item()
    for _ in range(4):
        x = 0.5 * x + 0.5 * 2.0
        assert rounds.advance().state.model.item() == pytest.approx(x, abs=1e-14)
    assert rounds.deployed.parameters == pytest.approx(np.full((2, 1, 1), x), abs=1e-14)


def test_played_ranks_add_and_exchange_as_mpi_does():
    def action(communicator):
        rank, size = communicator.rank, communicator.size
        total = communicator.sum(np.array([rank]))
        rows = np.arange(size)[:, None] + 10 * rank
        send = {to: np.array([to]) for to in range(size)}
        arrived = communicator.exchange_rows(rows, send, dict.fromkeys(range(size), 1))
        return total.item(), arrived[:, 0].tolist()

    assert harness.played(action, 3) == [(3, [10 * i + r for i in range(3)]) for r in range(3)]


def test_no_message_of_second_threads_is_lost():
    """One that was put where nobody waits: two threads looked for a first message at once."""

    def action(communicator):
        if communicator.rank:
            communicator.send(np.array([communicator.rank]), 0)
            return []
        return [communicator.receive((1,), np.dtype(np.int64), rank).item() for rank in range(1, 5)]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(100):
            ranks = harness.played(lambda communicator: communicator.for_second_thread(), 5)
            with ThreadPoolExecutor(5) as threads:
                assert next(threads.map(action, ranks)) == [1, 2, 3, 4]
    finally:
        sys.setswitchinterval(interval)


def test_a_configuration_names_the_class_of_the_data_that_are_passed():
    rounds = harness.run_rounds("fedavg", REGRESSION, model=HALF_SQUARED, rounds=0)
    listed = find_item("data", rounds.configuration.data.name)
    assert listed is not find_item("data", "arrays")
    again = harness.run_rounds("fedavg", listed(REGRESSION), model=HALF_SQUARED, dtype="float64")
    assert again.configuration.data.name == rounds.configuration.data.name
    assert again.digest == rounds.advance().digest


@pytest.mark.parametrize("ranks", [1, 2])
def test_rounds_go_on_from_the_rows_that_they_are_given(ranks):
    """Each client halves the way to its optimum, 0, 4 or 4."""
    data = [*REGRESSION, REGRESSION[1]]
    rounds = harness.run_rounds(
        "local", data, model=HALF_SQUARED, rounds=0, ranks=ranks, local={"lr": 0.5}
    )
    rounds.start_from(models=np.array([8.0, 0.0, 6.0])[:, None, None]).advance()
    assert rounds.state.models[:, 0, 0].tolist() == [4, 2, 5]


def test_what_training_clients_deploy_is_in_their_order_also_beside_unseen_ones():
    deployed = [
        harness.run_rounds(
            {"name": "ifca", "n_clusters": 2},
            clients=7,
            evaluation={"unseen_fraction": 0.4},
            ranks=ranks,
        ).deployed
        for ranks in (1, 2)
    ]
    assert len(deployed[0].parameters) == 4
    for one, other in zip(*(each.results.items() for each in deployed), strict=True):
        assert one[0] == other[0] and np.array_equal(one[1], other[1])
    assert np.array_equal(deployed[0].parameters, deployed[1].parameters)


def test_the_matrix_of_a_round_is_that_by_which_models_are_mixed():
    exchange = {"name": "gossip", "schedule": "one_peer_exponential"}
    rounds = harness.run_rounds(
        "fedavg",
        REGRESSION * 3,
        model=HALF_SQUARED,
        exchange=exchange,
        rounds=0,
        dtype="float64",
        local={"lr": 1e-9},
    )
    x = np.arange(6.0)
    for _ in range(3):
        w = rounds.mixing_matrix()
        mixed = rounds.start_from(model=x[:, None, None]).advance().state.model[:, 0, 0]
        assert mixed.numpy() == pytest.approx(w @ x, abs=1e-7)
    with pytest.raises(TypeError):
        harness.run_rounds("fedavg", REGRESSION, rounds=0, model=HALF_SQUARED).mixing_matrix()


def test_a_data_set_is_that_of_a_run_on_any_ranks():
    data = {"name": "synthetic", "n_test": 7, "dimension": 3}
    dataset = harness.load_dataset(data, clients=4, seed=2)
    of_run = harness.run_rounds("fedavg", data, clients=4, seed=2)
    assert harness.run_rounds("fedavg", dataset, seed=2).digest == of_run.digest
    expected = dataset.load(np.arange(4), torch.float64).train.x

    def on_rank(communicator):
        clients = np.arange(2) + 2 * communicator.rank
        shared = harness.load_dataset(data, clients=4, seed=2, communicator=communicator)
        return shared.load(clients, torch.float64).train.x

    assert torch.equal(torch.cat(harness.played(on_rank, 2)), expected)


def test_a_command_ends_with_its_exit_code(capsys):
    assert harness.run_command(["report", "--help"]) == 0
    assert "RUN_DIR" in capsys.readouterr().out
    assert harness.run_command(["run", "synthetic-fedem", "clients=0"]) == 2
    assert "clients" in capsys.readouterr().err
