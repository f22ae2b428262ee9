"""Base class of algorithms, as the engine sees them, and what several of them share."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Generic, Literal, TypeVar, cast, get_args

import torch
from torch import Tensor

from mpifed.components.base import DeclaredAlgorithm
from mpifed.components.registry import find
from mpifed.components.requirement import Requirement
from mpifed.data.base import Task
from mpifed.exchange.base import Channel, Exchange, ServerChannel
from mpifed.federation.clients import Clients, Draws
from mpifed.local.solver import LocalSolver
from mpifed.method.initial import initial_models
from mpifed.method.predictor import Predictor
from mpifed.models.base import Model

AnyChannel = TypeVar("AnyChannel", bound=Channel, contravariant=True)
Weighting = Literal["samples", "clients"] | None
Weights = Literal["uniform", "samples"]


class Algorithm(DeclaredAlgorithm, Generic[AnyChannel]):
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
    5. ``round``, in every round in which a client takes part;
    6. at every evaluation ``deploy``, ``adapt``, ``measure`` and ``learnt``.

    Subclasses set the attributes below where the defaults do not fit, those marked (instance) also
    in ``__init__``. A method without a default has to be there; an attribute of another name is not
    read, so that a misspelt one leaves the default.

    Attributes
    ----------
    learns : str
        What training gives, in a few words, for the table of methods.
    sends : str
        What a client sends in a round, in a few words; empty if it sends nothing.
    exchanges : tuple of str or None
        Names of the exchanges that the algorithm supports; None for any. A class derived from
        ``Algorithm[ServerChannel]`` has ``("server",)``.
    devices : tuple of str
        Where it computes, ``cpu`` and ``cuda`` or the first alone.
    compressors : {"any", "unbiased", "none"}
        Which compressors its messages may go through; biased ones are always allowed under gossip.
    aggregates : {"mean", "means", "sums"}
        What a server makes of its messages: one mean of updates in a round and nothing else, for
        which any aggregator may stand and which can be private; several means, or other numbers of
        clients beside; or sums with weights of its own, for which no aggregator can stand.
    communicates : bool
        False if it sends nothing: it is then run without the configured exchange.
    uses_model : bool
        False if it does not train the configured model.
    steps_locally : bool
        True if clients take local steps that can be cut short (``participation.late=partial``).
    steps_without_clients : bool
        True if the server moves even in a round in which no client takes part.
    server_steps : bool
        True if its server moves what is shared along a mean of updates, once in a round, by any
        ``server_optimizer``: by ``channel.average``, or by ``channel.along`` of a ``mean``.
    takes_duals : bool
        True if its local steps have the term ``dual_terms``, so that corrections of gossip that
        work within them go with it.
    neighbours : {"given", "corrected", "chosen"}
        Whether under gossip it mixes by W^k alone, corrects that itself, or chooses whom clients
        mix with.
    averages_models : {"one", "several"} or None
        Whether all that it averages in a round is its only model, or several, in one message.
    online : bool (instance)
        True if it draws fresh samples by ``Shards.fresh``.
    tasks : tuple of str (instance)
        Tasks of data sets from which it learns; see ``mpifed.data.base.Task``.
    columns : tuple of str (instance)
        Names of what ``measure`` returns, which become columns of metrics.csv.
    step_option : str (instance)
        The option to make smaller where numbers grow too large; error messages name it.
    local_options : tuple of str or None (instance)
        Options of the section ``local`` that it reads; None for all of them.
    averages_by : {"samples", "clients"} or None (instance)
        Weights of a server's average, by samples or all alike; None where the method adds messages
        itself, with weights 1 / p for participation with probability p.
    deploys_mixtures : bool (instance)
        True if predictors are mixtures, whose likelihood is recorded where it is not the loss.
    model_type : type or tuple of type
        What its model must be an instance of; ``Model`` is what predicts.
    """

    model: Any
    learns: ClassVar[str] = ""
    sends: ClassVar[str] = ""
    online: bool = False
    tasks: tuple[Task, ...] = ("classification", "sequence", "multi_label", "regression")
    columns: tuple[str, ...] = ()
    step_option: str = "local.lr"
    local_options: tuple[str, ...] | None = None
    averages_by: Weighting = "samples"
    deploys_mixtures: bool = False
    model_type: ClassVar[type | tuple[type, ...]] = Model

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        bases = vars(cls).get("__orig_bases__", ())
        to_server = any(ServerChannel in get_args(base) for base in bases)
        if to_server and "exchanges" not in vars(cls):
            cls.exchanges = ("server",)

    @classmethod
    def serves_unseen_clients(cls) -> bool:
        """Return whether ``adapt`` is there for clients that took no part in training."""
        return cls.adapt is not Algorithm.adapt

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


class GlobalModel(Algorithm[AnyChannel]):
    """A method that learns one model.

    The first field of its state is ``model``, the last one ``optimizer``.
    """

    state_class: ClassVar[type[Any]]
    n_trained_models: ClassVar[int] = 1  # of a client, each with its part of the optimizer

    def __init__(self, model: Model, local: LocalSolver) -> None:
        self.model, self.local = model, local

    def init(self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype) -> Any:
        """Return a ``state_class`` of one model for all, ``variables`` and no momentum."""
        model = initial_models(self.model, 1, clients, exchange, draws, dtype, per_client=False)
        optimizer = self.local.init(len(clients), self.n_trained_models, dtype)
        return self.state_class(model, *self.variables(model, len(clients)), optimizer)

    def variables(self, model: Tensor, n_clients: int) -> tuple[Tensor, ...]:
        """Return the first values of the fields between ``model`` and ``optimizer``."""
        return ()

    def deploy(self, state: Any, clients: Clients, draws: Draws) -> Predictor:
        """Return the model, with running statistics of the clients' own where these stay."""
        return self.predictor(
            self.local.with_statistics(state.model, state.optimizer), clients, draws
        )

    def adapt(self, state: Any, clients: Clients, exchange: Exchange, draws: Draws) -> Predictor:
        """Return the model, under gossip the mean of all."""
        return self.predictor(exchange.mean(state.model), clients, draws)

    def predictor(self, models: Tensor, clients: Clients, draws: Draws) -> Predictor:
        """Return what clients make of the model, (1, P) or (clients, 1, P), to predict with."""
        return Predictor(models)


class Corrected(GlobalModel[AnyChannel]):
    """A method whose clients add a correction to their gradients, and send its change."""

    requires: ClassVar[tuple[Requirement, ...]] = (
        Requirement(
            {"local.optimizer": "sgd", "local.momentum": 0.0}, "which corrects steps of plain SGD"
        ),
    )

    def variables(self, model: Tensor, n_clients: int) -> tuple[Tensor, ...]:
        """Return corrections, (clients, 1, trained): there are none for buffers."""
        return (model.new_zeros(n_clients, 1, self.local.n_trained),)

    def payload(self) -> int:
        """Return the numbers of a model and of a correction."""
        return self.model.n_parameters + self.local.n_trained


class Descriptive(Algorithm[AnyChannel]):
    """A method whose parameters describe the data, and with which nothing is predicted."""

    uses_model = False

    def deploy(self, state: Any, clients: Clients, draws: Draws) -> Predictor:
        """Return that there is nothing to predict with."""
        return Predictor(None)


class Personal(GlobalModel[Channel]):
    """A method whose server averages one model beside the clients' own.

    Its papers (Deng et al. 2020, T Dinh et al. 2020) weigh clients alike; FedAvg, and the tables of
    Marfoq et al. 2021, weigh them by their samples.

    Parameters
    ----------
    client_weights : {'uniform', 'samples'}
        Weights of the server's average, 1 / n or n_t / n. Clients count alike under gossip.
    """

    requires: ClassVar[tuple[Requirement, ...]] = (
        Requirement(
            {"algorithm.client_weights": "uniform"},
            "where the mixing matrix has the weights",
            {"exchange": "gossip"},
        ),
    )
    steps_locally = True

    def __init__(
        self, model: Model, local: LocalSolver, *, client_weights: Weights = "uniform"
    ) -> None:
        super().__init__(model, local)
        self.averages_by = "samples" if client_weights == "samples" else "clients"

    def variables(self, model: Tensor, n_clients: int) -> tuple[Tensor, ...]:
        """Return the clients' own models, copies of the shared one, (clients, 1, P)."""
        return (self.copies(model, n_clients).clone(),)

    def copies(self, model: Tensor, n_clients: int) -> Tensor:
        """Return a shared model, (1, P), or rows of it as they are, as (n_clients, 1, P)."""
        return model.expand(n_clients, 1, self.model.n_parameters)

    def combined(self, rows: Tensor, clients: Clients, channel: Channel, before: Tensor) -> Tensor:
        """Return the new shared model from the participants' (participants, 1, P). Collective."""
        weights = clients.average_weights(self.averages_by == "samples")
        return channel.average(rows, weights, before=before)


def algorithm_class(name: Any) -> type[Algorithm]:
    """Return the class of the algorithm called ``name``; raise ``InputError`` if there is none."""
    return cast(type[Algorithm], find("algorithm", name))
