"""FedMM's step sizes gamma_t, and how far they may take clients under gossip."""

from __future__ import annotations

from typing import Literal

import numpy as np

from mpifed.errors import InputError
from mpifed.federation import Federation

StepRule = Literal["constant", "sqrt", "inverse", "inverse_kept"]

DEFAULT_STEP = 0.05


def step_size(rule: StepRule, beta: float, round: int) -> float:
    """gamma_t of round t, counted from 1; it never grows."""
    rules = {
        "constant": lambda t: beta,
        "sqrt": lambda t: beta / np.sqrt(beta + t),
        "inverse": lambda t: 1 / t,
        "inverse_kept": lambda t: 1 / (t + 1),
    }
    return float(rules[rule](round))


def refuse_long_steps(federation: Federation, gamma: float, option: str) -> None:
    """Raises ``InputError`` where gamma n mu_i, with mu_i = m_i / m, is above 1 for a client.

    By gossip it would leave S beyond its statistics, and the projection would change the mean over
    clients. ``gamma`` is that of the first round, ``option`` what makes it smaller.
    """
    largest = int(federation.n_train[federation.training].max()) * len(federation.training)
    longest = gamma * largest / federation.n_train_total
    if longest > 1:
        raise InputError(
            "algorithm.client_weights is 'samples', with which by gossip a client moves by "
            f"gamma n mu_i, here up to {longest:.4g} in round 1; allowed: at most 1, by a "
            f"smaller {option} or client_weights uniform"
        )
