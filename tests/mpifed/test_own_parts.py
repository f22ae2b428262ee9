"""Wrong data sets, parts of an exchange and schedules of a user's are told before a run begins."""

from __future__ import annotations

import dataclasses

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


class CountsInList(Points):
    """Counts in a list."""

    def __init__(self, n_clients, run_seed, communicator) -> None:
        counts = [20] * n_clients
        self.description = Description("points", (2,), 2, counts, counts, counts)


WRONG_DATA = {
    WidePoints: "has the shape (160, 1); its description asks for (160, 2)",
    OtherLabels: "the label 7, which is not among 0 .. 1, of client 1",
    Unnumbered: "do not begin each client's samples as its description counts them",
    CountsInList: "must be integer arrays",
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


PLACES = {
    Lossy: ["compression"],
    Uncounted: ["compression"],
    Uncombined: ["exchange.aggregator"],
    Forgets: ["exchange.correction", "exchange=gossip"],
    Withholds: ["attack.name", "attack.clients=[1]"],
    Unlabels: ["attack.name", "attack.clients=[1]"],
}


@pytest.mark.parametrize("kind", PLACES, ids=lambda kind: kind.__name__)
def test_what_parts_of_a_round_return_has_the_form_of_what_they_were_given(kind, tmp_path, capfd):
    place, *more = PLACES[kind]
    words = [*WORDS, "algorithm=fedavg", f"{place}={__name__}:{kind.__name__}", *more]
    done = call([*words, "--output", tmp_path / "run"], capfd)
    word = "correction.step" if kind is Forgets else kind.__name__
    assert done.code == 1 and word in done.err, done
