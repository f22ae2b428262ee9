"""Base class of algorithms, as the engine sees them, and what several of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cache
from inspect import signature
from typing import Any, ClassVar, Generic, Literal, TypeVar, cast, get_args, get_type_hints

import torch
from torch import Tensor

from mpifed.components.registry import find
from mpifed.components.requirement import Requirement
from mpifed.components.tables import BY_MODEL
from mpifed.data.base import Task
from mpifed.exchange.base import Channel, Exchange, ServerChannel
from mpifed.exchange.gossip_channel import GossipChannel
from mpifed.federation.clients import Clients, Draws
from mpifed.method.predictor import Predictor
from mpifed.models.base import Model, NoModel

AnyChannel = TypeVar("AnyChannel", bound=Channel, contravariant=True)

# Which compressors the messages of an algorithm may go through.
Compressors = Literal["any", "unbiased", "none"]

# What a server makes of the messages of an algorithm.
Aggregates = Literal["mean", "means", "sums", "mean_and_sums"]


class Algorithm(ABC, Generic[AnyChannel]):
    """Base class of federated algorithms.

    ``Algorithm[ServerChannel]`` is a method for servers alone, ``Algorithm[Channel]`` one for any
    exchange, which cannot ``send``. The first two parameters of a subclass are the model and the
    local solver, its keyword-only parameters are its options. A state is a frozen dataclass
    (``mpifed.state``) whose tensors are never changed in place. The engine calls the methods in
    this order; all are collective, that is, every rank calls them, also one without a client:

    1. ``inspect``, where the run begins and is not resumed;
    2. ``init``;
    3. ``prepare``, once, before round 1;
    4. ``remarks``;
    5. ``round``, in every round in which a client takes part, and ``idle`` in the others;
    6. at every evaluation ``deploy``, ``adapt``, ``measure`` and ``learnt``.

    Subclasses set the attributes below where the defaults do not fit, those marked (instance) also
    in ``__init__``. A method without a default has to be there; an attribute of another name is not
    read, so that a misspelt one leaves the default.

    Attributes
    ----------
    requires : tuple of Requirement
        What it needs of the other values of a configuration.
    exchanges : tuple of str or None
        Names of the exchanges that it supports; None for any, and () where it sends nothing and is
        run without one. ``Algorithm[ServerChannel]`` and ``Algorithm[GossipChannel]`` set it.
    compressors : {"any", "unbiased", "none"}
        Which compressors its messages may go through; biased ones are always allowed under gossip.
    aggregates : {"mean", "means", "sums", "mean_and_sums"}
        What a server makes of its messages: one mean of updates in a round and nothing else, for
        which any aggregator may stand, which can be private, and along which any
        ``server_optimizer`` moves; several means, or other numbers of clients beside; sums with
        weights of its own, for which no aggregator can stand; or such sums beside one mean along
        which the server moves (``channel.average``, or ``channel.along`` of a ``mean``).
    tasks : tuple of str (instance)
        Tasks of data sets from which it learns; see ``mpifed.data.base.Task``.
    columns : tuple of str (instance)
        What it adds to metrics.csv: names of what ``measure`` returns, and ``nll`` where clients
        deploy mixtures, whose likelihood is recorded for each split if it is not the loss.
    step_option : str (instance)
        The option to make smaller where numbers grow too large; error messages name it.
    local_options : tuple of str or None (instance)
        Options of the section ``local`` that it reads; None for all of them.
    """

    model: Any
    requires: ClassVar[tuple[Requirement, ...]] = ()
    channel_type: ClassVar[type] = Channel
    exchanges: ClassVar[tuple[str, ...] | None] = None
    communicates: ClassVar[bool] = True
    compressors: ClassVar[Compressors] = "any"
    aggregates: ClassVar[Aggregates] = "mean"
    tasks: tuple[Task, ...] = ("classification", "sequence", "multi_label", "regression")
    columns: tuple[str, ...] = ()
    step_option: str = "local.lr"
    local_options: tuple[str, ...] | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        bases = vars(cls).get("__orig_bases__", ())
        for channel, exchange in ((ServerChannel, "server"), (GossipChannel, "gossip")):
            if any(channel in get_args(base) for base in bases):
                cls.channel_type = channel
                if "exchanges" not in vars(cls):
                    cls.exchanges = (exchange,)
        cls.communicates = cls.exchanges != ()

    @classmethod
    @cache  # it reads signatures, and every rank asks for it several times
    def model_type(cls) -> Any:
        """Return what its model must be an instance of: the annotation of the first parameter.

        It is ``Model``, which predicts, where the parameter has none.
        """
        first = next(iter(signature(cls).parameters))
        annotation = get_type_hints(cls.__init__).get(first, Any)
        return Model if annotation is Any else annotation

    @classmethod
    def uses_model(cls) -> bool:
        """Return whether it trains a model that predicts, and not ``NoModel``."""
        return cls.model_type() is not NoModel

    @classmethod
    def serves_unseen_clients(cls) -> bool:
        """Return whether ``adapt`` is there for clients that took no part in training."""
        return cls.adapt is not Algorithm.adapt

    @classmethod
    def moves_without_clients(cls) -> bool:
        """Return whether ``idle`` is there for rounds in which no client takes part."""
        return cls.idle is not Algorithm.idle

    def inspect(self, dtype: torch.dtype) -> None:
        """Check other runs from which something is taken; before anything is computed.

        Parameters
        ----------
        dtype : torch.dtype
            The floating-point type of this run.

        Raises
        ------
        InputError
            Where such a run is missing or holds something else.
        """

    @abstractmethod
    def init(self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype) -> Any:
        """Return the state before round 1.

        It must be cheap: a resumed run calls it too, for the shapes alone.

        Parameters
        ----------
        clients : Clients
            All clients hosted here.
        exchange : Exchange
            ``spread`` makes shared state of an initial value.
        draws : Draws
            The random numbers of round 0.
        dtype : torch.dtype
            The floating-point type of models.
        """

    def prepare(self, state: Any, clients: Clients, exchange: Exchange, draws: Draws) -> Any:
        """Return the state after what clients compute before round 1.

        Checkpoints hold the result, so that a resumed run does not repeat it. What takes long calls
        ``mpifed.watchdog.heartbeat.raise_if_stop_requested`` now and then.
        """
        return state

    def remarks(self, state: Any, clients: Clients, exchange: Exchange) -> list[str]:
        """Return lines for the log before the first round: constants, predictions, warnings."""
        return []

    @abstractmethod
    def round(self, state: Any, clients: Clients, channel: AnyChannel, draws: Draws) -> Any:
        """Return the state after one communication round.

        Parameters
        ----------
        state : Any
            The state, with rows of the participants only.
        clients : Clients
            The participants hosted here.
        channel : Channel
            What sends, among all participants.
        draws : Draws
            The random numbers of this round.
        """

    def idle(self, state: Any, clients: Clients, channel: AnyChannel, draws: Draws) -> Any:
        """Return the state after a round in which no client takes part; by default it stays."""
        return state

    @abstractmethod
    def deploy(self, state: Any, clients: Clients, draws: Draws) -> Predictor:
        """Return what the training clients predict with, for evaluation."""

    def adapt(self, state: Any, clients: Clients, exchange: Exchange, draws: Draws) -> Predictor:
        """Return what clients predict with that took no part in training.

        A method that does not override this is refused where ``evaluation.unseen_fraction`` is set.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot serve unseen clients")

    def measure(
        self, state: Any, clients: Clients, exchange: Exchange, draws: Draws
    ) -> dict[str, float | None]:
        """Return the values of ``columns`` for metrics.csv; None where one does not apply."""
        return {}

    def learnt(self, state: Any, exchange: Exchange) -> dict[str, Tensor]:
        """Return what was learnt and belongs to no client, by name (``learnt`` in clients.h5)."""
        return {}

    @property
    def shared_buffers(self) -> slice:
        """Where the running statistics are among the numbers that a server averages."""
        size = self.model.n_parameters
        return slice(size - self.model.n_buffers, size)

    def payload(self) -> int:
        """Return how many numbers a client sends in one round; by default those of one model."""
        return self.model.n_parameters if self.communicates else 0


def algorithm_classes(name: str) -> tuple[type[Algorithm], ...]:
    """Return the classes that a name stands for, of which the model's type chooses one."""
    others = [BY_MODEL[name]] if name in BY_MODEL else []
    return tuple(map(algorithm_class, (name, *others)))


def algorithm_class(name: Any) -> type[Algorithm]:
    """Return the class of the algorithm called ``name``; raise ``InputError`` if there is none."""
    return cast(type[Algorithm], find("algorithm", name))
