"""The joint mixture of FedGMM: first Gaussians, and what its E-step compares (Wu et al. 2023)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mpifed.algorithms.fedgmm.gaussians import (
    TOGETHER,
    Gaussians,
    mean_statistics,
    statistics_at,
)
from mpifed.exchange.base import Exchange, to_server
from mpifed.federation.clients import Clients, Draws
from mpifed.local.scoring import samples_of, train_losses
from mpifed.models.base import Model


def first_statistics(
    columns: Tensor, clients: Clients, exchange: Exchange, draws: Draws, count: int, full: bool
) -> Tensor:
    """Return statistics of Gaussians around all training inputs. Collective; booked.

    Means are drawn from a normal distribution with the mean and the variances of all inputs, which
    clients send; each Gaussian has these variances.

    Parameters
    ----------
    columns : Tensor
        (1, z) of the hosted training samples, (1 + d, samples).
    clients : Clients
        All clients hosted here.
    exchange : Exchange
        A server.
    draws : Draws
        The random numbers of round 0.
    count : int
        Number of Gaussians.
    full : bool
        Whether covariances are matrices, or diagonal.
    """
    federation, train = clients.federation, clients.shards.train
    own = np.flatnonzero(~federation.unseen[clients.ids])
    training = Clients(federation, clients.shards, clients.rows[own])
    channel = to_server(exchange.at(0, ~federation.unseen))
    rows = mean_statistics(columns, columns[:1], train, training.rows, full=False)
    weighed = channel.sum(channel.send(rows, whole=True), training.weights)[0]
    mean, square = weighed[1:].chunk(2)
    variances = (square - mean.square()).clamp(min=0)
    drawn = draws.stream("gaussians").standard_normal((count, len(mean)))
    means = mean + variances.sqrt() * torch.from_numpy(drawn).to(mean)
    return statistics_at(means, variances, full)


def pair_losses(
    model: Model, components: Tensor, gaussians: Gaussians, columns: Tensor, clients: Clients
) -> Tensor:
    """Return l(theta_m2; s) - log N(x; m1) of every training sample and pair (m1, m2).

    A constant of each sample is left out, which cancels in posterior probabilities.

    Parameters
    ----------
    model : Model
        The model of all components.
    components : Tensor
        theta, (M2, P) or (clients, M2, P).
    gaussians : Gaussians
        M1 of them.
    columns : Tensor
        (1, z) of the hosted training samples, (1 + d, samples).
    clients : Clients
        The clients whose samples are needed.

    Returns
    -------
    Tensor
        (M1 M2, samples), with m2 the faster index. Columns of other clients' samples have no
        meaning.
    """
    train = clients.shards.train
    losses = train_losses(model, components, train, clients.rows)
    distances = losses.new_zeros(len(gaussians.means), losses.shape[1])
    for row in clients.rows:
        for part in samples_of(train, row, TOGETHER):
            distances[:, part] = gaussians.distances(columns[1:, part])
    return (losses - gaussians.log_densities(distances)[:, None]).flatten(0, 1)
