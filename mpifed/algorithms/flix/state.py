"""What a run of FLIX keeps from round to round."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mpifed import state

MINIMISER, LEAST_VALUE = 1, 2
"""What may be known of the minimum of f~."""


@dataclass(frozen=True)
class FlixState:
    """The state of ``flix`` and ``dcgd``; that of ``diana`` adds its memories.

    Parameters
    ----------
    model : Tensor
        x, (1, P).
    optima : Tensor
        x_i, (clients, P).
    gradient_norm : Tensor
        ||grad f_i(x_i)||, float64 (clients,).
    smoothness : Tensor
        L_i, float64 (clients,); 0 where it is unknown.
    step : Tensor
        The step size gamma, float64 (1,); 0 for a line search.
    reference : Tensor
        The minimiser of f~, float64 (P,).
    least : Tensor
        The least value of f~, float64 (1,).
    known : Tensor
        int64 (1,): 0 where neither was looked for; ``MINIMISER`` where both were found;
        ``LEAST_VALUE`` where f~ has several minimisers or none, so that a distance from
        ``reference`` means nothing.
    stopped : Tensor
        int64 (1,): the round in which the rule to stop was met, 0 before. From then on x stays and
        nothing is sent.
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


@dataclass(frozen=True)
class DianaState(FlixState):
    """The state of ``diana``.

    Parameters
    ----------
    memories : Tensor
        h_i, (clients, P).
    memory : Tensor
        h, their mean over all clients, float64 (P,).
    """

    memories: Tensor = state.client()
    memory: Tensor = state.server()
