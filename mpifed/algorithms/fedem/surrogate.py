"""Federated surrogate optimisation (Marfoq et al. 2021, section 3.4, Algorithms 3 and 5).

The objective is f(u, v_1, ..., v_T) = sum_t omega_t f_t(u, v_t), with u shared and v_t personal. In
every round client t makes a partial first-order surrogate g_t of f_t near (u, v_t) (Definition 1):
a function above f_t that touches it there. It minimises g_t over v_t, takes local steps on g_t
in u, and the results are averaged. Two instances:

* FedEM: u has the M components, v_t the mixture weights, and
  g_t(u, pi) = (1 / n_t) sum_i sum_m q_i(m) (l(theta_m; s_i) - log pi_m + log q_i(m)).
* pFedMe (App. F.3): u = w, and with theta = argmin f_t(theta) + (lambda / 2) ||theta - w||^2 at the
  current w, g_t(w) = f_t(theta) + (lambda / 2) ||theta - w||^2, the Moreau envelope's majorant.
  The method ``pfedme`` makes a new surrogate after every step of w; with one step a round it is
  Algorithm 3.

With one client this is Algorithm 6, centralised surrogate optimisation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from mpifed.exchange.base import Channel
from mpifed.federation.clients import Clients, Draws
from mpifed.local.adjustments import Adjustment
from mpifed.local.solver import LocalSGD, OptimizerState

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class PartialSurrogate:
    """What a local solver needs of g_t(., v_t): its gradient on a minibatch I at u is

        (1 / |I|) sum_{i in I} q_i grad l(u; s_i) + adjustments.

    Attributes
    ----------
    weights : Tensor, optional
        q, (components, hosted training samples). None is ones.
    adjustments : sequence of Adjustment
        Terms that do not depend on samples.
    """

    weights: Float[Tensor, "components samples"] | None = None
    adjustments: Sequence[Adjustment] = ()


Solver = Callable[[Tensor, PartialSurrogate], Tensor]
"""A black box: from (clients, M, P) and the surrogates to their (inexact) minimisers."""


def minimise_surrogates(
    shared: Tensor,
    optimizer: OptimizerState,
    surrogate: PartialSurrogate,
    local: LocalSGD,
    clients: Clients,
    channel: Channel,
    draws: Draws,
    step_scale: np.ndarray | None = None,
    solver: Solver | None = None,
) -> tuple[Tensor, OptimizerState]:
    """Lines 2, 6 and 8 of Algorithm 3 under a server, 5 to 9 of Algorithm 5 under gossip.

    Parameters
    ----------
    shared : Tensor
        u, as the state has it.
    optimizer : OptimizerState
        The clients' state of the local solver.
    surrogate : PartialSurrogate
        g_t(., v_t), made at ``shared``.
    local : LocalSGD
        The local solver of the algorithms.
    clients : Clients
        The participants hosted here.
    channel : Channel
        What sends.
    draws : Draws
        The random numbers of the round.
    step_scale : numpy.ndarray, optional
        Factors of the learning rate, (clients,).
    solver : callable, optional
        A black box in place of local steps (App. H).

    Returns
    -------
    tuple of Tensor and OptimizerState
        The new u and the solver's state.
    """
    start = channel.broadcast(shared)
    if solver is None:
        moved, optimizer = local(
            start,
            optimizer,
            clients,
            draws,
            weights=surrogate.weights,
            step_scale=step_scale,
            adjustments=surrogate.adjustments,
        )
    else:
        moved = solver(start, surrogate)
    return channel.average(moved, clients.weights, before=shared), optimizer
