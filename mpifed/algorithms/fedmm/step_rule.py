"""The sequence gamma_t by which FedMM's methods move (Dieuleveut et al. 2025, Alg. 1 to 3), and how
far it may take clients under gossip.
"""

from __future__ import annotations

import math
from typing import Literal

from mpifed.errors import InputError
from mpifed.federation.clients import Federation

StepRule = Literal["constant", "sqrt", "inverse", "inverse_kept"]

DEFAULT_STEP = 0.05


def gamma_of(rule: StepRule, beta: float, t: int) -> float:
    """gamma_t in (0, 1] of round t, counted from 1, with ``beta`` in (0, 1].

    constant beta; sqrt beta / sqrt(beta + t), the paper's experiments (section 6); inverse 1 / t,
    which forgets where it began; inverse_kept 1 / (t + 1), which keeps it as one sample.
    """
    rules = {
        "constant": beta,
        "sqrt": beta / math.sqrt(beta + t),
        "inverse": 1 / t,
        "inverse_kept": 1 / (t + 1),
    }
    return rules[rule]


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
