"""Facts of real published files; conftest.py leaves this out where they are not at hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from loading import all_rows, labels_by_client
from published import REAL

from mpifed.data.cifar import Cifar10, Cifar100
from mpifed.mpi.communicator import Alone


def test_cifar_10():
    _, y = all_rows(dataset := Cifar10(10, 0, Alone(), raw=str(REAL / "cifar10")), torch.float32)
    assert np.bincount(y).tolist() == [400] * 10
    x, _ = all_rows(dataset, torch.float32)
    assert x.mean((0, 2, 3)) == pytest.approx([0.49, 0.48, 0.45], abs=0.005)


def test_cifar_100():
    dataset = Cifar100(10, 0, Alone(), raw=str(REAL / "cifar100"))
    _, y = all_rows(dataset, torch.float32)
    assert np.bincount(y).tolist() == [40] * 100
    assert {len(labels) for labels in labels_by_client(dataset)} == {400}
