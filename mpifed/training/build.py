"""Makes a run's objects from its configuration: data, attackers, federation, exchange, model,
algorithm.
"""

from __future__ import annotations

import inspect
import math
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import torch

from mpifed.components.registry import Section, find
from mpifed.components.registry import make as make_component
from mpifed.config.configuration import PLAIN_MEAN, Configuration
from mpifed.config.requirements import fits_gpu
from mpifed.data.base import SPLITS, Dataset, Description, Shards, Split, SplitName
from mpifed.data.derived import Checked, DerivedDataset, HeldOut
from mpifed.errors import InputError
from mpifed.exchange.attacks import Attackers, attackers, check_labels
from mpifed.exchange.base import Channel, Exchange, Transform, exchange_class
from mpifed.exchange.compression import build
from mpifed.exchange.gossip import Gossip
from mpifed.exchange.gossip_channel import GossipChannel
from mpifed.exchange.mixing_options import with_sizes
from mpifed.exchange.privacy import LocalNoise, PairwiseNoise
from mpifed.exchange.server import Server, Silent
from mpifed.exchange.transforms import ServerStep
from mpifed.federation.clients import (
    Clients,
    Draws,
    Federation,
    draw_unseen,
)
from mpifed.federation.hosted import CachedShards, HostedShards, LoadedShards
from mpifed.federation.placement import balanced_owners, contiguous_owners, partitioned_owners
from mpifed.io.memory import check_memory, enough_memory
from mpifed.local.minibatches import work_of
from mpifed.local.objective import HeldOutRisks
from mpifed.local.solver import LocalSolver
from mpifed.method.algorithm import Algorithm, algorithm_class, algorithm_classes
from mpifed.method.checks import check_rows, check_state
from mpifed.models.base import Model, Parametrised
from mpifed.models.losses import loss_for
from mpifed.models.modules import ModuleModel, module_model, seeded, with_shapes
from mpifed.mpi.communicator import Communicator
from mpifed.state import RunState, shared_tensors
from mpifed.training.footprint import state_bytes
from mpifed.watchdog import heartbeat

# Least number of bytes that a rank needs for each client of the run, hosted here or not.
CLIENT_BYTES = 200

# Bytes of samples that a rank holds where not all are used in a round or an evaluation, unless it
# is said.
AUTOMATIC = 96e6

# The value of a schedule's ``labels`` that asks for the counts of the run's own data.
OF_DATA = "data"

# Least number of copies of a model on a rank: the received one and the trained one.
COPIES = 2


def make_algorithm(
    configuration: Configuration,
    description: Description,
    model: Model,
    horizon: int,
    device: torch.device,
) -> Algorithm:
    """Return the algorithm of a run, with a solver of its own."""
    longest = int(description.n_train.max())
    solver = LocalSolver(model, configuration.local, horizon, longest, device)
    kinds = algorithm_classes(configuration.algorithm.name)
    method: Callable[..., Algorithm] = next(k for k in kinds if isinstance(model, k.model_type()))
    return method(model, solver, **configuration.algorithm.options)


def exchanging_of(configuration: Configuration) -> tuple[type[Exchange], Mapping[str, Any]]:
    """Return the class of the exchange of a run, and its options; ``Silent`` if nothing is sent."""
    if not algorithm_class(configuration.algorithm.name).communicates:
        return Silent, {}
    return exchange_class(configuration.exchange.name), configuration.exchange.options


def make_exchange(
    configuration: Configuration,
    federation: Federation,
    stored: Mapping[str, np.ndarray],
    algorithm: Algorithm,
    horizon: int,
    hostile: Attackers | None = None,
) -> Exchange:
    """Return the exchange of a run of ``horizon`` rounds; collective."""
    compressor = None
    if configuration.compression.name != "none":
        compressor = build(configuration.compression)
        if algorithm.payload():
            # Refuses a k above the numbers in a message before anything is written.
            compressor.contraction(algorithm.payload())
    exchanging, options = exchanging_of(configuration)
    construct: Callable[..., Exchange] = exchanging
    exchange = construct(federation, configuration.seed, stored, compressor, **options)
    exchange.transforms = transforms_of(configuration, hostile)
    if isinstance(exchange, Server) and configuration.server_optimizer != PLAIN_MEAN:
        section = "server_optimizer"
        optimizer = make_component(section, configuration.server_optimizer, section)
        exchange.steps = [ServerStep(optimizer, algorithm.shared_buffers)]
    if isinstance(exchange, Gossip):
        exchange.spread_over(horizon)
    if configuration.privacy.is_asked_for:
        exchange.privacy = configuration.privacy
    return exchange


def choose_device(name: str, fits: bool, communicator: Communicator) -> torch.device:
    """Return the CPU, or this rank's GPU: its number on the node modulo the visible GPUs."""
    if name == "cpu" or not fits:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        if name == "cuda":
            raise InputError("device is 'cuda', but torch sees no GPU; allowed here: auto, cpu")
        return torch.device("cpu")
    device = torch.device("cuda", communicator.local_rank() % torch.cuda.device_count())
    compute_reproducibly()
    # Page-locked memory and random numbers belong to the current device.
    torch.cuda.set_device(device)
    return device


def compute_reproducibly() -> None:
    """Set torch so that a GPU repeats its results bit for bit, in full float32; for the
    process.
    """
    # Read by cuBLAS when it is first used: one workspace of a fixed size for each stream.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Filling fresh memory with NaN finds mistakes and costs time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    # TF32 keeps 10 bits of a float32's fraction; local.autocast asks for less precision.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def samples_of_steps(configuration: Configuration, description: Description) -> np.ndarray:
    """Return the samples that each client visits in a round, scoring included: float64
    (clients,).
    """
    local, n_train = configuration.local, description.n_train
    work = work_of(n_train, local.batch_size, local.epochs, local.steps, local.sampling)
    scored = description.n_test + (description.n_val if configuration.evaluation.validates else 0)
    mean = np.maximum(n_train, 1) / np.maximum(work.per_epoch, 1)  # samples of a minibatch
    return work.steps * mean + scored / configuration.evaluation.every + 1e-9


def hosting_ranks(configuration: Configuration, communicator: Communicator) -> np.ndarray:
    """Return the ranks that may host clients, ascending, int32. Collective."""
    ranks = np.arange(communicator.size, dtype=np.int32)
    if configuration.hosts == "ranks" or communicator.size == 1:
        return ranks
    nodes, every = communicator.nodes(), communicator.gather_object(cores_of_this_process())
    ranks_with_cores = (
        None if every is None else first_per_core(nodes, every, configuration.threads)
    )
    return communicator.broadcast(ranks_with_cores)


def first_per_core(nodes: np.ndarray, cores: Sequence[frozenset[int]], threads: int) -> np.ndarray:
    """Return the first ranks of every node, as many as it has cores for."""
    chosen = []
    for node in np.unique(nodes):
        ranks = np.flatnonzero(nodes == node)
        usable = frozenset.union(*(cores[rank] for rank in ranks.tolist()))
        chosen.append(ranks[: max(1, len(usable) // threads)])
    return np.sort(np.concatenate(chosen)).astype(np.int32)


def cores_of_this_process() -> frozenset[int]:
    """Return the cores on which this process may run."""
    return frozenset(os.sched_getaffinity(0))


class Poisoned(DerivedDataset):
    """A data set in which attackers train on other labels, and are scored on their own."""

    def __init__(self, dataset: Dataset, hostile: Attackers) -> None:
        super().__init__(dataset)
        self._hostile = hostile
        # The true labels of attackers whose training samples have been loaded here.
        self._true: dict[int, torch.Tensor] = {}

    def changed(
        self, name: SplitName, split: Split, client_ids: np.ndarray, dtype: torch.dtype
    ) -> Split:
        """Return the samples, those for training with the labels that attackers train on."""
        which = self._hostile.who[client_ids]
        if name != "train" or not which.any():
            return split
        y = split.y.clone()
        for position in np.flatnonzero(which).tolist():
            rows = split.rows_of(position)
            self._true[int(client_ids[position])] = split.y[rows]
            y[rows] = self._hostile.relabelled(split.y[rows], self.description.n_classes)
        return replace(split, y=y)

    def with_true_labels(self, train: Split, client_ids: np.ndarray) -> Split:
        """Return training samples as they are scored; some clients may have none."""
        y = train.y
        for position in np.flatnonzero(self._hostile.who[client_ids] & (train.counts > 0)).tolist():
            y = y.clone() if y is train.y else y
            rows = train.rows_of(position)
            true = self._true[int(client_ids[position])][: rows.stop - rows.start]
            y[rows] = true.to(y.device)
        return replace(train, y=y)


def attacked(
    configuration: Configuration, federation: Federation, dataset: Dataset
) -> tuple[Attackers | None, Dataset]:
    """Return the attackers of a run, and the data set with the labels that they train on."""
    if configuration.attack.name == "none":
        return None, dataset
    hostile = attackers(configuration.attack, federation, configuration.seed)
    if not hostile.attack.changes_labels:
        return hostile, dataset
    description = dataset.description
    check_labels(hostile.attack, hostile.name, description.task, description.n_classes)
    return hostile, Poisoned(dataset, hostile)


def transforms_of(configuration: Configuration, hostile: Attackers | None) -> list[Transform]:
    """Return what clients do to their updates before they send them, in turn."""
    transforms: list[Transform] = []
    options = configuration.privacy
    if options.is_asked_for and options.where == "local":
        transforms.append(LocalNoise(options))
    if options.pairwise_multiplier:
        transforms.append(PairwiseNoise(options))
    if hostile is not None and hostile.attack.changes_updates:
        transforms.append(hostile)
    return transforms


def _takes_data(function: Callable[..., Any]) -> bool:
    """Return whether a model is a function of the data; a module's class often is not."""
    for first in inspect.signature(function).parameters.values():
        return first.kind is not first.KEYWORD_ONLY and first.default is first.empty
    return False


def make_model(configuration: Configuration, description: Description) -> Model:
    """Return the model of a run."""
    name = configuration.model.name
    function = find("model", name)

    def build() -> Any:
        arguments = [description] if _takes_data(function) else []
        return function(*arguments, **configuration.model.options)

    def first() -> Any:
        model = build()
        shape = description.input_shape
        return with_shapes(model, shape) if isinstance(model, torch.nn.Module) else model

    built = seeded(first, configuration.seed)
    if isinstance(built, torch.nn.Module):
        built = module_model(
            build,
            description.input_shape,
            description.output_shape,
            loss_for(description.task),
            seed=configuration.seed,
            autocast=torch.bfloat16 if configuration.local.autocast else None,
            dtype=torch.float64 if configuration.dtype == "float64" else torch.float32,
            network=built,
        )
    elif configuration.local.autocast:
        raise InputError(
            f"local.autocast is '{configuration.local.autocast}', but model '{name}' is computed "
            "by formulas of its own; allowed with networks (torch modules)"
        )
    kinds = [method.model_type() for method in algorithm_classes(configuration.algorithm.name)]
    if not isinstance(built, Parametrised):
        kinds = [Model, torch.nn.Module]
    if not isinstance(built, tuple(kinds)):
        raise InputError(
            f"model.name is '{name}', which gives a {type(built).__name__}, but algorithm "
            f"'{configuration.algorithm.name}' needs a "
            f"{' or '.join(getattr(kind, '__name__', str(kind)) for kind in kinds)}"
        )
    # A model that does not predict reaches only methods that ask for it by a parameter of its type.
    return cast(Model, built)


def with_stepping(
    configuration: Configuration, model: Model, device: torch.device
) -> Configuration:
    """Return the configuration with ``local.stepping`` as it is used, where digests depend
    on it.
    """
    stepping = configuration.local.stepping
    if stepping != "auto" and stepping not in model.steppings:
        raise InputError(
            f"local.stepping is '{stepping}', but the model {_unstackable(configuration, model)}, "
            "so that its rows cannot be stacked; allowed: auto, one_by_one"
        )
    on_cpu, predicts = device.type == "cpu", isinstance(model, Model)
    if stepping != "auto" or not predicts or (on_cpu and model.same_bits):
        return configuration
    chosen = model.stepping if on_cpu else model.stepping_on_gpu
    return replace(configuration, local=replace(configuration.local, stepping=chosen))


def _unstackable(configuration: Configuration, model: Model) -> str:
    """Say what keeps rows of a model from being stacked."""
    if not model.deterministic:
        return "has dropout, batch normalisation or buffers that change"
    if configuration.local.autocast:
        return f"computes in {configuration.local.autocast} (local.autocast)"
    return "has layers, branches or changes in place that torch.func.vmap does not take"


def validate_exact(
    configuration: Configuration, model: Model, method: Algorithm | type[Algorithm]
) -> None:
    """Refuse a model whose risk is random in a method that needs whole risks."""
    if not method.uses_model() or method.local_options is None:
        return
    if not model.deterministic:
        raise InputError(
            f"model.name is '{configuration.model.name}', whose outputs in training depend on "
            "random numbers or on other samples (dropout, batch normalisation), but "
            f"algorithm '{configuration.algorithm.name}' computes gradients of whole risks; "
            "use a network without them, such as one with GroupNorm"
        )


def validate_buffers(configuration: Configuration, model: Model, unbiased: bool) -> None:
    """Refuse running statistics in exchanges that do not average: a variance could be negative."""
    name = configuration.compression.name
    if not model.n_buffers or (name in ("none", "identity") and not unbiased):
        return
    stays_local = configuration.local.buffers == "local"
    if stays_local and not configuration.evaluation.unseen_fraction:
        return
    cause = "participation.weights is 'unbiased'" if unbiased else f"compression.name is '{name}'"
    raise InputError(
        f"{cause}, but model '{configuration.model.name}' has running statistics, whose variances "
        "could become negative; allowed with local.buffers=local and without unseen clients, or use"
        " GroupNorm"
    )


def describe_model(model: Model) -> str:
    """Return the size of a model and how it is stepped, for the plan of a run."""
    buffers = f" and {model.n_buffers:,} running statistics" if model.n_buffers else ""
    frozen = model.n_frozen if isinstance(model, ModuleModel) else 0
    frozen_part = f", beside {frozen:,} that are frozen" if frozen else ""
    return f"{model.n_parameters - model.n_buffers:,} parameters{buffers}{frozen_part}"


@dataclass(frozen=True)
class Setup:
    """The objects of a run, without its shards and its state; ``horizon`` is R of the schedules."""

    configuration: Configuration
    dataset: Dataset
    federation: Federation
    exchange: Exchange
    model: Model
    algorithm: Algorithm
    horizon: int
    device: torch.device
    attackers: Attackers | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of models and samples."""
        return _dtype(self.configuration)

    def channel(
        self, round: int, active: np.ndarray, memory: Any = None, clients: Clients | None = None
    ) -> Channel:
        """Return the channel of a round.

        ``clients`` are the participants hosted here, who can look at models of others.
        """
        channel = self.exchange.at(round, active, memory)
        if clients is None or not isinstance(channel, GossipChannel):
            return channel
        if channel.mixing.correction is not None and channel.mixing.correction.chooses:
            layers = [slice(span.begin, span.end) for span in self.model.spans()]
            channel.layers = layers or [slice(0, self.model.n_parameters)]
            like = torch.zeros(0, dtype=self.dtype, device=self.device)
            channel.held_out = HeldOutRisks(self.model, clients, like)
        return channel

    def load(self) -> Shards:
        """Load the shards of the clients hosted here onto the device; collective."""
        shards = self.dataset.load(self.federation.hosted, self.dtype)
        _check_tokens(self.configuration, self.model, shards)
        shards = replace(shards, fresh=self.dataset.fresh)
        if self.device.type == "cpu":
            return shards
        splits = (shards.train, shards.val, shards.test)
        train, val, test = (
            Split(s.x.to(self.device), s.y.to(self.device), s.offsets) for s in splits
        )
        return Shards(shards.client_ids, train, val, test, shards.fresh)

    def hosted_shards(self) -> HostedShards:
        """Return the shards of the clients hosted here. Collective where all are loaded."""
        budget = kept_bytes(self.configuration, self.dataset, self.federation)
        if budget is None:
            return LoadedShards(self.federation, self.load())
        size = sample_bytes(self.configuration, self.dataset.description)
        return CachedShards(self.federation, self.dataset, self.dtype, self.device, size, budget)

    def first_state(self, everyone: Clients) -> RunState:
        """Return the state before round 1 and before ``Algorithm.prepare``; collective."""
        draws = Draws(self.configuration.seed, 0)
        first = self.algorithm.init(everyone, self.exchange, draws, self.dtype)
        check_state(self.algorithm, "init", first)
        n_hosted = len(self.federation.hosted)
        check_rows(self.algorithm, first, n_hosted, self.exchange.shared_is_rows)
        return RunState(first, self.first_memory(first, n_hosted))

    def first_memory(self, first: Any, n_hosted: int) -> Any:
        """Return what the exchange remembers of ``first``, an algorithm's state before round 1."""
        return self.exchange.remember(shared_tensors(first), n_hosted, self.dtype)


def _check_tokens(configuration: Configuration, model: Model, shards: Shards) -> None:
    """Refuse inputs that are no tokens of a model of tokens."""
    n_tokens = getattr(model.network, "n_tokens", None) if isinstance(model, ModuleModel) else None
    if n_tokens is None:
        return
    for name in SPLITS:
        split: Split = getattr(shards, name)
        for row, client in enumerate(shards.client_ids.tolist()):
            x = split.x[split.rows_of(row)]
            wrong = (x < 0) | (x >= n_tokens) | (x != x.trunc())
            if wrong.any():
                options = configuration.data.options
                file = options.get("path") or options.get("raw")
                raise InputError(
                    f"data.name is '{configuration.data.name}'" + f", '{file}'" * bool(file) + ", "
                    f"where /{name} of client {client} has the token {x[wrong][0].item():g}, but "
                    f"model '{configuration.model.name}' takes whole numbers from 0 to "
                    f"{n_tokens - 1}; model.vocabulary may be larger"
                )


def make_dataset(configuration: Configuration, communicator: Communicator) -> Dataset:
    """Make the data set of a run; collective. Raises ``InputError`` for wrong data."""
    n_clients = configuration.clients
    check_memory(CLIENT_BYTES * n_clients, f"clients is {n_clients}, which")
    construct: Callable[..., Dataset] = find("data", configuration.data.name)
    with enough_memory(f"the data set {configuration.data.name} with such options"):
        dataset = construct(
            n_clients, configuration.seed, communicator, **configuration.data.options
        )
    if ":" in configuration.data.name:
        dataset = Checked(dataset)
    description = dataset.description
    if len(description.n_train) != n_clients:
        raise InputError(
            f"clients is {n_clients}, but the data set holds {description.n_clients} clients"
        )
    fraction = configuration.evaluation.validation_fraction
    return HeldOut(dataset, fraction, configuration.seed) if fraction else dataset


@contextmanager
def _labels_of_data(
    configuration: Configuration,
    options: Mapping[str, Any],
    training: np.ndarray,
    communicator: Communicator,
) -> Iterator[Mapping[str, Any]]:
    """Give the options of an exchange with ``labels: data`` a file of the counts. Collective."""
    schedule = options.get("schedule")
    if not isinstance(schedule, Section) or schedule.options.get("labels") != OF_DATA:
        yield options
        return
    dataset = make_dataset(configuration, communicator)  # samples are loaded once from each
    description = dataset.description
    if description.task != "classification":
        raise InputError(
            f"exchange.schedule.labels is '{OF_DATA}', but the task of the data is "
            f"{description.task}; allowed: classification, or a CSV file of counts"
        )
    mine = np.array_split(np.flatnonzero(training), communicator.size)[communicator.rank]
    split = dataset.load(mine, torch.float32).train
    counts = np.zeros((len(mine), description.n_classes), np.int64)
    np.add.at(counts, (np.repeat(np.arange(len(mine)), split.counts), split.y.numpy()), 1)
    parts = communicator.gather_object(counts)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "label-counts.csv"
        if parts is not None:
            np.savetxt(path, np.concatenate(parts), fmt="%d", delimiter=",")
        schedule_from_file = Section(schedule.name, {**schedule.options, "labels": str(path)})
        yield {**options, "schedule": schedule_from_file}


def make(
    configuration: Configuration,
    communicator: Communicator,
    horizon: int,
    stored: dict[str, np.ndarray] | None = None,
    dataset: Dataset | None = None,
) -> Setup:
    """Make the objects of a run; collective. Raises ``InputError`` for wrong data."""
    n_clients = configuration.clients
    if dataset is None:
        dataset = make_dataset(configuration, communicator)
    description = dataset.description
    if configuration.evaluation.validates and not description.n_val.any():
        raise InputError(
            f"evaluation.validation_split is true, but '{description.source}' has no validation "
            "samples of its own; evaluation.validation_fraction holds some of the training out"
        )
    unseen = draw_unseen(n_clients, configuration.evaluation.unseen_fraction, configuration.seed)
    exchanging, options = exchanging_of(configuration)
    n_training = int((~unseen).sum())
    begins = stored is None
    if stored is None:
        sizes = description.n_train[~unseen]
        sized = with_sizes(options, sizes) if "weights" in options else options
        with _labels_of_data(configuration, sized, ~unseen, communicator) as prepared:
            stored = exchanging.prepare(communicator, n_training, configuration.seed, prepared)
    hosting = hosting_ranks(configuration, communicator)
    work, links = samples_of_steps(configuration, description), None
    if configuration.placement == "partitioned":
        links = exchanging.links(n_training, configuration.seed, options, stored)
    if links is not None:
        owner = partitioned_owners(work, unseen, links, len(hosting), communicator)
    elif configuration.placement == "balanced":
        owner = balanced_owners(work, len(hosting))
    else:
        owner = contiguous_owners(work, len(hosting), description.n_train)
    owner = hosting[owner]
    federation = Federation(
        communicator, owner, unseen, description.n_train, configuration.participation
    )
    _check_samples(configuration, federation, dataset)
    hostile, dataset = attacked(configuration, federation, dataset)
    with enough_memory(f"the model {configuration.model.name} with such options"):
        model = make_model(configuration, description)
    device = choose_device(configuration.device, fits_gpu(configuration), communicator)
    configuration = with_stepping(configuration, model, device)
    check_memory(
        COPIES * model.n_parameters * _dtype(configuration).itemsize,
        f"the model {configuration.model.name} has {model.n_parameters} parameters, which",
    )
    algorithm = make_algorithm(configuration, description, model, horizon, device)
    if description.task not in algorithm.tasks:
        raise InputError(
            f"data.name is '{configuration.data.name}', whose task is {description.task}, but "
            f"algorithm '{configuration.algorithm.name}' learns from: {', '.join(algorithm.tasks)}"
        )
    validate_exact(configuration, model, algorithm)
    validate_buffers(configuration, model, federation.is_unbiased)
    if begins:
        algorithm.inspect(_dtype(configuration))
    exchange = make_exchange(configuration, federation, stored, algorithm, horizon, hostile)
    if device.type == "cpu":
        is_rows = exchange.shared_is_rows
        by_rank = state_bytes(configuration, federation, model, algorithm, is_rows)
        host, bytes_on_host = sum_on_host(communicator, by_rank)
        check_memory(
            bytes_on_host,
            f"the model {configuration.model.name} has {model.n_parameters} parameters, and with "
            f"local.optimizer={configuration.local.optimizer} what the clients on {host} train",
        )
    sums_updates = [options.get("correction")]
    sums_updates += ["pairwise"] if options.get("asynchrony") == "pairwise" else []
    if any(sums_updates) and isinstance(model, Model) and model.n_buffers:
        raise InputError(
            f"the model {configuration.model.name} has running statistics, which are not the sum "
            "of updates; allowed: exchange.correction=none and exchange.asynchrony=wait_free, or a "
            "model without batch normalisation"
        )
    return Setup(
        configuration, dataset, federation, exchange, model, algorithm, horizon, device, hostile
    )


def _check_samples(configuration: Configuration, federation: Federation, dataset: Dataset) -> None:
    """Refuse samples that do not fit into the memory of the hosts; collective."""
    description = dataset.description
    samples = description.n_train + description.n_val + description.n_test
    by_rank = sample_bytes_by_rank(configuration, description, federation)
    heartbeat.set_planned(by_rank[federation.communicator.rank])
    host, bytes_on_host = sum_on_host(federation.communicator, by_rank)
    if kept_bytes(configuration, dataset, federation) is not None:
        # Those of the participants of a round alone, and not for long.
        bytes_on_host *= federation.inclusion
    check_memory(
        bytes_on_host,
        f"data.name '{configuration.data.name}' gives the clients on {host} "
        f"{int(samples.sum(dtype=np.float64))} samples of shape {description.input_shape}, which",
    )


def kept_bytes(
    configuration: Configuration, dataset: Dataset, federation: Federation
) -> float | None:
    """Return the bytes of samples that a rank holds, if it can; None: all are loaded."""
    megabytes = configuration.storage.samples
    if dataset.make_split is None:
        return None
    if megabytes is not None:
        return megabytes * 1e6
    if configuration.evaluation.sample < 1:
        return AUTOMATIC
    # Of all ranks, so that all decide alike.
    idle = federation.inclusion < 1
    most = sample_bytes_by_rank(configuration, dataset.description, federation).max()
    return AUTOMATIC if idle and most > AUTOMATIC else None


def sample_bytes_by_rank(
    configuration: Configuration, description: Description, federation: Federation
) -> np.ndarray:
    """Return the bytes of the samples of the clients that each rank hosts, (ranks,)."""
    samples = description.n_train + description.n_val + description.n_test
    by_rank = np.bincount(federation.owner, weights=samples, minlength=federation.communicator.size)
    return by_rank * sample_bytes(configuration, description)


def sum_on_host(communicator: Communicator, by_rank: np.ndarray) -> tuple[str, float]:
    """Return this host's name and the sum over its ranks of ``by_rank``, (ranks,); collective."""
    nodes = communicator.nodes()
    return socket.gethostname(), float(by_rank[nodes == nodes[communicator.rank]].sum())


def sample_bytes(configuration: Configuration, description: Description) -> int:
    """Return the bytes of a sample and its label in memory."""
    return math.prod(description.input_shape) * _dtype(configuration).itemsize + 8


def _dtype(configuration: Configuration) -> torch.dtype:
    return torch.float64 if configuration.dtype == "float64" else torch.float32
