"""The one object that communicates.

An ``Exchange`` is made once for a run; ``at`` gives the ``Channel`` of one round, which knows who
takes part. An algorithm broadcasts what is shared, computes on rows, and averages the rows back:

    rows = channel.broadcast(state.components)          # (clients, ...)
    shared = channel.average(trained, weights, before=state.components)

Under a server ``shared`` is one copy, identical on every rank; under gossip it is a row per client,
``shared_is_rows`` says which. A method of a server alone sends messages of its own instead:

    arrived = channel.send(rows)                        # what compression leaves of them
    total = channel.sum(arrived, weights)

Every verb books in the ledger what the federation would have sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from mpifed.exchange.compression import Compressor
from mpifed.exchange.ledger import Ledger
from mpifed.federation.clients import Federation
from mpifed.sparse_rows import SparseRows


class Channel(Protocol):
    """The exchange in one round, among the clients that take part in it."""

    @property
    def shared_is_rows(self) -> bool:
        """Whether shared values are rows, one per client."""

    @property
    def compressor(self) -> Compressor | None:
        """What messages go through; None where every number is sent as it is."""

    @property
    def memory(self) -> Any:
        """What the messages of this round leave behind; see ``Exchange.remember``."""

    def broadcast(self, shared: Tensor) -> Tensor:
        """What each participant hosted here starts from: (participants, ...)."""

    def average(self, rows: Tensor, weights: Tensor, before: Tensor) -> Tensor:
        """The new shared value from the participants' ``rows``.

        ``weights`` is float64 (participants,), renormalised here over all participants of the
        round; a mixing matrix has weights of its own and takes no others. ``before`` is the shared
        value that the round began with. Where messages are compressed, what is compressed is the
        distance from it (a server) or from the neighbours' replica (gossip).
        """

    def send(self, rows: Tensor, whole: bool = False) -> Tensor:
        """The participants' ``rows`` as the server receives them, through the compressor.

        ``whole`` sends them as they are. Gossip has no server, and no such verb.
        """

    def coordinates(self, size: int) -> np.ndarray | None:
        """The coordinates that will arrive of the participants' next messages of ``size`` numbers,
        int64 (participants, k); None where they are many, or not known before the message is.
        """

    def send_chosen(self, rows: SparseRows) -> SparseRows:
        """As ``send``, for messages of which only ``coordinates`` were computed."""

    def sum(self, rows: Tensor | SparseRows, weights: Tensor) -> Tensor:
        """sum_t weights[t] rows[t] over all participants, of rows that were sent; float64.

        ``weights`` is float64 (participants,) and is not renormalised.
        """

    def among(self, chosen: np.ndarray) -> Channel:
        """The same round among ``chosen`` of its participants only, bool (n_clients,)."""

    def at_server(self, make: Callable[[], list[Tensor]]) -> list[Tensor]:
        """What ``make()`` returns where the server is, the same bits on every rank. Collective."""


class Exchange(Protocol):
    """How rows move between the clients of a federation.

    Made from the federation, the seed, what its ``prepare(communicator, n_training, seed,
    options)`` gave, the compressor, and its options. ``prepare`` runs before it is known who lives
    where, so that clients may be placed by who talks to whom; on a resume, what was stored takes
    its place.
    """

    shared_is_rows: bool
    ledger: Ledger
    compressor: Compressor | None
    federation: Federation

    def at(self, round: int, active: np.ndarray, memory: Any = None) -> Channel:
        """The channel of ``round`` among ``active``, bool (n_clients,), the same on every rank.

        ``memory`` are the participants' rows of what earlier rounds left behind.
        """

    def remember(self, shared: list[Tensor], n_hosted: int, dtype: torch.dtype) -> Any:
        """The memory before round 1 for the ``shared`` fields of a state: a state dataclass with a
        row for every hosted client, or ``state.Nothing``.
        """

    def at_server(self, make: Callable[[], list[Tensor]]) -> list[Tensor]:
        """What a server computes before round 1, as the channel's verb; gossip has none."""

    def spread(self, shared: Tensor) -> Tensor:
        """One initial value as shared state: itself, or a row for every hosted client."""

    def mean(self, shared: Tensor, by_samples: bool = False) -> Tensor:
        """One value for a client that was not there: the server's, or the mean over clients, each
        weighted by its training samples if ``by_samples``.
        """

    def consensus_distance(self, shared: list[Tensor]) -> float | None:
        """(1/n) sum_t ||x_t - mean||^2 over the training clients; None where nothing is mixed."""

    def arrays(self) -> dict[str, np.ndarray]:
        """What must be stored with a run to repeat it exactly (a mixing matrix), by name."""

    def describe(self, payload: int, itemsize: int) -> list[str]:
        """Lines for ``--dry-run``: what a round moves when a client sends ``payload`` bytes.

        ``itemsize`` is bytes in a number. Collective.
        """
