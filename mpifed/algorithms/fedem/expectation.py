"""The E-step of FedEM, and mixture weights (Marfoq et al. 2021, eqs. 8 and 9)."""

from __future__ import annotations

from functools import reduce
from typing import Literal

import torch
from torch import Tensor

from mpifed.errors import InputError
from mpifed.method import Clients, Draws
from mpifed.model import Model, mean_by_client, train_losses

# Largest change of a client's mixture weights at which E-steps on fixed components end.
CONVERGED = 1e-6

# Largest number of E-steps on fixed components.
MOST_E_STEPS = 1000


def check_floor(floor: float, count: int, options: str) -> None:
    """Refuse a floor above which ``count`` weights have no room; ``options`` say how many."""
    if floor * count >= 1:
        raise InputError(
            f"algorithm.mixture_floor is {floor:g}; it must be below 1 / {options} = {1 / count:g}"
        )


def first_mixture(
    clients: Clients,
    draws: Draws,
    count: int,
    how: Literal["random", "uniform"],
    dtype: torch.dtype,
) -> Tensor:
    """Return first mixture weights, drawn from the flat Dirichlet distribution or all equal."""
    mixture = torch.full((len(clients), count), 1 / count, dtype=dtype)
    if how == "random":
        for row, client in enumerate(clients.ids):
            drawn = draws.stream("mixture", int(client)).dirichlet([1.0] * count)
            mixture[row] = torch.from_numpy(drawn)
    return mixture.to(clients.device)


def posterior(model: Model, components: Tensor, mixture: Tensor, clients: Clients) -> Tensor:
    """E-step, eq. 8: q(z_i = m) proportional to pi_m exp(-l(theta_m; s_i))."""
    train = clients.shards.train
    losses = train_losses(model, components, train, clients.rows)
    return posterior_of_losses(losses, mixture, clients)


def log_joint(losses: Tensor, mixture: Tensor, clients: Clients) -> Tensor:
    """Return log pi_m - l(theta_m; s_i) of all hosted training samples, (M, samples)."""
    # log 0 = -inf gives q = 0: a component with weight 0 keeps it, as in exact arithmetic.
    train = clients.shards.train
    log_mixture = mixture.new_zeros(mixture.shape[1], len(train.counts))
    log_mixture[:, torch.from_numpy(clients.rows).to(mixture.device)] = torch.log(mixture).T
    return log_mixture.index_select(1, train.client_of).sub_(losses)


def posterior_of_losses(losses: Tensor, mixture: Tensor, clients: Clients) -> Tensor:
    """Return ``posterior`` for losses that are known; the arguments are those of ``log_joint``."""
    log_q = log_joint(losses, mixture, clients)
    q = torch.exp(log_q - log_q.amax(0))
    # Added component by component: a library's sum over this axis may group by position.
    return q / reduce(torch.add, q.unbind(0))


def log_likelihoods(model: Model, components: Tensor, mixture: Tensor, clients: Clients) -> Tensor:
    """Return sum_i log sum_m pi_m exp(-l(theta_m; s_i)) of each client, float64 (clients,). It is
    -n_t f_t of eq. 6.
    """
    train = clients.shards.train
    joint = log_joint(train_losses(model, components, train, clients.rows), mixture, clients)
    best = joint.amax(0)
    shares = reduce(torch.add, torch.exp(joint - best).unbind(0))
    means = mean_by_client((best + torch.log(shares))[None], train.offsets, clients.rows)[:, 0]
    return means * torch.from_numpy(train.counts[clients.rows])


def mixture_weights(q: Tensor, clients: Clients, floor: float = 0.0) -> Tensor:
    """M-step for the mixture, eq. 9: pi_m = mean_i q(z_i = m)."""
    mean = mean_by_client(q, clients.shards.train.offsets, clients.rows)
    if floor:
        mean = mean.clamp(min=floor)
        mean /= mean.sum(1, keepdim=True)
    return mean.to(q)


def fitted_mixture(
    model: Model, components: Tensor, clients: Clients, steps: int | None = None, floor: float = 0.0
) -> Tensor:
    """Return mixture weights for fixed components, by E-steps from uniform ones (section 3.2)."""
    losses = train_losses(model, components, clients.shards.train, clients.rows)
    return fitted_mixture_of_losses(losses, clients, steps, floor)


def fitted_mixture_of_losses(
    losses: Tensor, clients: Clients, steps: int | None = None, floor: float = 0.0
) -> Tensor:
    """Return ``fitted_mixture`` for losses that are known, (M, hosted training samples)."""
    mixture = losses.new_full((len(clients), len(losses)), 1 / len(losses))
    moving = torch.from_numpy(clients.shards.train.counts[clients.rows] > 0).to(mixture.device)
    for _ in range(MOST_E_STEPS if steps is None else steps):
        if not moving.any():
            break
        q = posterior_of_losses(losses, mixture, clients)
        after = mixture_weights(q, clients, floor)
        change = (after - mixture).abs().amax(1)
        mixture = torch.where(moving[:, None], after, mixture)
        if steps is None:
            moving = moving & (change > CONVERGED)
    return mixture


def entropies(mixture: Tensor) -> Tensor:
    """Return -sum_m pi_m log pi_m of each row, in nats: (clients, M) to float64 (clients,)."""
    return torch.special.entr(mixture.double()).sum(1)
