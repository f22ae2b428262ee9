"""Facts about all data that a surrogate needs before the run: exact weighted means over clients.

The numbers are bit for bit the same on every rank and on any number of ranks. A surrogate that
cannot compute without them has them kept in the state, so that a resumed run has the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mpifed import state
from mpifed.exchange.measuring import computed_once, total
from mpifed.federation.clients import Clients
from mpifed.surrogates.base import Surrogate
from mpifed.surrogates.contract import as_surrogate


@dataclass(frozen=True)
class Known:
    """The facts that a run keeps.

    Attributes
    ----------
    facts : Tensor
        float64 (k,).
    """

    facts: Tensor = state.server()


def find_facts(
    surrogate: Surrogate,
    clients: Clients,
    weights: Tensor,
    samples_of: Callable[[int], Tensor],
) -> Tensor:
    """Compute what a surrogate asks of all data; collective.

    Parameters
    ----------
    surrogate : Surrogate
        The surrogate; its ``conclude`` is applied to the weighted means of its ``facts``.
    clients : Clients
        The clients hosted here.
    weights : Tensor
        mu_i, float64 (clients,).
    samples_of : callable
        Samples z of the i-th of ``clients``, (samples, dim).

    Returns
    -------
    Tensor
        float64 (k,).
    """
    means = []
    for block, size in enumerate(surrogate.fact_blocks):
        rows = torch.zeros(len(clients), size, dtype=torch.float64)
        for i in range(len(clients)):
            rows[i] = surrogate.facts(samples_of(i), block)
        means.append(total(clients, rows, weights))
    return computed_once(clients, lambda: surrogate.conclude(torch.cat(means)))


def with_facts(
    surrogate: Surrogate, clients: Clients, weights: Tensor, samples_of: Callable[[int], Tensor]
) -> tuple[Surrogate, Known | state.Nothing]:
    """Return the surrogate with the facts that it asks for; collective.

    For the parameters see ``find_facts``; the surrogate need not ask for anything.

    Returns
    -------
    surrogate : Surrogate
        The surrogate that has the facts.
    known : Known or Nothing
        The facts, where the state must keep them.
    """
    if not surrogate.fact_blocks:
        return surrogate, state.Nothing()
    facts = find_facts(surrogate, clients, weights, samples_of)
    known = as_surrogate(surrogate.knowing(facts))
    return known, Known(facts) if surrogate.waits else state.Nothing()


def restore_facts(surrogate: Surrogate, known: Known | state.Nothing) -> Surrogate:
    """Return the surrogate with the facts that the state of a run has kept, if any."""
    if isinstance(known, Known):
        return as_surrogate(surrogate.knowing(known.facts))
    return surrogate
