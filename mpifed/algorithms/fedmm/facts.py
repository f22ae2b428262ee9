"""What a surrogate wants to know of all data before the run: means over clients, found exactly.

The numbers are those of one rank on every rank, and the same on any number of ranks; a run that
cannot do without keeps them in its state, so that a resume has those that it began with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mpifed import state
from mpifed.exchange.measuring import computed_once, total
from mpifed.federation.clients import Clients
from mpifed.surrogates.base import Asking, Surrogate


@dataclass(frozen=True)
class Known:
    """What was found, (k,) float64."""

    facts: Tensor = state.server()


def find_facts(
    surrogate: Asking,
    clients: Clients,
    weights: Tensor,
    samples_of: Callable[[int], Tensor],
) -> Tensor:
    """``surrogate.conclude`` of the weighted means of ``facts`` over all clients: (k,); collective.

    ``weights`` is float64 (clients,), ``samples_of(i)`` z of the i-th client given here.
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
    """The surrogate that knows what it asks of the data, and what of it is to be kept; collective.

    For the parameters see ``find_facts``.
    """
    if not isinstance(surrogate, Asking) or not surrogate.fact_blocks:
        return surrogate, state.Nothing()
    facts = find_facts(surrogate, clients, weights, samples_of)
    return surrogate.knowing(facts), Known(facts) if surrogate.waits else state.Nothing()


def restore_facts(surrogate: Surrogate, known: Known | state.Nothing) -> Surrogate:
    """The surrogate that knows what the state of a run has kept."""
    if isinstance(known, Known) and isinstance(surrogate, Asking):
        return surrogate.knowing(known.facts)
    return surrogate
