"""What a run of FLIX measures and foretells before its first round: constants and rounds."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mpifed.algorithms.flix.objective import FlixObjective, spread
from mpifed.exchange.base import Exchange
from mpifed.exchange.measuring import total
from mpifed.federation.clients import Clients
from mpifed.local.objective import Regulariser
from mpifed.models.base import Model
from mpifed.models.linear import Linear
from mpifed.theory import flix as theory


def all_constants(
    clients: Clients,
    alpha: np.ndarray,
    smoothness: Tensor,
    strong: float,
    omega: float,
    memory_rate: float,
) -> theory.Constants:
    """The constants of the theorems over all training clients; collective.

    ``alpha`` is that of all training clients, ``smoothness`` holds L_i of the hosted ones.
    """
    federation = clients.federation
    one_hot = torch.zeros(len(clients), federation.n_clients, dtype=torch.float64)
    one_hot[torch.arange(len(clients)), torch.from_numpy(clients.ids)] = smoothness
    smooth = total(clients, one_hot).numpy()[federation.training]
    return theory.constants(alpha, smooth, strong, omega, memory_rate)


def setting_of(
    setting: Literal["auto", "strongly_convex", "convex", "nonconvex"],
    model: Model,
    regulariser: Regulariser,
) -> theory.Setting:
    """The theorems that hold; ``auto`` is by what the model and the regulariser make of f_i."""
    if setting != "auto":
        return setting
    if regulariser.kind == "nonconvex" or not isinstance(model, Linear):
        return "nonconvex"
    return "strongly_convex" if regulariser.strength > 0 else "convex"


def optima_reached(
    gradient_norms: Tensor, tolerance: float, iterations: int, clients: Clients
) -> list[str]:
    """How near to their optima the clients came, with a warning where that is too far; collective.

    ``gradient_norms`` are ||grad f_i(x_i)||, (clients,).
    """
    here = np.array(float(gradient_norms.max()) if len(gradient_norms) else 0.0)
    worst = float(clients.federation.communicator.max(here[None])[0])
    lines = [f"local optima: gradient norms up to {worst:.2e}"]
    if worst > tolerance:
        lines.append(
            f"warning: algorithm.local_tolerance {tolerance:g} was not reached (at most "
            f"{iterations} iterations, or no further progress); x_i are what was reached"
        )
    return lines


def unproven(exchange: Exchange, objective: FlixObjective, knows_participation: bool) -> str:
    """What of a run its theorem does not speak of, in words; empty where it speaks of all.

    ``knows_participation`` says that absent clients are part of the theorem's omega.
    """
    beyond = {
        "gossip": exchange.shared_is_rows,
        "stochastic gradients": objective.batch_size is not None,
        "partial participation": exchange.federation.inclusion < 1 and not knows_participation,
    }
    return " and ".join(what for what, there in beyond.items() if there)


def constants_in_words(c: theory.Constants) -> str:
    """The constants, for the log."""
    return (
        f"mean L_i {c.l_hat:.6g}, L_alpha {c.l_alpha:.6g}, condition {c.condition:.4g}, omega "
        f"{c.omega:.4g}"
    )


def theorem_two(
    c: theory.Constants,
    alpha: np.ndarray,
    optima: Tensor,
    smoothness: Tensor,
    clients: Clients,
    accuracy: float,
) -> list[str]:
    """Rounds that Theorem 2 needs for ``accuracy`` with equal coefficients; collective."""
    if c.mu_hat <= 0 or not len(alpha) or not (alpha == alpha[0]).all():
        return []
    variance = spread(optima, smoothness, clients)
    rounds = theory.communications(c, variance, accuracy, float(alpha[0]))
    most = theory.one_shot_alpha(c, variance, accuracy)
    return [
        f"Theorem 2: at most {rounds} rounds to a gap of {accuracy:g}; one round is enough up to "
        f"flix_alpha {most:.3g}"
    ]


def theorem_three(c: theory.Constants, step: float, noise: float) -> list[str]:
    """Where Theorem 3 puts the floor; ``noise`` is mean_i ||grad of f_i(T_i(x)) at x*||^2."""
    floor = theory.dcgd_floor(c, step, c.omega * noise)
    gap = c.l_alpha / 2 * floor
    return [f"Theorem 3: E||x - x*||^2 ends at {floor:.3g} at most, the gap at {gap:.3g}"]


def theorem_four(
    c: theory.Constants,
    step: float,
    away: float,
    memory_error: float,
    accuracy: float,
    averages: bool,
) -> list[str]:
    """Rounds after which Theorem 4 puts the expected gap below ``accuracy``.

    ``away`` is ||x^0 - x*||^2, ``memory_error`` sum_i ||h_i^0 - grad f_i(T_i(x*))||^2; a first
    round that ``averages`` comes on top.
    """
    sigma = c.omega * memory_error / c.n
    start = away + 4 * step**2 / (c.n * c.rho) * sigma
    rounds = theory.rounds_until(c.l_alpha / 2 * start, accuracy, theory.diana_rate(c, step))
    return [f"Theorem 4: an expected gap of {accuracy:g} after at most {rounds + averages} rounds"]
