"""Clients dealt to ranks by their work, measured or counted."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from on_ranks import SMALL, run, unlike_one_rank

from mpifed.config.configuration import resolve
from mpifed.data.base import Description
from mpifed.errors import InputError
from mpifed.federation.clients import balanced_owners
from mpifed.mpi.communicator import Alone
from mpifed.training.build import HEAD, read_costs, samples_of_steps

works = st.lists(st.floats(0.01, 100), min_size=1, max_size=7)


@settings(max_examples=60, deadline=None)
@given(works, st.integers(1, 3))
def test_no_rank_has_more_than_four_thirds_of_the_least_largest_work(work, ranks):
    work = np.array(work)
    dealt = np.bincount(balanced_owners(work, ranks), work, minlength=ranks).max()
    every = itertools.product(range(ranks), repeat=len(work))
    best = min(np.bincount(owner, work, minlength=ranks).max() for owner in every)
    assert dealt <= (4 / 3 - 1 / (3 * ranks)) * best * (1 + 1e-12)


def test_work_is_the_samples_that_steps_and_scoring_visit():
    counts = np.array([10, 25, 0])
    about = Description("made up", (2,), 2, counts, 0 * counts, np.array([4, 0, 0]))
    base = {"clients": 3, "evaluation": {"every": 2}}

    def of(**local):
        return samples_of_steps(resolve({**base, "local": {"batch_size": 10, **local}}), about)

    assert np.allclose(of(epochs=2), [20 + 2, 50, 0])
    # Three minibatches of a client with 25 samples have 25 samples in all.
    assert np.allclose(of(steps=6), [60 + 2, 50, 0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("client,seconds\n0,1\n1,2\n", "has 2 clients, but the run has 3"),
        ("client,seconds\n0,1\n1,-2\n2,3\n", "is not the timing.csv of a run"),
        ("client,seconds\n0,1\n1\n2,3\n", "is not the timing.csv of a run"),
    ],
)
def test_costs_of_other_clients_are_refused(text, message, tmp_path):
    path = tmp_path / "timing.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_costs(tmp_path, 3)


def test_a_run_writes_what_its_clients_cost(tmp_path):
    run("synthetic-fedem", {**SMALL, "rounds": 1}, tmp_path / "first", Alone())
    assert (tmp_path / "first" / "timing.csv").read_text().startswith(HEAD)
    costs = read_costs(tmp_path / "first", 7)
    assert (costs > 0).all()
    assert json.loads((tmp_path / "first" / "summary.json").read_text())["imbalance"] == 1.0


@pytest.mark.mpi
@pytest.mark.parametrize("exchange", ["server", "gossip"])
def test_balanced_placement_changes_no_number(exchange, tmp_path):
    chosen = {"placement": "balanced", "exchange": exchange, "clients": 12}
    assert unlike_one_rank({**SMALL, **chosen}, tmp_path) == []
