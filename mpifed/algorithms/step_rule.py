"""The sequence gamma_t by which FedMM's methods move (Dieuleveut et al. 2025, Alg. 1 to 3)."""

from __future__ import annotations

import math
from typing import Literal

StepRule = Literal["constant", "sqrt", "inverse", "inverse_kept"]


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
