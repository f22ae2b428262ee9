"""What a run of FLIX holds from round to round."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mpifed import state

MINIMISER, LEAST_VALUE = 1, 2
"""What may be known of the minimum of f~."""


@dataclass(frozen=True)
class FlixState:
    """``model`` x (1, P); ``optima`` x_i (clients, P) with ``gradient_norm`` ||grad f_i(x_i)||.

    ``smoothness`` holds L_i (clients,), ``step`` the step size gamma (1,), 0 for a line search.
    ``reference`` is the minimiser of f~ (P,) and ``least`` its value (1,), for the gaps in
    metrics.csv; ``known`` (1,) is 0, ``MINIMISER`` where both were found, or ``LEAST_VALUE`` where
    there is no one minimiser, so that distances from ``reference`` mean nothing. ``stopped`` (1,)
    is the round in which the rule to stop was met, 0 before; from then on x stays and nothing is
    sent.
    """

    model: Tensor = state.shared()
    optima: Tensor = state.client()
    gradient_norm: Tensor = state.client()
    smoothness: Tensor = state.client()
    step: Tensor = state.server()
    reference: Tensor = state.server()
    least: Tensor = state.server()
    known: Tensor = state.server()
    stopped: Tensor = state.server()
