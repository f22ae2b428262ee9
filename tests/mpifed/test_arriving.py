"""Memory of what arrived is used again, and never while anything refers to it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mpifed.mpi import arriving
from mpifed.mpi.arriving import KEPT, Arriving

SHAPE = (4, 1 << 16)


def place_of(array):
    return array.ctypes.data


@pytest.mark.parametrize(
    "refer",
    [
        lambda array: array,
        lambda array: array[1:, ::2],
        torch.from_numpy,
        lambda array: torch.from_numpy(array)[0],
        lambda array: lambda: array,
        memoryview,
    ],
    ids=["itself", "a view", "a tensor", "part of a tensor", "a closure", "its memory"],
)
def test_memory_is_used_again_once_nothing_refers_to_it(refer):
    given = Arriving()
    place, kept = place_of(given.empty(SHAPE, np.float32)), None
    kept = refer(given.empty(SHAPE, np.float32))
    assert place_of(given.empty(SHAPE, np.float32)) != place
    del kept
    assert place_of(given.empty(SHAPE, np.float32)) == place


def test_another_shape_or_type_has_memory_of_its_own():
    given = Arriving()
    first = [place_of(given.empty(SHAPE, kind)) for kind in (np.float32, np.float64)]
    assert len({*first}) == 2
    for shape in (SHAPE, (2, 1 << 17)):
        for kind in (np.float32, np.float64):
            made = given.empty(shape, kind)
            assert made.shape == shape and made.dtype == kind and made.flags.c_contiguous


def test_few_arrays_are_kept_and_no_small_or_large_ones(monkeypatch):
    given = Arriving()
    held = [given.empty(SHAPE, np.float32) for _ in range(3 * KEPT)]
    assert len({place_of(array) for array in held}) == 3 * KEPT
    assert len(given._kept) == KEPT
    monkeypatch.setattr(arriving, "MOST", 100)
    given = Arriving()
    given.empty(SHAPE, np.float32)
    given.empty((3,), np.float32)
    assert not given._kept
