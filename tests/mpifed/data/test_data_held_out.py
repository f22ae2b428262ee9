"""Training samples held out for validation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mpifed.dataset import Dataset, Description, Shards, Split
from mpifed.errors import InputError
from mpifed.testing import load_dataset


class Numbered(Dataset):
    """Training sample j of client i is 1000 i + j; one validation and one test sample each."""

    def __init__(self, n_clients, run_seed, communicator, *, counts: list[int]):
        ones = np.ones(len(counts), np.int64)
        self.description = Description("numbered", (1,), 10**6, np.array(counts), ones, ones)

    def load(self, client_ids, dtype):
        counts = self.description.n_train[client_ids]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        parts = [1000 * c + np.arange(n) for c, n in zip(client_ids, counts, strict=True)]
        y = torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64))
        ends = np.arange(len(client_ids) + 1)
        one = Split(
            torch.zeros(len(client_ids), 1, dtype=dtype),
            torch.zeros(len(ends) - 1, dtype=torch.int64),
            ends,
        )
        return Shards(client_ids, Split(y[:, None].to(dtype), y, offsets), one, one)


def held_out(counts: list[int], fraction: float, seed: int) -> Dataset:
    data = {"name": Numbered, "counts": counts}
    evaluation = {"validation_fraction": fraction}
    return load_dataset(data, len(counts), seed=seed, evaluation=evaluation)


Counts = st.lists(st.integers(1, 30), min_size=1, max_size=8).filter(lambda c: max(c) > 1)
Fraction = st.floats(0.001, 0.999)


@given(Counts, Fraction, st.integers(0, 2**31), st.data())
def test_every_sample_is_trained_on_or_held_out_whoever_hosts_it(counts, fraction, seed, data):
    dataset = held_out(counts, fraction, seed)
    whole = dataset.load(np.arange(len(counts)), torch.float64)
    chosen = data.draw(st.sets(st.integers(0, len(counts) - 1)).map(sorted))
    part = dataset.load(np.array(chosen, np.int64), torch.float64)
    for place, client in enumerate(chosen):
        seen = []
        for name in ("train", "val"):
            ours, all_of = getattr(part, name), getattr(whole, name)
            own = ours.y[slice(*ours.offsets[place : place + 2])]
            assert torch.equal(own, all_of.y[slice(*all_of.offsets[client : client + 2])])
            assert torch.equal(own, own.sort().values)
            assert len(own) == getattr(dataset.description, f"n_{name}")[client]
            seen += own.tolist()
        assert sorted(seen) == [1000 * client + j for j in range(counts[client])]
    assert torch.equal(part.train.x[:, 0].long(), part.train.y)
    assert len(part.test.y) == len(chosen)


@given(st.integers(1, 10**6), Fraction)
def test_how_many_are_held_out(n, fraction):
    held = int(held_out([n, 9], fraction, 0).description.n_val[0])
    assert held == 0 if n == 1 else 1 <= held < n
    assert held in (1, n - 1, 0) or abs(held - fraction * n) <= 0.5


def test_other_seeds_and_clients_hold_out_others():
    def held(seed):
        val = held_out([50, 50], 0.2, seed).load(np.arange(2), torch.float32).val
        return (val.y[:10] % 1000).tolist(), (val.y[10:] % 1000).tolist()

    first, second = held(0)
    assert first != second
    assert held(1)[0] != first
    assert held(0) == (first, second)


def test_the_test_samples_stay_as_they_are():
    sine = {"name": "sine", "split": 2, "n_train": 10, "n_val": 3, "n_test": 4}
    plain = load_dataset(sine, 5)
    dataset = load_dataset(sine, 5, evaluation={"validation_fraction": 0.25})
    about, clients = dataset.description, np.array([1, 4])
    assert (about.n_train == 7).all() and (about.n_val == 3).all()
    counts = {"n_train": 0, "n_val": 0}
    np.testing.assert_equal({**vars(about), **counts}, {**vars(plain.description), **counts})
    found, before = dataset.load(clients, torch.float64), plain.load(clients, torch.float64)
    assert torch.equal(found.test.x, before.test.x)
    assert not torch.equal(found.val.x, before.val.x)


def test_a_rank_without_clients_holds_nothing_out():
    shards = held_out([4, 4], 0.5, 0).load(np.zeros(0, np.int64), torch.float32)
    assert len(shards.train.y) == len(shards.val.y) == 0
    assert shards.val.offsets.tolist() == [0]


def test_clients_of_one_sample_keep_it():
    with pytest.raises(InputError, match=r"evaluation\.validation_fraction.*0\.5.*'numbered'"):
        held_out([1, 1], 0.5, 0)
