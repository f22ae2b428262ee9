"""Objective of FedMM on training and on test samples: sum_i mu_i f_i(theta) + g(theta)."""

from __future__ import annotations

import torch
from torch import Tensor

from mpifed.algorithms.fedmm.failures import mean_loss_or_nan
from mpifed.algorithms.fedmm.samples import inputs_of
from mpifed.data.base import Split
from mpifed.exchange.measuring import total
from mpifed.federation.clients import Clients
from mpifed.surrogates.base import Surrogate


def training_objective(
    surrogate: Surrogate, theta: Tensor, clients: Clients, weights: Tensor, with_target: bool
) -> float:
    """Return the objective on all training samples; collective.

    Parameters
    ----------
    surrogate : Surrogate
        The problem, with its losses and penalty.
    theta : Tensor
        (n_parameters,).
    clients : Clients
        The training clients hosted here.
    weights : Tensor
        mu_i, float64 (clients,).
    with_target : bool
        Whether targets are part of the samples.

    Returns
    -------
    float
    """
    means = risks(surrogate, theta, clients.shards.train, clients, with_target)
    return float(total(clients, means, weights)[0]) + surrogate.penalty(theta)


def test_objective(
    surrogate: Surrogate, theta: Tensor, clients: Clients, by_samples: bool, with_target: bool
) -> float | None:
    """Return the objective on test samples, of the clients that have any; collective.

    Parameters
    ----------
    surrogate, theta, clients, with_target
        As for ``training_objective``.
    by_samples : bool
        Whether clients weigh by their test samples, or alike.

    Returns
    -------
    float or None
        None where no client has test samples.
    """
    counts = torch.from_numpy(clients.shards.test.counts[clients.rows]).double()
    means = risks(surrogate, theta, clients.shards.test, clients, with_target)
    weights = counts if by_samples else (counts > 0).double()
    summed, mass = total(clients, torch.cat([means, torch.ones_like(means)], 1), weights)
    return float(summed / mass) + surrogate.penalty(theta) if mass else None


def risks(
    surrogate: Surrogate, theta: Tensor, split: Split, clients: Clients, with_target: bool
) -> Tensor:
    """Return each client's mean loss on some of its samples.

    Parameters
    ----------
    surrogate, theta, clients, with_target
        As for ``training_objective``.
    split : Split
        Training or test samples of the hosted clients.

    Returns
    -------
    Tensor
        float64 (clients, 1); 0 without samples, NaN where a loss cannot be computed.
    """
    means = torch.zeros(len(clients), 1, dtype=torch.float64)
    for i, row in enumerate(clients.rows):
        if split.counts[row]:
            z = inputs_of(split.of_client(row), with_target)
            means[i] = mean_loss_or_nan(surrogate, z, theta)
    return means
