"""The joint mixture of FedGMM: first values, and the E-step (Wu et al. 2023)."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mpifed.algorithms.fedem.expectation import posterior_of_losses
from mpifed.algorithms.fedgmm.gaussians import (
    Gaussians,
    mean_statistics,
    parts_of,
    statistics_at,
)
from mpifed.exchange.base import Exchange, to_server
from mpifed.federation.clients import Clients, Draws
from mpifed.local.scoring import train_losses
from mpifed.models.base import Model


def first_mixture(
    clients: Clients,
    draws: Draws,
    pairs: int,
    how: Literal["random", "uniform"],
    dtype: torch.dtype,
) -> Tensor:
    """Return first mixture weights, drawn from the flat Dirichlet distribution or all equal.

    Parameters
    ----------
    clients : Clients
        The clients hosted here.
    draws : Draws
        The random numbers of round 0.
    pairs : int
        Number of weights of a client.
    how : {'random', 'uniform'}
        How they are made.
    dtype : torch.dtype
        Their type.

    Returns
    -------
    Tensor
        (clients, pairs).
    """
    mixture = torch.full((len(clients), pairs), 1 / pairs, dtype=dtype)
    if how == "random":
        for row, client in enumerate(clients.ids):
            drawn = draws.stream("mixture", int(client)).dirichlet([1.0] * pairs)
            mixture[row] = torch.from_numpy(drawn)
    return mixture.to(clients.device)


def first_statistics(
    z: Tensor, clients: Clients, exchange: Exchange, draws: Draws, count: int, full: bool
) -> Tensor:
    """Return statistics of Gaussians around all training inputs. Collective; booked.

    Means are drawn from a normal distribution with the mean and the variances of all inputs, which
    clients send; each Gaussian has these variances.

    Parameters
    ----------
    z : Tensor
        Representations of the hosted training samples, (samples, d).
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
    rows = mean_statistics(z, z.new_ones(1, len(z)), train, training.rows, full=False)
    weighed = channel.sum(channel.send(rows, whole=True), training.weights)[0]
    mean, square = weighed[1:].chunk(2)
    variances = (square - mean.square()).clamp(min=0)
    drawn = draws.stream("gaussians").standard_normal((count, len(mean)))
    means = mean + variances.sqrt() * torch.from_numpy(drawn).to(mean)
    return statistics_at(means, variances, full)


def posterior(
    model: Model,
    components: Tensor,
    gaussians: Gaussians,
    z: Tensor,
    mixture: Tensor,
    clients: Clients,
) -> Tensor:
    """E-step: q(m1, m2) proportional to pi(m1, m2) N(x; m1) exp(-l(theta_m2; s)).

    Parameters
    ----------
    model : Model
        The model of all components.
    components : Tensor
        theta, (M2, P) or (clients, M2, P).
    gaussians : Gaussians
        M1 of them.
    z : Tensor
        Representations of the hosted training samples, (samples, d).
    mixture : Tensor
        pi, (clients, M1 M2), with m2 the faster index.
    clients : Clients
        The clients whose samples are needed.

    Returns
    -------
    Tensor
        q of all hosted training samples, (M1 M2, samples). Columns of other clients' samples have
        no meaning.
    """
    train = clients.shards.train
    losses = train_losses(model, components, train, clients.rows)
    distances = losses.new_zeros(len(gaussians.means), losses.shape[1])
    for row in clients.rows:
        for part in parts_of(train, row):
            distances[:, part] = gaussians.distances(z[part])
    pairs = losses - gaussians.log_densities(distances)[:, None]
    return posterior_of_losses(pairs.flatten(0, 1), mixture, clients)
