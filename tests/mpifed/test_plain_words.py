"""Inputs that were misread or reported by a consequence are refused by their cause."""

from __future__ import annotations

import pytest

from mpifed.config.configuration import parse_overrides
from mpifed.data.sources.flix import Sine
from mpifed.errors import InputError
from mpifed.mpi.communicator import Alone


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("1_0", "10"),
        ("010", "8"),
    ],
)
def test_a_number_that_only_yaml_1_1_reads_is_refused_with_what_was_read(written, read):
    with pytest.raises(InputError, match=f"seed: .*{written} would be read as the number {read};"):
        parse_overrides([f"seed={written}"])
    assert parse_overrides([f"seed='{written}'"]) == {"seed": written}


@pytest.mark.parametrize(("clients", "split"), [(20, 6), (50, 30), (100, 30), (2, 0)])
def test_the_families_of_sine_follow_the_number_of_clients(clients, split):
    assert Sine(clients, 0, Alone()).split == split
