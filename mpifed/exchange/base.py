"""The objects by which clients communicate.

An ``Exchange`` is made once for a run. Its method ``at`` gives the ``Channel`` of one round, which
knows who takes part. An algorithm broadcasts what is shared, computes on rows, and averages them:

    rows = channel.broadcast(state.components)          # (clients, ...)
    shared = channel.average(trained, weights, before=state.components)

Under a server ``shared`` is one copy, identical on every rank; under gossip it is a row per client.
``shared_is_rows`` says which. A method for servers alone gets a ``ServerChannel``, over which
clients also send messages of another kind:

    arrived = channel.send(rows)                        # what compression leaves of them
    total = channel.sum(arrived, weights)

What a client averages or sends is an *update* of what it received. Each ``Transform`` of
``Exchange.transforms`` changes it in turn (noise, attacks); then it is compressed, and averaged or
mixed. Every method of a channel books in the ledger what the federation would have sent.
"""

from __future__ import annotations

import functools
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from mpifed.components.registry import find
from mpifed.errors import RunError
from mpifed.exchange.compression import Compressor
from mpifed.federation.clients import Draws
from mpifed.federation.federation import Federation
from mpifed.federation.options import PrivacyOptions, StepScale
from mpifed.federation.reduction import SparseRows
from mpifed.mpi.communicator import Communicator
from mpifed.state import Nothing

Verb = TypeVar("Verb", bound=Callable[..., Any])


@dataclass
class Ledger:
    """Totals over all clients since the start of the run.

    Attributes
    ----------
    up_bits, down_bits : int
        Bits on the uplinks and on the downlinks.
    up_floats : int
        Floating-point numbers on the uplinks, whatever their width and without indices and gates,
        as in the plots of Gasanov et al. 2021.
    """

    up_bits: int = 0
    down_bits: int = 0
    up_floats: int = 0


def bits_of(shape: torch.Size, dtype: torch.dtype) -> int:
    """Return the bits of one uncompressed tensor.

    Examples
    --------
    >>> bits_of(torch.Size([10, 2]), torch.float32)
    640
    """
    return math.prod(shape) * dtype.itemsize * 8


@dataclass(frozen=True)
class Round:
    """Who takes part in which round: ``active``, bool (n_clients,)."""

    federation: Federation
    seed: int
    number: int
    active: np.ndarray

    @cached_property
    def ids(self) -> np.ndarray:
        """The participants hosted here, int64, ascending."""
        hosted = self.federation.hosted
        return hosted[self.active[hosted]]

    @cached_property
    def count(self) -> int:
        """The number of participants on all ranks."""
        return int(self.active.sum())

    @property
    def ids_by_rank(self) -> list[np.ndarray]:
        """The participants of each rank, ascending."""
        hosted = map(self.federation.hosted_of, range(self.federation.communicator.size))
        return [clients[self.active[clients]] for clients in hosted]

    @property
    def draws(self) -> Draws:
        """The random numbers of the round."""
        return Draws(self.seed, self.number)


@dataclass(frozen=True)
class LastingMemory:
    """Base class of memories of all hosted clients, whoever takes part, changed in place."""


@dataclass(frozen=True)
class Updates:
    """By how much participants move a shared value: ``values`` less the ``origin`` of each.

    What no transform changes keeps its bits: (x + u) - x is not always u.
    """

    values: Tensor
    origin: Tensor | float = 0.0

    @property
    def differences(self) -> Tensor:
        """The updates themselves."""
        return self.values if isinstance(self.origin, float) else self.values - self.origin

    def some(self, which: Tensor) -> Updates:
        """Return those of some participants, by their positions."""
        return Updates(self.values[which], self._origin(which))

    def replaced(self, which: Tensor, differences: Tensor) -> Updates:
        """Return updates of which some participants' are others."""
        values = (differences + self._origin(which)).to(self.values)
        return replace(self, values=self.values.index_copy(0, which, values))

    def _origin(self, which: Tensor) -> Tensor | float:
        if isinstance(self.origin, Tensor) and self.origin.shape == self.values.shape:
            return self.origin[which]
        return self.origin


class Transform(ABC):
    """What happens to updates on their way; with two verbs, as in Optax.

    Attributes
    ----------
    memory : str
        The field of the exchange's memory that has its state; empty where it has none.
    """

    memory: ClassVar[str] = ""

    def init(self, like: Tensor) -> Any:
        """Return the state before round 1, for updates of the shape of ``like``."""
        return Nothing()

    @abstractmethod
    def apply(self, updates: Updates, state: Any, channel: Any) -> tuple[Updates, Any]:
        """Return the transformed updates, and the new state. Collective.

        ``channel`` is that of the round, over which they travel.
        """


def timed(verb: Verb) -> Verb:
    """Add the wall seconds of a channel's method to ``Exchange.seconds``."""

    @functools.wraps(verb)
    def call(self: Channel, *arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return verb(self, *arguments, **named)
        finally:
            self.exchange.seconds += time.perf_counter() - began

    return cast(Verb, call)


class Channel(ABC):
    """The exchange in one round, among the clients that take part in it.

    Parameters
    ----------
    exchange : Exchange
        The exchange of the run.
    round : Round
        Who takes part.
    memory : Any
        What earlier rounds left behind.

    Attributes
    ----------
    memory : Any
        What the messages of this round leave behind; see ``Exchange.remember``.
    """

    def __init__(self, exchange: Exchange, round: Round, memory: Any = None) -> None:
        self.exchange, self.round = exchange, round
        self.memory: Any = memory or Nothing()
        self._messages = 0  # of this round so far
        self._used = 0  # numbers of the memory that they have used

    @property
    def shared_is_rows(self) -> bool:
        """Whether shared values are rows, one per client."""
        return self.exchange.shared_is_rows

    @property
    def compressor(self) -> Compressor | None:
        """What messages go through; None where every number is sent as it is."""
        return self.exchange.compressor

    @abstractmethod
    def broadcast(self, shared: Tensor) -> Tensor:
        """Return what each participant hosted here starts from, (participants, ...)."""

    @abstractmethod
    def average(
        self, rows: Tensor, weights: Tensor, before: Tensor, total_weight: float = 1.0
    ) -> Tensor:
        """Return the new shared value from the participants' rows, not to be changed. Collective.

        Parameters
        ----------
        rows : Tensor
            What the participants computed, (participants, ...).
        weights : Tensor
            float64 (participants,), renormalised here over all participants of the round. Gossip
            ignores them: the mixing matrix has the weights.
        before : Tensor
            The shared value that the round began with. Where messages are compressed, what is
            compressed is the distance from it (a server) or from the neighbours' replica (gossip).
        total_weight : float
            What the weights of all training clients sum to: 1 for ``clients.weights`` and
            ``clients.equal_weights``. Weights are divided by it where absent clients count too
            (``participation.weights: unbiased``, ``exchange.average_over: all``).

        Raises
        ------
        ValueError
            For rows of other shapes or types than ``before``, or not one for each participant.
        """

    def duals(self, shared: Tensor) -> Tensor | None:
        """Return what the local steps of a round take from the next value to average; or None.

        It is of the shape of ``shared``; steps take it in proportion to their learning rates. Only
        corrections of gossip that declare ``within_steps`` have it.
        """
        return None

    def rates(self, weights: Tensor, rule: StepScale) -> np.ndarray | None:
        """Return factors of the participants' learning rates; see ``Exchange.rates``."""
        return self.exchange.rates(weights, rule)

    def transformed(self, rows: Tensor, before: Tensor | None = None) -> Tensor:
        """Return ``rows``, updates of ``before`` (or of zero), as the clients send them."""
        updates = Updates(rows, 0.0 if before is None else before)
        return self.through(self.exchange.transforms, updates).values

    def through(self, transforms: Sequence[Transform], updates: Updates) -> Updates:
        """Return what transforms make of updates, in turn; the memory has their states."""
        for transform in transforms:
            state = getattr(self.memory, transform.memory) if transform.memory else Nothing()
            updates, state = transform.apply(updates, state, self)
            if transform.memory:
                self.memory = replace(self.memory, **{transform.memory: state})
        return updates

    def check_update(self, rows: Tensor, weights: Tensor, before: Tensor) -> None:
        """Raise ``ValueError`` unless rows are updates of ``before``, one for each participant."""
        shape = before.shape[1:] if self.shared_is_rows else before.shape
        self.check_rows(rows, weights, shape)
        if rows.dtype != before.dtype or before.shape not in (shape, rows.shape):
            raise ValueError(
                f"before has shape {tuple(before.shape)} and type {before.dtype}, but the rows to "
                f"average have {tuple(rows.shape)} and {rows.dtype}"
            )

    def check_rows(
        self, rows: Tensor, weights: Tensor | None = None, shape: Sequence[int] | None = None
    ) -> None:
        """Raise ``ValueError`` unless there is a row, and a weight, for each participant."""
        n = len(self.round.ids)
        expected = (n, *(rows.shape[1:] if shape is None else shape))
        if tuple(rows.shape) != expected:
            raise ValueError(
                f"rows have shape {tuple(rows.shape)}; expected {expected}, where the first axis "
                "is the participants hosted here"
            )
        if weights is not None and tuple(weights.shape) != (n,):
            raise ValueError(f"weights have shape {tuple(weights.shape)}; expected ({n},)")

    def next_part(self, size: int) -> slice:
        """Return where the next ``size`` numbers of the memory are."""
        part = slice(self._used, self._used + size)
        self._used = part.stop
        return part

    def _check_not_private(self, why: str) -> None:
        """Raise ``RunError`` where noise on one update does not make the algorithm private."""
        if self.exchange.privacy is not None:
            raise RunError(
                f"the algorithm {why}, which noise on one update does not make private; its class "
                "should say aggregates = 'means' or 'sums', with which privacy is refused"
            )

    @property
    def _purpose(self) -> str:
        """The stream that the compressor draws the next message from."""
        return f"compression {self._messages}"


class ServerChannel(Channel):
    """A channel to a server, which receives and sums messages of any shape."""

    @abstractmethod
    def send(self, rows: Tensor, uncompressed: bool = False) -> Tensor:
        """Return the participants' rows as the server receives them.

        Parameters
        ----------
        rows : Tensor
            The messages, (participants, ...).
        uncompressed : bool
            Whether they are sent without the compressor.
        """

    @abstractmethod
    def coordinates(self, size: int) -> np.ndarray | None:
        """Return which coordinates will arrive of the next messages of ``size`` numbers.

        int64 (participants, k); None where they are many, or not known before the message is.
        """

    @abstractmethod
    def send_chosen(self, rows: SparseRows) -> SparseRows:
        """Return the same as ``send``, for messages of which only ``coordinates`` were computed."""

    @abstractmethod
    def sum(self, rows: Tensor | SparseRows, weights: Tensor) -> Tensor:
        """Return sum_t weights[t] rows[t] over all participants, float64. Collective.

        ``rows`` (participants, ...) were sent; ``weights``, float64 (participants,), are not
        renormalised.
        """

    @abstractmethod
    def mean(self, rows: Tensor, weights: Tensor, total_weight: float = 1.0) -> Tensor:
        """Return the mean over clients of rows that were sent, float64. Collective.

        ``weights`` and ``total_weight`` are as in ``average``. Where absent clients count too, they
        count with zeros: the rows must be updates.
        """

    @abstractmethod
    def outcome(self, updates: Tensor) -> Tensor:
        """Return what the server would make of updates that arrive, float64. Collective.

        Where it averages, clients count alike here.
        """

    @abstractmethod
    def along(self, mean: Tensor) -> Tensor:
        """Return by how much the server moves along the mean of the updates of a round.

        It is the mean, or what ``server_optimizer`` makes of it; ``average`` has taken that step.
        """

    @abstractmethod
    def scatter(self, rows: Tensor) -> Tensor:
        """Return rows that the server sends, one to each participant."""

    @abstractmethod
    def gather(self, values: Tensor) -> np.ndarray:
        """Return every participant's number, 0 for others, (n_clients,). Collective."""

    @abstractmethod
    def products(self, rows: Tensor) -> Tensor:
        """Return the products of all n participants' rows, float64 (n, n). Collective."""

    @abstractmethod
    def among(self, chosen: np.ndarray) -> ServerChannel:
        """Return the same round among those participants that are ``chosen``, bool (n_clients,).

        Both channels book their messages; what the new one leaves in its ``memory`` is lost.
        """

    @abstractmethod
    def at_server(self, make: Callable[[], list[Tensor]]) -> list[Tensor]:
        """Return what ``make()`` returns at the server, the same bits on every rank. Collective."""


def to_server(channel: Channel) -> ServerChannel:
    """Return ``channel`` as one to a server; for algorithms that allow other exchanges too.

    Raises
    ------
    TypeError
        If it does not lead to a server, which ``Algorithm.exchanges`` should have ruled out.
    """
    if not isinstance(channel, ServerChannel):
        raise TypeError(f"{type(channel).__name__} leads to no server")
    return channel


class Exchange(ABC):
    """Base class of the ways in which rows move between the clients of a federation.

    Keyword-only parameters of a subclass are its options. ``prepare`` runs before it is known who
    lives where, so that clients may be placed by who talks to whom; on a resume, what was stored
    takes its place.

    Attributes
    ----------
    shared_is_rows : bool
        Whether shared values are rows, one per client.
    federation : Federation
        Who exchanges.
    seed : int
        The seed of the run.
    compressor : Compressor or None
        What messages go through.
    ledger : Ledger
        What was sent since the run began.
    seconds : float
        Wall seconds that this rank has spent in its channels.
    privacy : PrivacyOptions or None
        Where updates are private, how.
    transforms : list of Transform
        What clients do to their updates before they send them, in turn: noise, then attacks.
    """

    shared_is_rows: ClassVar[bool]

    def __init__(
        self,
        federation: Federation,
        seed: int,
        stored: Mapping[str, np.ndarray] | None = None,
        compressor: Compressor | None = None,
    ) -> None:
        """``stored`` is what ``prepare`` returned, or what a checkpoint has of ``arrays``."""
        self.federation, self.seed, self.compressor = federation, seed, compressor
        self.ledger, self.seconds = Ledger(), 0.0
        self.privacy: PrivacyOptions | None = None
        self.transforms: list[Transform] = []

    @staticmethod
    def prepare(
        communicator: Communicator, n_training: int, seed: int, options: Mapping[str, Any]
    ) -> dict[str, np.ndarray]:
        """Return the arrays that the exchange is made from, the same on every rank. Collective.

        Parameters
        ----------
        communicator : Communicator
            All ranks of the run.
        n_training : int
            Number of training clients.
        seed : int
            The seed of the run.
        options : mapping
            Options of the section ``exchange``.
        """
        return {}

    @staticmethod
    def links(
        n_training: int, seed: int, options: Mapping[str, Any], stored: Mapping[str, np.ndarray]
    ) -> scipy.sparse.csr_array | None:
        """Return how often each pair of training clients exchanges, to place them on ranks.

        Symmetric, (n_training, n_training); None where neighbours need not be close. The parameters
        are as in ``prepare``, which returned ``stored``.
        """
        return None

    def participants(self, round: int, present: np.ndarray) -> np.ndarray:
        """Return who takes part in a round, the last one or the one after it. Collective.

        Parameters
        ----------
        round : int
            The round, counted from 1.
        present : ndarray
            Who is there, bool (n_clients,), the same on every rank.
        """
        return present

    @abstractmethod
    def at(self, round: int, active: np.ndarray, memory: Any = None) -> Channel:
        """Return the channel of a round.

        Parameters
        ----------
        round : int
            The round, counted from 1.
        active : ndarray
            Who takes part, bool (n_clients,), the same on every rank.
        memory : Any
            The participants' rows of what earlier rounds left behind, or a ``LastingMemory``.
        """

    def remember(self, shared: list[Tensor], n_hosted: int, dtype: torch.dtype) -> Any:
        """Return the memory before round 1 for the ``shared`` fields of a state.

        It is a state dataclass with a row for each of ``n_hosted`` clients, or ``state.Nothing``;
        rounds change a ``LastingMemory`` in place.
        """
        return Nothing()

    def latest(self, shared: list[Tensor], memory: Any) -> list[Tensor]:
        """Return the clients' values now; ``shared`` is what they compute from."""
        return shared

    @abstractmethod
    def spread(self, shared: Tensor) -> Tensor:
        """Return an initial value as shared state: itself, or a row for every hosted client."""

    @abstractmethod
    def mean(self, shared: Tensor, by_samples: bool = False) -> Tensor:
        """Return one value for an unseen client. Collective.

        It is the server's, or the mean over clients, weighted by their training samples if
        ``by_samples``.
        """

    def rates(self, weights: Tensor, rule: StepScale) -> np.ndarray | None:
        """Return factors of the clients' learning rates, float64 (clients,); None for ones.

        They carry the ``weights`` n_t / n of clients where no average does. ``paper``: n_t / n
        (Marfoq et al. 2021, Alg. 4, line 19), so that gossip follows the server's weighted
        objective; ``normalised``: T n_t / n, the same with mean one; ``none``: 1, as in the
        published code.
        """
        return None

    def consensus_distance(self, shared: list[Tensor]) -> float | None:
        """Return (1/n) sum_t ||x_t - mean||^2 over the training clients, on rank 0. Collective.

        None where nothing is mixed.
        """
        return None

    @property
    def columns(self) -> Sequence[str]:
        """What ``measure`` adds to ``metrics.csv``."""
        return ()

    def measure(self, memory: Any) -> dict[str, float | None]:
        """Return values of ``columns`` on rank 0, from what rounds left behind. Collective.

        ``memory`` is that of all clients hosted here.
        """
        return {}

    def arcs(self, round: int, active: np.ndarray, itemsize: int) -> list[np.ndarray] | None:
        """Return the messages of a round, for the clock of the simulated federation. Collective.

        Of each step of gossip receivers and senders, as places among the training clients, int64
        (messages, 2); None where clients talk to a server. The parameters are those of
        ``routes.Routing.route``.
        """
        return None

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what must be stored with a run to repeat it exactly (a mixing matrix), by name."""
        return {}


def exchange_class(name: Any) -> type[Exchange]:
    """Return the class of the exchange called ``name``; raise ``InputError`` if there is none."""
    return cast(type[Exchange], find("exchange", name))
