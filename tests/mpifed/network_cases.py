"""Shipped networks for drawn data."""

from __future__ import annotations

import numpy as np
from torch.nn import Dropout

from mpifed.dataset import Description
from mpifed.testing import make_model


def data(shape, n_classes=10, task="classification", counts=None):
    n = np.array([6, 4])
    return Description("drawn", shape, n_classes, n, n, n, task, label_counts=counts)


def made(name, shape, n_classes=10, task="classification", **options):
    return make_model({"name": name, **options}, data(shape, n_classes, task)).network


def size(module):
    return sum(p.numel() for p in module.parameters())


def without_dropout(module):
    """``module`` in training mode, in which running statistics are not used, without dropout."""
    module.train()
    for part in module.modules():
        if isinstance(part, Dropout):
            part.eval()
    return module
