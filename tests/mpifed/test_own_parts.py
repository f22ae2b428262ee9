"""Wrong data sets, parts of an exchange and schedules of a user's are told before a run begins."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
import torch
from commands import call

from mpifed.data.base import Dataset, Description, Shards, Split
from mpifed.exchange.aggregation import ByCoordinates
from mpifed.exchange.attacks import Attack
from mpifed.exchange.compression import Identity
from mpifed.exchange.corrections.base import Plain

WORDS = ("clients=8", "rounds=3", "data.n_test=5", "data.dimension=4", "model=linear")


class Points(Dataset):
    """Points of two classes."""

    def __init__(self, n_clients, run_seed, communicator) -> None:
        counts = np.full(n_clients, 20)
        self.description = Description("points", (2,), 2, counts, counts, counts)

    def load(self, client_ids, dtype):
        return Shards(client_ids, *(self.split(client_ids, dtype) for _ in range(3)))

    def split(self, client_ids, dtype):
        x = torch.linspace(-1, 1, 40, dtype=dtype).reshape(20, 2).repeat(len(client_ids), 1)
        return Split(x, (x[:, 0] > 0).long(), np.arange(len(client_ids) + 1) * 20)


class NoShards(Points):
    """Forgets its ``return``."""

    def load(self, client_ids, dtype):
        super().load(client_ids, dtype)


class WidePoints(Points):
    """Has other inputs than it describes."""

    def split(self, client_ids, dtype):
        found = super().split(client_ids, dtype)
        return dataclasses.replace(found, x=found.x[:, :1])


class OtherLabels(Points):
    """Has a label that it does not describe."""

    def split(self, client_ids, dtype):
        found = super().split(client_ids, dtype)
        found.y[25] = 7
        return found


class Unnumbered(Points):
    """Has offsets without their end."""

    def split(self, client_ids, dtype):
        found = super().split(client_ids, dtype)
        return dataclasses.replace(found, offsets=found.offsets[:-1])


class FailingLoad(Points):
    """Cannot load."""

    def load(self, client_ids, dtype):
        return self.files


class Undescribed(Points):
    """Says nothing of itself."""

    def __init__(self, n_clients, run_seed, communicator) -> None:
        pass


class CountsInList(Points):
    """Counts in a list."""

    def __init__(self, n_clients, run_seed, communicator) -> None:
        counts = [20] * n_clients
        self.description = Description("points", (2,), 2, counts, counts, counts)


class FromPath(Points):
    """Is made of something else."""

    def __init__(self, path) -> None:
        pass


LOADS = "load(client_ids, dtype) returns Shards(client_ids, train, val, test)"
WRONG_DATA = {
    NoShards: f"load returned None; {LOADS}",
    WidePoints: "whose x is float32 of shape (160, 1); the description asks for float32 of shape "
    f"(160, 2) ({LOADS})",
    OtherLabels: "the label 7, which is not among 0 .. 1 in the samples of client 1",
    Unnumbered: "offsets do not begin each client's samples as the description counts them",
    FailingLoad: "load raised AttributeError: 'FailingLoad' object has no attribute 'files'",
    Undescribed: "its description is None; __init__ sets self.description = Description(source, ",
    CountsInList: "its n_train is [20, 20, 20, 20, 20, 20, ...]; it must be an integer array",
    FromPath: "is made as (path), but mpifed calls FromPath(n_clients, seed, communicator, ",
}


@pytest.mark.parametrize("kind", WRONG_DATA, ids=lambda kind: kind.__name__)
def test_a_wrong_data_set_is_refused_before_anything_is_written(kind, tmp_path, capfd):
    words = ["clients=8", "rounds=1", "algorithm=fedavg", "model=linear"]
    words += [f"data={__name__}:{kind.__name__}", "--output", tmp_path / "run"]
    done = call(words, capfd)
    assert done.code == 2, done
    (line,) = done.err.splitlines()
    assert WRONG_DATA[kind] in line and kind.__name__ in line
    assert list(tmp_path.iterdir()) == []


def test_a_right_data_set_is_loaded_in_part_by_a_dry_run(tmp_path, capfd, monkeypatch):
    asked = []

    class Asked(Points):
        def load(self, client_ids, dtype):
            asked.append(client_ids.tolist())
            return super().load(client_ids, dtype)

    monkeypatch.setitem(globals(), "Asked", Asked)
    words = ["clients=8", "rounds=1", "algorithm=fedavg", "model=linear", f"data={__name__}:Asked"]
    assert call([*words, "--dry-run"], capfd).code == 0
    assert call([*words, "--output", tmp_path / "run"], capfd).code == 0
    assert asked == [[6, 7], [7], [0, 1, 2], list(range(8)), [7]]


class Lossy(Identity):
    """Loses a number."""

    def __call__(self, rows, draws, ids, purpose=""):
        return rows[:, 1:]


class Uncounted(Identity):
    """Counts no bits."""

    def bits(self, size, itemsize, draws, ids, purpose=""):
        return None


class Uncombined(ByCoordinates):
    """Returns what it is given."""

    def combine(self, columns):
        return columns


class Forgets(Plain):
    """Returns the values alone."""

    def step(self, x, moved, kept, neighbours):
        return neighbours.mix(moved)


class Withholds(Attack):
    """Sends nothing."""

    changes_updates = True

    def sent(self, updates, malicious, participants):
        return None


class Unlabels(Attack):
    """Trains on no labels."""

    changes_labels = True

    def relabelled(self, y, n_classes):
        return None


PARTS = {
    Lossy: "compressor 'Lossy': __call__ returned a Tensor of shape (8, 4); it must return a "
    "Tensor of shape (8, 5) (mpifed calls __call__(rows, draws, ids, purpose), in ",
    Uncounted: "compressor 'Uncounted': bits returned None; it must return a ndarray of shape (8,) "
    "(mpifed calls bits(size, itemsize, draws, ids, purpose), in ",
    Uncombined: "aggregator 'Uncombined': combine returned a ndarray of shape (8, 5); it must "
    "return a ndarray of shape (5,) (mpifed calls combine(columns), in ",
    Forgets: "correction 'Forgets': step returned a Tensor; it must return two tensors, values and "
    "what is remembered (mpifed calls step(x, moved, kept, neighbours), in ",
    Withholds: "attack 'Withholds': sent returned None; it must return a Tensor of shape (1, 1, 5) "
    "(mpifed calls sent(updates, malicious, participants), in ",
    Unlabels: "attack 'Unlabels': relabelled returned None; it must return a Tensor of shape ",
}
PLACES = {
    Lossy: ["compression"],
    Uncounted: ["compression"],
    Uncombined: ["exchange.aggregator"],
    Forgets: ["exchange.correction", "exchange=gossip"],
    Withholds: ["attack.name", "attack.clients=[1]"],
    Unlabels: ["attack.name", "attack.clients=[1]"],
}


@pytest.mark.parametrize("kind", PARTS, ids=lambda kind: kind.__name__)
def test_other_wrong_parts_of_a_round_are_named(kind, tmp_path, capfd):
    place, *more = PLACES[kind]
    words = [*WORDS, "algorithm=fedavg", f"{place}={__name__}:{kind.__name__}", *more]
    done = call([*words, "--output", tmp_path / "run"], capfd)
    assert done.code == 2 and PARTS[kind] in done.err, done
    assert re.search(r", in \S*test_own_parts\.py, line \d+\)$", done.err.strip()), done
    assert list(tmp_path.iterdir()) == []


def odd_rounds_only(n, round):
    """A schedule without a matrix for even rounds."""
    return np.eye(n) if round % 2 else None


def odd_sums(n, round):
    """A schedule whose later matrices do not average."""
    return np.eye(n) * (1 if round < 3 else 2)


def no_round(n):
    """A schedule that is no schedule."""
    return np.eye(n)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "odd_rounds_only",
            "for round 2: None was returned; function(n, round, **options) returns",
        ),
        ("odd_sums", "for round 3: the matrix is not a mixing matrix: rows do not sum to one"),
        ("no_round", "write def function(n, round) for one that returns the matrix of a round"),
    ],
)
def test_the_rounds_of_a_schedule_are_checked_before_the_first(name, said, tmp_path, capfd):
    words = [*WORDS, "algorithm=fedavg", "exchange=gossip"]
    words += [f"exchange.schedule={__name__}:{name}", "--output", tmp_path / "run"]
    done = call(words, capfd)
    assert done.code == 2 and said in done.err, done
    assert list(tmp_path.iterdir()) == []


def drawn_anew(n, round):
    """A schedule whose draws follow no seed."""
    w = np.eye(n)
    i, j = np.random.default_rng().permutation(n)[:2]
    w[i, i] = w[j, j] = w[i, j] = w[j, i] = 0.5 + np.random.default_rng().random() / 9
    w[i, i] = w[j, j] = 1 - w[i, j]
    return w


class Seeded(Points):
    """Draws each client's samples from its own generator."""

    def split(self, client_ids, dtype):
        drawn = [np.random.default_rng(int(client)).normal(size=(20, 2)) for client in client_ids]
        x = torch.from_numpy(np.concatenate([np.zeros((0, 2)), *drawn])).to(dtype)
        return Split(x, (x[:, 0] > 0).long(), np.arange(len(client_ids) + 1) * 20)


class Unseeded(Seeded):
    """Draws from nobody's generator."""

    def split(self, client_ids, dtype):
        found = super().split(client_ids, dtype)
        noise = np.random.default_rng().normal(size=found.x.shape)
        return dataclasses.replace(found, x=found.x + torch.from_numpy(noise).to(dtype))


class Together(Seeded):
    """Draws the samples of all clients of a rank from one generator."""

    def split(self, client_ids, dtype):
        found = super().split(client_ids, dtype)
        x = torch.from_numpy(np.random.default_rng(1).normal(size=found.x.shape)).to(dtype)
        return dataclasses.replace(found, x=x)


@pytest.mark.parametrize("more", [[], ["--dry-run"]], ids=["run", "dry run"])
@pytest.mark.parametrize("kind", ["drawn_anew", "Seeded", "Unseeded", "Together"])
def test_what_differs_the_second_time_is_refused(kind, more, tmp_path, capfd):
    gossips = kind == "drawn_anew"
    own = f"exchange.schedule={__name__}:{kind}" if gossips else f"data={__name__}:{kind}"
    words = ["clients=8", "rounds=2", "algorithm=fedavg", own]
    words += [*WORDS[2:], "exchange=gossip"] if gossips else ["model=linear"]
    done = call([*words, "--output", tmp_path / "run", *more], capfd)
    if kind == "Seeded":
        assert done.code == 0, done
        return
    said = "which gives another W for round 1" if gossips else "which gives client 7 other samples"
    assert done.code == 2 and said in done.err and "default_rng([" in done.err, done
    assert re.search(r" \(in \S*test_own_parts\.py, line \d+\)$", done.err.strip()), done
    assert list(tmp_path.iterdir()) == []
