"""The joint mixture of FedGMM (Wu et al. 2023): first Gaussians, E-step, and predictors."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from mpifed.algorithms.base import Predictor
from mpifed.algorithms.fedgmm.gaussians import (
    TOGETHER,
    Gate,
    Gaussians,
    Representation,
    mean_statistics,
    statistics_at,
    width_of,
)
from mpifed.exchange.base import Exchange, to_server
from mpifed.federation.clients import Clients, Draws
from mpifed.local.scoring import samples_of, train_losses
from mpifed.memory import check_memory
from mpifed.models.base import Model


def no_statistics(
    clients: Clients, count: int, representation: Representation, full: bool
) -> Tensor:
    """Return zeros for the statistics of ``count`` Gaussians, if there is memory for those sent."""
    inputs = math.prod(clients.shards.train.x.shape[1:])
    width = width_of(representation.size(inputs), full)
    check_memory(
        8.0 * len(clients) * count * width,
        f"algorithm.gmm_dimension is {representation.dimension}, which with {count} Gaussians",
    )
    return torch.zeros(count, width, dtype=torch.float64, device=clients.device)


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
    distances = losses.new_zeros(len(gaussians.log_scales), losses.shape[1])
    for row in clients.rows:
        for part in samples_of(train, row, TOGETHER):
            distances[:, part] = gaussians.distances(columns[1:, part])
    return (losses - gaussians.log_densities(distances)[:, None]).flatten(0, 1)


def predictor(
    models: Tensor, pairs: Tensor, gaussians: Gaussians, representation: Representation
) -> Predictor:
    """Return p(y | x) of joint distributions, in which the input weighs the components.

    Parameters
    ----------
    models : Tensor
        theta, (M2, P) or (clients, M2, P).
    pairs : Tensor
        pi, (clients, M1, M2). With one Gaussian or one component the input has no influence.
    gaussians : Gaussians
        M1 of them.
    representation : Representation
        What they are over.
    """
    gate = Gate(gaussians, representation, pairs) if min(pairs.shape[1:]) > 1 else None
    return Predictor(models, pairs.sum(1), {"joint_mixture": pairs}, gate)
