"""Learning-rate schedules of the FedEM experiments, as factors of the base rate.

``step`` counts from 0 what was done before: rounds by default, local epochs of the client under
``lr_clock: local_epoch``, as in the published code. ``horizon`` is R, the planned number of
rounds.
"""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from mpifed.local.minibatches import Work
from mpifed.local.options import LocalOptions


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


def learning_rates(
    options: LocalOptions,
    horizon: int,
    round: int,
    done: Tensor,
    work: Work,
    step_scale: np.ndarray | None,
) -> np.ndarray:
    """Return the learning rates of a round.

    Parameters
    ----------
    options : LocalOptions
        The section ``local``.
    horizon : int
        R of the schedules.
    round : int
        The round, from 1.
    done : Tensor
        Local epochs of each client before the round, int64 (clients,).
    work : Work
        Steps of each client.
    step_scale : numpy.ndarray or None
        Factors of the rates, (clients,); None for ones.

    Returns
    -------
    numpy.ndarray
        float64 (clients, most epochs of a client).
    """
    schedule, shape = SCHEDULES[options.lr_schedule], (len(done), int(work.epochs.max(initial=0)))
    if options.lr_clock == "round":
        rates = np.full(shape, options.lr * schedule(round - 1, horizon))
    else:
        factors = [[schedule(d + e, horizon) for e in range(shape[1])] for d in done.tolist()]
        rates = options.lr * np.array(factors).reshape(shape)
    return rates if step_scale is None else rates * step_scale[:, None]


def summed_rates(rates: np.ndarray, work: Work) -> np.ndarray:
    """Return the sum of the learning rates of all steps of a client.

    Parameters
    ----------
    rates : numpy.ndarray
        Those of each epoch, float64 (clients, epochs).
    work : Work
        Steps of each client.

    Returns
    -------
    numpy.ndarray
        float64 (clients,).

    Examples
    --------
    >>> work = Work(np.array([8]), np.array([3]), np.array([2]), np.array([8]))
    >>> summed_rates(np.array([[0.5, 0.25]]), work)  # two steps of the first epoch, one more
    array([1.25])
    """
    begun = work.per_epoch[:, None] * np.arange(rates.shape[1])
    steps = np.clip(work.steps[:, None] - begun, 0, work.per_epoch[:, None])
    # Exact sums: those of numpy depend on the number of columns, which differs between ranks.
    return np.array([math.fsum(row) for row in (steps * rates).tolist()])
