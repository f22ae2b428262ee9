"""Inputs that were misread or reported by a consequence are refused by their cause."""

from __future__ import annotations

import pytest

from mpifed.data.sources.flix import Sine
from mpifed.mpi.communicator import Alone


@pytest.mark.parametrize(("clients", "split"), [(20, 6), (50, 30), (100, 30), (2, 0)])
def test_the_families_of_sine_follow_the_number_of_clients(clients, split):
    assert Sine(clients, 0, Alone()).split == split
