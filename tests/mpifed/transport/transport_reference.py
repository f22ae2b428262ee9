"""The convex network written layer by layer, from its formulas, for automatic differentiation."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mpifed.models.icnn import DenseICNN


def value(model: DenseICNN, parameters: Tensor, x: Tensor) -> Tensor:
    d, start = model.dimension, 0

    def take(*shape: int) -> Tensor:
        nonlocal start
        start += int(np.prod(shape))
        return parameters[start - int(np.prod(shape)) : start].view(shape)

    a, b, c = take(model.width, d), take(model.width, d), take(model.width)
    z, lo = None, 0
    for below, h in zip((0, *model.hidden), model.hidden, strict=False):
        rows = slice(lo, lo + h)
        q = (x @ a[rows].T) ** 2 + x @ b[rows].T + c[rows]
        z = q if z is None else torch.celu(z @ take(h, below).T + q)
        lo += h
    final = take(model.hidden[-1])
    assert start == model.n_parameters == len(parameters)
    return z @ final + model.strong_convexity / 2 * (x**2).sum(1)


def push(model: DenseICNN, parameters: Tensor, x: Tensor) -> Tensor:
    x = x if x.requires_grad else x.detach().requires_grad_()
    return torch.autograd.grad(value(model, parameters, x).sum(), x, create_graph=True)[0]
