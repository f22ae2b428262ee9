"""Learning-rate schedules of the FedEM experiments, as factors of the base rate.

``step`` counts from 0 what was done before: rounds by default, local epochs of the client under
``lr_clock: local_epoch``, as in the published code. ``horizon`` is R, the planned number of
rounds.
"""

from __future__ import annotations

import math


def constant(step: int, horizon: int) -> float:
    """Return 1."""
    return 1.0


def multi_step(step: int, horizon: int) -> float:
    """Return 1, 0.1 from floor(R/2) steps, 0.01 from 3 floor(R/4) steps.

    Examples
    --------
    >>> [round(multi_step(t, 8), 2) for t in (0, 4, 6)]
    [1.0, 0.1, 0.01]
    """
    return 0.1 ** ((step >= horizon // 2) + (step >= 3 * (horizon // 4)))


def sqrt(step: int, horizon: int) -> float:
    """Return 1 / sqrt(step), 1 at the start."""
    return 1 / math.sqrt(step) if step else 1.0


def linear(step: int, horizon: int) -> float:
    """Return 1 / step, 1 at the start."""
    return 1 / step if step else 1.0


def cosine(step: int, horizon: int) -> float:
    """Return half a cosine, from 1 to 0 over R steps.

    Examples
    --------
    >>> [round(cosine(t, 4), 2) for t in range(5)]
    [1.0, 0.85, 0.5, 0.15, 0.0]
    """
    return (1 + math.cos(math.pi * step / horizon)) / 2


SCHEDULES = {
    "constant": constant,
    "multi_step": multi_step,
    "sqrt": sqrt,
    "linear": linear,
    "cosine": cosine,
}
