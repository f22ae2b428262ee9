"""Mistakes in a user's own components are told before anything is written, and a right one is not
changed by being tried.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
import json
import mmap
import os
import random
import threading
import time

import numpy as np
import pytest
import torch
from commands import call, launch, rows, summary_of
from on_ranks import SMALL, folder_of, run, unlike_one_rank
from test_algorithms import CASES, problem

from mpifed.algorithms.base import Predictor
from mpifed.algorithms.global_model.fedavg import FedAvg
from mpifed.config.configuration import resolve
from mpifed.errors import InputError
from mpifed.mpi.communicator import Alone, world
from mpifed.training import rehearsal
from mpifed.training.build import make
from mpifed.training.few_clients import FEW, few_shards
from mpifed.training.samples import samples_of

WORDS = (
    "clients=8",
    "rounds=3",
    "data.n_test=5",
    "data.dimension=4",
    "model=linear",
    "evaluation.every=2",
)
NOTES = mmap.mmap(-1, mmap.PAGESIZE)
"""What components of these tests have noted, in copies of this process too."""


def note(*seen):
    end, text = NOTES.find(b"\0"), f"{seen}\n".encode()
    NOTES[end : end + len(text)] = text


def noted():
    return [ast.literal_eval(line) for line in NOTES[:].rstrip(b"\0").decode().splitlines()]


@pytest.fixture(autouse=True)
def no_notes():
    NOTES[:] = bytes(len(NOTES))


CALLED = "(mpifed calls round(state, clients, channel, draws)"


class Own(FedAvg):
    """FedAvg without options."""

    def __init__(self, model, local) -> None:
        super().__init__(model, local)


class ReturnsNothing(Own):
    """Forgets its ``return``."""

    def round(self, state, clients, channel, draws):
        super().round(state, clients, channel, draws)


class OtherShape(Own):
    """Loses a parameter."""

    def round(self, state, clients, channel, draws):
        after = super().round(state, clients, channel, draws)
        return dataclasses.replace(after, model=after.model[:, 1:])


class OtherType(Own):
    """Changes to another precision."""

    def round(self, state, clients, channel, draws):
        after = super().round(state, clients, channel, draws)
        return dataclasses.replace(after, model=after.model.double())


class WrongCall(Own):
    """Leaves an argument of the local solver out."""

    def round(self, state, clients, channel, draws):
        start = channel.broadcast(state.model)
        return self.local(start, state.optimizer, draws)


class Raises(Own):
    """Fails in a method of its own."""

    def round(self, state, clients, channel, draws):
        return self.momentum_of(state)

    def momentum_of(self, state):
        return {}["momentum"]


class Leaves(Own):
    """Ends the program."""

    def round(self, state, clients, channel, draws):
        raise SystemExit(0)


class DeploysState(Own):
    """Deploys its state."""

    def deploy(self, state, clients, draws):
        return state


class DeploysVector(Own):
    """Deploys a model without the axis of models."""

    def deploy(self, state, clients, draws):
        return Predictor(state.model[0])


class DeploysLater(Own):
    """Deploys something else after the first round."""

    def deploy(self, state, clients, draws):
        return super().deploy(state, clients, draws) if draws.round == 0 else None


class RowsMissing(Own):
    """Has the momentum of five clients."""

    def init(self, clients, exchange, draws, dtype):
        begun = super().init(clients, exchange, draws, dtype)
        optimizer = dataclasses.replace(begun.optimizer, momentum=torch.zeros(5, 1, 5))
        return dataclasses.replace(begun, optimizer=optimizer)


class FailsOnOneRank(Own):
    """Fails where the first client is not."""

    def round(self, state, clients, channel, draws):
        if 0 not in clients.ids:
            raise ValueError("there is no client 0")
        return super().round(state, clients, channel, draws)


WRONG = {
    ReturnsNothing: f"round returned None; it must return a state as it was given, of FedAvgState "
    f"{CALLED}",
    OtherShape: "round returned a state whose model is float32 of shape (1, 4); it must be as it "
    f"was given, float32 of shape (1, 5) {CALLED}",
    OtherType: "round returned a state whose model is float64 of shape (1, 5); it must be as it "
    f"was given, float32 of shape (1, 5) {CALLED}",
    WrongCall: "round raised TypeError: self.local() missing 1 required",
    Raises: "round raised KeyError: 'momentum' in ",
    Leaves: "round raised SystemExit: 0 in ",
    DeploysState: "deploy returned a FedAvgState; it must return a "
    "mpifed.algorithms.base.Predictor (mpifed calls deploy(state, clients, draws), in ",
    DeploysVector: "deploy(state, clients, draws) deploys parameters of shape (5,) and no mixture",
    RowsMissing: "init returned a state whose optimizer.momentum is float32 of shape (5, 1, 5) for "
    "8 clients; its first axis must be clients",
}


def own(kind):
    return f"algorithm={__name__}:{kind.__name__}"


@pytest.mark.parametrize("more", [[], ["--dry-run"]], ids=["run", "dry run"])
@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_a_wrong_method_is_refused_before_anything_is_written(kind, more, tmp_path, capfd):
    done = call([*WORDS, own(kind), "--output", tmp_path / "run", *more], capfd)
    assert done.code == 2, done
    (line,) = done.err.splitlines()
    assert line.startswith(f"mpifed: algorithm '{kind.__name__}': ") and WRONG[kind] in line
    assert " (mpifed calls " in line or "deploy(state, clients, draws) deploys" in line
    assert list(tmp_path.iterdir()) == []


def test_the_place_of_a_failure_is_told(tmp_path, capfd):
    done = call([*WORDS, own(Raises), "--output", tmp_path / "run"], capfd)
    assert f"test_rehearsal.py, line {line_of('momentum')} (" in done.err
    assert f"momentum_of) {CALLED}" in done.err


def line_of(key):
    with open(__file__, encoding="utf-8") as source:
        return 1 + [f'{{}}["{key}"]' in line for line in source].index(True)


def test_what_is_deployed_after_a_round_is_seen_where_it_is_evaluated_then(tmp_path, capfd):
    words = [*WORDS, own(DeploysLater), "--output", tmp_path / "run"]
    assert call([*words, "evaluation.every=1"], capfd).code == 2
    assert not (tmp_path / "run").exists()
    done = call(words, capfd)
    assert done.code == 1 and "round 2: algorithm 'DeploysLater': deploy returned None" in done.err


@pytest.mark.mpi
@pytest.mark.parametrize("kind", [ReturnsNothing, OtherShape, Raises, DeploysVector])
def test_all_ranks_refuse_a_wrong_method(kind, tmp_path):
    folder = folder_of(tmp_path)
    wanted = {**SMALL, "algorithm": f"{__name__}:{kind.__name__}"}
    with pytest.raises(InputError) as refused:
        run("synthetic-fedem", wanted, folder / "run", world())
    assert str(refused.value).startswith(f"algorithm '{kind.__name__}': ")
    world().barrier()
    assert list(folder.iterdir()) == []


@pytest.mark.mpi
@pytest.mark.parametrize("exchange", ["server", "gossip"])
def test_a_right_method_gives_the_same_numbers_on_any_ranks(exchange, tmp_path):
    wanted = {**SMALL, "algorithm": f"{__name__}:Own", "exchange": exchange, "participation": 0.5}
    assert unlike_one_rank(wanted, tmp_path) == []


@pytest.mark.parametrize("kind", [ReturnsNothing, FailsOnOneRank])
def test_a_job_ends_with_one_message(kind, tmp_path):
    words = [*WORDS, own(kind), "--output", tmp_path / "run"]
    done = launch(2, *words)
    assert done.code == 2, done
    (line,) = done.messages
    assert f"algorithm '{kind.__name__}': " in line
    assert WRONG.get(kind, "ValueError: there is no client 0 in ") in line
    assert list(tmp_path.iterdir()) == []


class Counts(Own):
    """Draws from generators that nobody seeded, and counts its rounds in itself."""

    def __init__(self, model, local) -> None:
        super().__init__(model, local)
        self.rounds = 0

    def round(self, state, clients, channel, draws):
        self.rounds += 1
        assert self.rounds == draws.round
        after = super().round(state, clients, channel, draws)
        noise = torch.rand(()).item() + np.random.random() + random.random()  # noqa: NPY002
        return dataclasses.replace(after, model=after.model + 1e-3 * noise)


def ran(directory, capfd, words):
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    assert call([*WORDS, *words, "--output", directory], capfd).code == 0
    summary = summary_of(directory)
    sizes = [summary[key] for key in ("up_bits", "down_bits", "mpi_bytes_sent", "state_digest")]
    return sizes, [{**row, "seconds": ""} for row in rows(directory)]


@pytest.mark.parametrize("more", [[], ["--dry-run"]], ids=["run", "dry run"])
def test_draws_from_generators_of_the_process_are_remarked(more, tmp_path, capfd):
    done = call([*WORDS, own(Counts), "--output", tmp_path / "run", *more], capfd)
    (line,) = [line for line in done.out.splitlines() if "draw from a generator of" in line]
    assert done.code == 0 and "(torch's and numpy's and Python's)" in line
    assert "draws.stream(purpose, client)" in line
    done = call([*WORDS, own(Own), "--output", tmp_path / "other", *more], capfd)
    assert done.code == 0 and "draw from a generator" not in done.out


VARIANTS = {
    "server": ["participation=0.5", "compression=top_k", "compression.k=2"],
    "gossip": ["exchange=gossip", "compression=top_k", "compression.k=2"],
    "tracking": ["exchange=gossip", "exchange.correction=tracking"],
    "no waiting": [
        "exchange=gossip",
        "exchange.asynchrony=wait_free",
        "compute={name: lognormal, seconds: 1.0, round_sigma: 0.5}",
    ],
    "on disk": ["storage.state=disk", "participation=0.5"],
    "unseen": ["evaluation.unseen_fraction=0.25"],
}


@pytest.mark.parametrize("case", VARIANTS)
def test_a_right_method_gives_the_same_numbers_as_if_it_were_not_tried(
    case, tmp_path, capfd, monkeypatch
):
    words = [own(Counts), *VARIANTS[case]]
    tried = ran(tmp_path / "tried", capfd, words)
    monkeypatch.setattr(rehearsal, "has_own_parts", lambda configuration: False)
    assert tried == ran(tmp_path / "not", capfd, words)


def test_ranks_count_the_same_bytes_as_for_the_shipped_method(tmp_path):
    for name, method in (("own", own(Own)), ("shipped", "algorithm=fedavg")):
        done = launch(2, *WORDS, method, "--output", tmp_path / name)
        assert done.code == 0, done
    mine, shipped = (
        json.loads((tmp_path / name / "summary.json").read_text()) for name in ("own", "shipped")
    )
    assert mine["mpi_bytes_sent"] == shipped["mpi_bytes_sent"] > 0
    assert mine["state_digest"] == shipped["state_digest"]


class NeedsAll(Own):
    """Needs all clients, with all of their samples."""

    def round(self, state, clients, channel, draws):
        note(len(clients))
        assert len(clients) == 8
        assert (clients.shards.train.counts == clients.n_train).all()
        assert clients.n_train.sum() == clients.federation.n_train_total
        return super().round(state, clients, channel, draws)


def test_what_only_a_few_clients_cannot_do_is_not_refused(tmp_path, capfd):
    assert call([*WORDS, own(NeedsAll), "--output", tmp_path / "run"], capfd).code == 0
    # with a few, with all, and three rounds
    assert noted() == [(FEW,), (8,), (8,), (8,), (8,)]


class Watched(Own):
    """Notes with how many clients, samples and steps its rounds are."""

    def round(self, state, clients, channel, draws):
        step = clients.effort is not None
        note(len(clients), int(clients.shards.train.counts.max()), step)
        return super().round(state, clients, channel, draws)


def test_a_few_clients_take_one_step_with_few_samples(tmp_path, capfd):
    more = ["local.batch_size=8", "local.epochs=5", "--dry-run"]
    words = [*WORDS, own(Watched), "--output", tmp_path / "run", *more]
    assert call(words, capfd).code == 0
    assert noted() == [(FEW, 16, True)]
    assert list(tmp_path.iterdir()) == []


class Slow(Own):
    """Computes before round 1, or waits, for longer than it is tried."""

    def prepare(self, state, clients, exchange, draws):
        note("began")
        began = time.thread_time()
        while len(clients) <= FEW and time.thread_time() < began + 30:
            pass
        note("prepared")
        return state


class Waits(Slow):
    """Waits for what does not come."""

    def prepare(self, state, clients, exchange, draws):
        note("began")
        threading.Event().wait(60 if len(clients) <= FEW else 0)
        note("prepared")
        return state


@pytest.mark.parametrize("kind", [Slow, Waits])
def test_what_takes_long_is_not_repeated(kind, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(rehearsal, "FEW_SECONDS", (1.0, 3.0))
    done = call([*WORDS, own(kind), "--output", tmp_path / "run"], capfd)
    assert done.code == 0 and "were not tried before round 1: it took too long" in done.out
    assert noted() == [("began",), ("began",), ("prepared",)]


ROUNDS = itertools.count()
"""What a module counts."""


class Outside(Own):
    """Counts rounds outside itself, and draws from a generator that its module keeps."""

    _rounds = 0
    _generator = np.random.default_rng(1)

    def round(self, state, clients, channel, draws):
        type(self)._rounds += 1
        assert next(ROUNDS) == type(self)._rounds - 1 == draws.round - 1
        after = super().round(state, clients, channel, draws)
        note(type(self)._generator.random())
        return after


def test_what_a_component_keeps_outside_itself_is_as_if_it_were_not_tried(tmp_path, capfd):
    assert call([*WORDS, own(Outside), "--output", tmp_path / "run"], capfd).code == 0
    drawn = np.random.default_rng(1).random(3)
    assert noted() == [(drawn[0],), *((each,) for each in drawn)]


class Writes(Own):
    """Makes a file that must not be there, and adds to one that is."""

    def round(self, state, clients, channel, draws):
        if draws.round == 1:
            with open("made", "x") as made:
                made.write("once")
        OPEN[0].write(f"round {draws.round}\n")
        OPEN[0].flush()
        return super().round(state, clients, channel, draws)


class Adds(Writes):
    """Adds to a file that is open."""

    def round(self, state, clients, channel, draws):
        OPEN[0].write(f"round {draws.round}\n")
        OPEN[0].flush()
        return Own.round(self, state, clients, channel, draws)


OPEN: list = []


@pytest.mark.parametrize("kind", [Writes, Adds])
def test_what_a_component_writes_is_written_once(kind, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with open("log", "a") as kept:
        OPEN[:] = [kept]
        done = call([*WORDS, own(kind), "--output", tmp_path / "run"], capfd)
    assert done.code == 0 and "or would have changed files" in done.out
    assert (tmp_path / "log").read_text() == "round 1\nround 2\nround 3\n"


class PrintsAndFails(Own):
    """Fails with a few clients, and is too slow to be tried with all."""

    def round(self, state, clients, channel, draws):
        print(f"a round of {len(clients)}")
        assert len(clients) == 8, "too few clients"
        if os.getpid() != ORIGINAL:
            threading.Event().wait(20)
        return super().round(state, clients, channel, draws)


ORIGINAL = os.getpid()


def test_what_fails_with_a_few_and_is_not_known_of_all_is_a_warning(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(rehearsal, "ALL_SECONDS", (1.0, 1.0))
    done = call([*WORDS, own(PrintsAndFails), "--output", tmp_path / "run"], capfd)
    assert done.code == 0
    assert "too few clients" in (tmp_path / "run" / "log.txt").read_text()
    assert done.out.count("a round of 8") == 3 and f"a round of {FEW}" not in done.out


@pytest.mark.parametrize(("name", "exchange"), CASES)
def test_nothing_is_wrong_with_a_shipped_method_because_few_clients_try_it(name, exchange):
    wanted = problem(name, exchange)
    wanted["clients"] = 1 if name == "sa_ssmm" else 6
    configuration = resolve(wanted)
    setup = make(configuration, Alone(), configuration.rounds)
    assert rehearsal._with_few(setup, few_shards(setup, samples_of(setup))) is None


def test_a_shipped_configuration_is_not_tried():
    assert not rehearsal.has_own_parts(resolve({}))
    assert not rehearsal.has_own_parts(
        resolve({"algorithm": "mpifed.algorithms.global_model.fedavg:FedAvg"})
    )
    assert rehearsal.has_own_parts(resolve({"algorithm": f"{__name__}:Own"}))
