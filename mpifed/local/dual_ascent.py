"""Stochastic dual coordinate ascent (SDCA; Shalev-Shwartz and Zhang 2013) for linear models.

Client t has the samples x_j of m_t, targets y_j and a dual variable a_j for each sample and output.
Its part of a larger dual problem is, with b = (1 / m_t) sum_j a_j x_j,

    max over da of (1 / m_t) sum_j [ -l*(-(a_j + da_j)) - da_j <w_t, x_j> ] - (c / 2) ||db||^2

where w_t and the coupling c > 0 are given (Smith et al. 2017, eq. 4). A step maximises over one
da_j and is a formula for the losses below. Linear models have a column of ones for their bias.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mpifed.federation.clients import Clients, Draws
from mpifed.local.linear_objective import columns_of, rows_of
from mpifed.models.linear import Linear
from mpifed.random import shuffles
from mpifed.supervision import heartbeat


@dataclass(frozen=True)
class DualLoss:
    """A loss of outputs z, with what SDCA needs of its conjugate l*; all elementwise.

    Attributes
    ----------
    value : callable
        ``value(z, y)``: l(z).
    gain : callable
        ``gain(a, y)``: -l*(-a), which the dual objective has in place of the loss.
    best : callable
        ``best(a, z, y, curvature)``: the maximiser of gain(a') - a' z - (curvature / 2) (a' - a)^2
        over a', where z is the output at a.
    """

    value: Callable[[Tensor, Tensor], Tensor]
    gain: Callable[[Tensor, Tensor], Tensor]
    best: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


HINGE = DualLoss(
    value=lambda z, y: (1 - y * z).clamp(min=0),
    gain=lambda a, y: a * y,
    best=lambda a, z, y, curvature: y * ((1 - y * z) / curvature + y * a).clamp(0, 1),
)
"""max(0, 1 - y z) with y = -1 or 1; y a lies in [0, 1]."""

HALF_SQUARED = DualLoss(
    value=lambda z, y: (z - y).square() / 2,
    gain=lambda a, y: a * y - a.square() / 2,
    best=lambda a, z, y, curvature: a + (y - z - a) / (1 + curvature),
)
"""(z - y)^2 / 2."""


def dual_loss_of(model: Linear) -> DualLoss:
    """Return the loss that SDCA minimises for a model: hinge, or half the square of regressions."""
    return HALF_SQUARED if model.loss.measure is None else HINGE


def targets_of(model: Linear, y: Tensor) -> Tensor:
    """Return the targets of each output, float64 (samples, outputs).

    They are -1 or 1 for labels and tags; of more than two classes, each output has its own (one
    against all).

    Examples
    --------
    >>> targets_of(Linear(4, 1), torch.tensor([0, 1])).flatten()
    tensor([-1.,  1.], dtype=torch.float64)
    >>> targets_of(Linear(4, 3), torch.tensor([2]))
    tensor([[-1., -1.,  1.]], dtype=torch.float64)
    """
    if model.loss.measure is None:
        return y.double()
    if y.dim() == 1:
        outputs = model.n_outputs
        y = y[:, None] if outputs == 1 else torch.nn.functional.one_hot(y, outputs)
    return 2 * y.double() - 1


def with_ones(model: Linear, x: Tensor) -> Tensor:
    """Return inputs as rows of a design matrix, float64 (samples, columns)."""
    flat = x.flatten(1).double()
    return torch.cat([flat, flat.new_ones(len(flat), 1)], 1) if model.bias else flat


def risks_and_gains(
    model: Linear, loss: DualLoss, duals: Tensor, parameters: Tensor, clients: Clients
) -> Tensor:
    """Return each client's mean of the loss and of its dual gain.

    Parameters
    ----------
    model, loss, duals, parameters, clients
        As for ``ascend``.

    Returns
    -------
    Tensor
        float64 (clients, 2): (1 / m_t) sum_j l(<w_t, x_j>) and (1 / m_t) sum_j -l*(-a_j), each
        added over outputs.
    """
    split, found = clients.shards.train, torch.zeros(len(clients), 2, dtype=torch.float64)
    for i, row in enumerate(clients.rows):
        heartbeat.step()
        part = split.rows_of(row)
        y = targets_of(model, split.y[part])
        z = with_ones(model, split.x[part]) @ columns_of(model, parameters[i : i + 1])[0]
        found[i, 0] = loss.value(z, y).sum() / len(y)
        found[i, 1] = loss.gain(duals[i, :, : len(y)].T, y).sum() / len(y)
    return found


def ascend(
    model: Linear,
    loss: DualLoss,
    duals: Tensor,
    parameters: Tensor,
    coupling: Tensor,
    fraction: float,
    clients: Clients,
    draws: Draws,
) -> tuple[Tensor, Tensor]:
    """Make SDCA steps on a share of each client's samples, drawn without replacement.

    Parameters
    ----------
    model : Linear
        Whose rows ``parameters`` are.
    loss : DualLoss
        The loss l.
    duals : Tensor
        a, (clients, outputs, longest shard); zeros beyond a client's samples.
    parameters : Tensor
        w_t, float64 (clients, P).
    coupling : Tensor
        c, float64 (clients,).
    fraction : float
        Share of the samples that are visited; late clients visit a part of these.
    clients : Clients
        The participants hosted here.
    draws : Draws
        Random numbers of the round.

    Returns
    -------
    tuple of Tensor
        The new a, and db as rows of parameters, (clients, P).
    """
    if not len(clients):
        return duals, parameters
    split, m = clients.shards.train, clients.n_train
    effort = np.ones(len(clients)) if clients.effort is None else clients.effort
    steps = np.ceil(effort * fraction * m).astype(np.int64).clip(min=1)
    visits = shuffles(draws.client_keys("coordinates", clients.ids), m)
    order = np.argsort(-steps, kind="stable")  # those that still step are the first ones
    first, begin = (np.cumsum(m) - m)[order], clients.starts[order]
    at = torch.from_numpy(order)
    a, v = duals[at], columns_of(model, parameters)[at].transpose(1, 2).contiguous()
    db, counts = torch.zeros_like(v), torch.from_numpy(m).double()[at, None]
    c, targets, rows = coupling[at, None], targets_of(model, split.y), torch.arange(len(at))
    for step in range(int(steps.max())):
        heartbeat.step()
        k = int((steps > step).sum())
        j, row = torch.from_numpy(visits[first[:k] + step]), rows[:k]
        sample = torch.from_numpy(begin[:k]) + j
        x, y = with_ones(model, split.x[sample]), targets[sample]
        z = (v[:k] * x[:, None]).sum(-1)
        curvature = c[:k] * x.square().sum(1, keepdim=True) / counts[:k]
        before = a[row, :, j]
        after = loss.best(before, z, y, curvature)
        a[row, :, j] = after
        change = ((after - before) / counts[:k])[..., None] * x[:, None]
        db[:k] += change
        v[:k] += c[:k, None] * change
    back = torch.from_numpy(np.argsort(order))
    return a[back], rows_of(model, db.transpose(1, 2))[back]
