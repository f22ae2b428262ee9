"""Samples that are made when they are needed, and scores of a share of the clients."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import rows
from engine_runs import prepared
from hypothesis import given, settings
from hypothesis import strategies as st
from on_ranks import SMALL, content, differences, folder_of, run, run_on_all

from mpifed.components.registry import find
from mpifed.config.configuration import resolve
from mpifed.data.derived import HeldOut
from mpifed.federation import hosted
from mpifed.federation.hosted import CachedShards, LoadedShards
from mpifed.local import solver
from mpifed.mpi.communicator import Alone, world
from mpifed.results.results import read_summary
from mpifed.training import build
from mpifed.training.build import make

SOURCES = {
    "synthetic": {"n_test": 7, "dimension": 3},
    "corrected": {"n_test": 7, "dimension": 3, "variant": "corrected"},
    "sine": {},
    "poisson": {},
    "gaussian_mixture": {"n_train": 30},
    "sorted": {"n_train": 6, "sharding": "sorted"},
    "dictionary": {"samples": 60, "dim": 3, "atoms": 4},
    "tags": {"vocabulary": 60, "tags": 9},
}
NAMES = {"corrected": "synthetic", "sorted": "gaussian_mixture"}


def dataset(name: str, clients: int = 9):
    return find("data", NAMES.get(name, name))(clients, 3, Alone(), **SOURCES[name])


def same(a, b) -> bool:
    alike = torch.equal(a.x, b.x) and torch.equal(a.y, b.y)
    return alike and np.array_equal(a.offsets, b.offsets) and a.x.dtype == b.x.dtype


@pytest.mark.parametrize("name", SOURCES)
@settings(max_examples=8)
@given(ids=st.lists(st.integers(0, 8), unique=True), held_out=st.booleans(), double=st.booleans())
def test_a_split_made_for_some_clients_is_that_of_all(name, ids, held_out, double):
    made, dtype = dataset(name), torch.float64 if double else torch.float32
    if held_out and made.description.task != "unlabelled":
        made = HeldOut(made, 0.3, 3)
    every = made.load(np.arange(9), dtype)
    for split in ("train", "val", "test"):
        found = made.make_split(split, np.array(ids, np.int64), dtype)
        whole = getattr(every, split)
        for place, client in enumerate(ids):
            assert same(found.of_client(place), whole.of_client(client))


def test_what_comes_from_one_stream_or_a_file_is_loaded_at_once():
    released = find("data", "synthetic")(4, 0, Alone(), variant="released", n_test=5)
    assert released.make_split is None
    assert HeldOut(released, 0.5, 0).make_split is None
    assert find("data", "digits")(4, 0, Alone()).make_split is None


def setup_of(**changes):
    mapping = {
        "clients": 12,
        "data": {"name": "synthetic", "n_test": 6, "dimension": 4},
        "algorithm": "fedavg",
        **changes,
    }
    return make(resolve(mapping), Alone(), 5)


@settings(max_examples=25)
@given(
    megabytes=st.sampled_from([0.0, 0.003, 0.02, 10.0]),
    asked=st.lists(
        st.tuples(
            st.sampled_from(["train", "val", "test"]),
            st.lists(st.integers(0, 11), unique=True).map(sorted),
        ),
        max_size=8,
    ),
)
def test_samples_are_the_same_whatever_was_asked_for_before_and_dropped(megabytes, asked):
    setup = setup_of(storage={"samples": megabytes})
    samples, every = setup.hosted_shards(), setup.load()
    assert isinstance(samples, CachedShards)
    for split, ids in asked:
        clients = samples.clients(np.array(ids, np.int64))
        found, spread = getattr(clients.shards, split), samples.among_hosted(clients.ids)
        for place, client in enumerate(ids):
            own = getattr(every, split).of_client(client)
            assert same(found.of_client(int(clients.rows[place])), own)
            assert same(getattr(spread.shards, split).of_client(client), own)
        held = sum(each.x.nbytes + each.y.nbytes for _, each in samples._cached.values())
        assert held <= megabytes * 1e6


@given(st.lists(st.integers(0, 11), unique=True).map(sorted))
def test_blocks_are_every_client_once_in_order(ids):
    samples = setup_of(storage={"samples": 0}).hosted_shards()
    found = [i for block in samples.blocks(np.array(ids, np.int64)) for i in ids[block]]
    assert found == ids


def test_all_samples_are_loaded_unless_fewer_are_asked_for():
    assert isinstance(setup_of().hosted_shards(), LoadedShards)
    assert isinstance(setup_of(evaluation={"sample": 0.5}).hosted_shards(), CachedShards)
    assert isinstance(setup_of(storage={"samples": 1}).hosted_shards(), CachedShards)


def test_samples_of_clients_that_rest_are_not_held_where_they_are_many(monkeypatch):
    assert isinstance(setup_of(participation=0.5).hosted_shards(), LoadedShards)
    monkeypatch.setattr(build, "AUTOMATIC", 1e3)
    assert isinstance(setup_of(participation=0.5).hosted_shards(), CachedShards)
    assert isinstance(setup_of().hosted_shards(), LoadedShards)


METHODS = {
    "fedem": {"participation": 0.5},
    "fedavg": {"algorithm": "fedavg", "participation": 0.5},
    "ditto": {"algorithm": "ditto", "participation": 0.5},
    "minibatches": {"algorithm": "l2sgd", "participation": 0.5},
    "everyone": {},
    "unseen": {"evaluation.unseen_fraction": 0.3, "evaluation.unseen_shares": [0.5]},
    "held out": {"evaluation.validation_fraction": 0.3, "participation": 0.5},
    "gossip": {"exchange": "gossip", "participation": 0.6},
    "fedper": {"algorithm": "fedper", "model": "mlp", "evaluation.unseen_fraction": 0.3},
    "clustered": {"algorithm": "clustered", "evaluation.unseen_fraction": 0.3},
    "fine-tuning": {"algorithm": "fedavg_ft", "participation": 0.5},
    "neighbours": {"algorithm": "knn_per", "model": "mlp", "participation": 0.5},
    "maml": {"algorithm": "fomaml", "participation": 0.5},
    "mocha": {"algorithm": "mocha", "participation": 0.5},
    "dropping": {"on_divergence": "drop", "participation": 0.5},
}


BY_DEFAULT = {"fedem", "everyone", "unseen", "gossip", "clustered", "dropping"}


@pytest.mark.parametrize(
    "method",
    [pytest.param(name, marks=[pytest.mark.slow] * (name not in BY_DEFAULT)) for name in METHODS],
)
def test_a_run_is_the_same_with_samples_made_when_needed(method, tmp_path, monkeypatch):
    overrides = {**SMALL, "data.n_test": 10, "rounds": 4, **METHODS[method]}
    run("synthetic-fedem", overrides, tmp_path / "early")
    monkeypatch.setattr(hosted, "BLOCK", 2e3)
    monkeypatch.setattr(solver, "BLOCK_BYTES", 1)
    run("synthetic-fedem", {**overrides, "storage.samples": 0.01}, tmp_path / "late")
    assert differences(tmp_path / "early", tmp_path / "late") == []


@pytest.mark.parametrize("participation", [0.75, 1.0])
def test_a_round_of_steps_never_holds_all_samples(participation, monkeypatch):
    monkeypatch.setattr(hosted, "BLOCK", 2e3)
    monkeypatch.setattr(solver, "BLOCK_BYTES", 1)
    more = {"algorithm": "fedavg", "participation": participation, "storage": {"samples": 0}}
    engine = prepared("fedavg", "server", data="synthetic", **more)
    shards, made = engine.shards, []
    make = shards._make
    shards._make = lambda name, ids, dtype: made.append(ids) or make(name, ids, dtype)
    engine.advance()
    clients = np.concatenate(made)
    assert len(made) > 2
    assert len(np.unique(clients)) == len(clients) == engine.active


SAMPLED = {
    **SMALL,
    "clients": 9,
    "data.n_test": 15,
    "evaluation.sample": 0.4,
    "evaluation.unseen_fraction": 0.3,
    "participation": 0.5,
}


def scored(folder: Path) -> dict[str, np.ndarray]:
    return content(folder / "clients.h5")


def test_sampled_scores_are_those_of_these_clients(tmp_path):
    whole = {key: value for key, value in SAMPLED.items() if key != "evaluation.sample"}
    run("synthetic-fedem", whole, tmp_path / "whole")
    run("synthetic-fedem", SAMPLED, tmp_path / "some")
    some, every = scored(tmp_path / "some"), scored(tmp_path / "whole")
    ids = some["client_id"]
    # Of six in training two, and of three unseen one.
    assert len(ids) == 3
    assert some["unseen"].sum() == 1
    assert {*some} == {*every}
    for name, values in some.items():
        assert values.tobytes() == every[name][ids].tobytes()
    last, seen = rows(tmp_path / "some")[-1], ~some["unseen"].astype(bool)
    mean = np.average(some["test_accuracy"][seen], weights=some["n_test"][seen])
    assert float(last["test_accuracy"]) == pytest.approx(mean, rel=1e-12)
    assert last["state_digest"] == rows(tmp_path / "whole")[-1]["state_digest"]
    summary = read_summary(tmp_path / "some" / "summary.json")
    assert summary["scored_clients"] == 3
    assert "scored_clients" not in read_summary(tmp_path / "whole" / "summary.json")
    assert re.search("\\b3 of .*9 clients", (tmp_path / "some" / "log.txt").read_text())


def test_an_evaluation_draws_its_clients_anew(tmp_path):
    drawn = set()
    for rounds in range(1, 6):
        changes = {**SAMPLED, "rounds": rounds, "clients": 30, "evaluation.sample": 0.1}
        run("synthetic-fedem", changes, tmp_path / str(rounds))
        drawn.add(tuple(scored(tmp_path / str(rounds))["client_id"]))
    assert len(drawn) > 1


@pytest.mark.mpi
def test_a_sample_is_the_same_on_any_number_of_ranks(tmp_path):
    communicator, folder = world(), folder_of(tmp_path)
    run_on_all("synthetic-fedem", SAMPLED, folder / "many")
    found = None
    if communicator.rank == 0:
        run("synthetic-fedem", SAMPLED, folder / "one")
        found = differences(folder / "many", folder / "one")
    assert communicator.broadcast_object(found) == []
