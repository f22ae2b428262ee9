"""Makes a run's objects from its configuration: data, federation, exchange, model, algorithm."""

from __future__ import annotations

import csv
import io
import math
import os
import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mpifed.algorithms.base import Algorithm, algorithm_class, check_rows, check_state
from mpifed.checkpoint.row_file import why_unusable
from mpifed.components.registry import find
from mpifed.config.configuration import Configuration
from mpifed.data.base import Checked, Dataset, Description, Shards, Split
from mpifed.data.held_out import HeldOut
from mpifed.errors import InputError
from mpifed.exchange.attacks import Attackers
from mpifed.exchange.base import Channel, Exchange, exchange_class
from mpifed.exchange.compression import build
from mpifed.exchange.server import Silent
from mpifed.federation.clients import (
    Clients,
    Draws,
    Federation,
    balanced_owners,
    contiguous_owners,
    draw_unseen,
    partitioned_owners,
)
from mpifed.io.memory import check_memory, enough_memory
from mpifed.io.text import read_text
from mpifed.local.minibatches import work_of
from mpifed.local.solver import LocalSolver
from mpifed.models.base import Model
from mpifed.mpi.communicator import Communicator
from mpifed.state import RunState, shared_tensors
from mpifed.training.attacked import attacked, transforms_of
from mpifed.training.model import (
    make_model,
    validate_buffers,
    validate_exact,
    with_stepping,
)


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
    made: Callable[..., Algorithm] = algorithm_class(configuration.algorithm.name)
    return made(model, solver, **configuration.algorithm.options)


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
) -> Exchange:
    """Return the exchange of a run; collective."""
    compressor = None
    if configuration.compression.name != "none":
        compressor = build(configuration.compression)
        if algorithm.payload():
            # Refuses a k above the numbers in a message before anything is written.
            compressor.contraction(algorithm.payload())
    exchanging, options = exchanging_of(configuration)
    made: Callable[..., Exchange] = exchanging
    exchange = made(federation, configuration.seed, stored, compressor, **options)
    if configuration.privacy.is_asked_for:
        exchange.privacy = configuration.privacy
    return exchange


def choose_device(
    name: str, supported: Collection[str], communicator: Communicator
) -> torch.device:
    """Return the CPU, or this rank's GPU: its number on the node modulo the visible GPUs."""
    if name == "cpu" or "cuda" not in supported:
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


TIMING = "timing.csv"
HEAD = "client,seconds"


def samples_of_steps(configuration: Configuration, description: Description) -> np.ndarray:
    """Return the samples that each client visits in a round, scoring included: float64
    (clients,).
    """
    local, n_train = configuration.local, description.n_train
    work = work_of(n_train, local.batch_size, local.epochs, local.steps, local.sampling)
    scored = description.n_test + (description.n_val if configuration.evaluation.validates else 0)
    mean = np.maximum(n_train, 1) / np.maximum(work.per_epoch, 1)  # samples of a minibatch
    return work.steps * mean + scored / configuration.evaluation.every + 1e-9


def work_for_balance(configuration: Configuration, description: Description) -> np.ndarray:
    """Return the work of each client that ``placement=balanced`` evens out, float64 (clients,)."""
    if configuration.placement_costs is None:
        return samples_of_steps(configuration, description)
    return read_costs(Path(configuration.placement_costs), description.n_clients)


def read_costs(path: Path, n_clients: int) -> np.ndarray:
    """Return the seconds of each client in a file that a run wrote, float64 (n_clients,)."""
    path = path / TIMING if path.is_dir() else path
    try:
        first, *rows = csv.reader(io.StringIO(read_text(path)))
        seconds = [float(row[1]) for row in rows]
        known = ",".join(first) == HEAD and [row[0] for row in rows] == [
            *map(str, range(len(rows)))
        ]
    except (ValueError, IndexError, csv.Error):
        known, seconds = False, []
    if not known or not all(math.isfinite(value) and value >= 0 for value in seconds):
        raise InputError(
            f"placement_costs: {path} is not the {TIMING} of a run, whose lines are a client and "
            "its seconds"
        )
    if len(seconds) != n_clients:
        raise InputError(
            f"placement_costs: {path} has {len(seconds)} clients, but the run has {n_clients}"
        )
    return np.array(seconds) + 1e-12


def seconds_of_clients(
    configuration: Configuration, description: Description, federation: Federation, seconds: float
) -> str | None:
    """Return the content of ``timing.csv`` on rank 0; None elsewhere. Collective."""
    every = federation.communicator.gather_object(seconds)
    if every is None:
        return None
    work, owner = samples_of_steps(configuration, description), federation.owner
    by_rank = np.bincount(owner, work, minlength=len(every))
    return as_text(np.array(every)[owner] * work / by_rank[owner])


def as_text(seconds: np.ndarray) -> str:
    r"""Return the content of the file of these seconds."""
    lines = [f"{client},{value:.6g}" for client, value in enumerate(seconds.tolist())]
    return "\n".join([HEAD, *lines]) + "\n"


# Least number of bytes that a rank needs for each client of the run, hosted here or not.
CLIENT_BYTES = 200

# Bytes of samples that a rank holds where ``evaluation.sample`` is below 1, unless it is said.
AUTOMATIC = 192e6

# Least number of copies of a model on a rank: the received one and the trained one.
COPIES = 2


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

    def channel(self, round: int, active: np.ndarray, memory: Any = None) -> Channel:
        """Return the channel of a round, in which clients add noise and attack."""
        channel = self.exchange.at(round, active, memory)
        channel.transforms = transforms_of(self.configuration, self.attackers)
        return channel

    def load(self) -> Shards:
        """Load the shards of the clients hosted here onto the device; collective."""
        shards = self.dataset.load(self.federation.hosted, self.dtype)
        shards = replace(shards, fresh=self.dataset.fresh)
        if self.device.type == "cpu":
            return shards
        splits = (shards.train, shards.val, shards.test)
        train, val, test = (
            Split(s.x.to(self.device), s.y.to(self.device), s.offsets) for s in splits
        )
        return Shards(shards.client_ids, train, val, test, shards.fresh)

    def first_state(self, everyone: Clients) -> RunState:
        """Return the state before round 1 and before ``Algorithm.prepare``; collective."""
        draws = Draws(self.configuration.seed, 0)
        first = self.algorithm.init(everyone, self.exchange, draws, self.dtype)
        check_state(self.algorithm, "init", first)
        check_rows(self.algorithm, first, len(everyone), self.exchange.shared_is_rows)
        return RunState(first, self.first_memory(first, len(everyone)))

    def first_memory(self, first: Any, n_hosted: int) -> Any:
        """Return what the exchange remembers of ``first``, an algorithm's state before round 1."""
        return self.exchange.remember(shared_tensors(first), n_hosted, self.dtype)


def make_dataset(configuration: Configuration, communicator: Communicator) -> Dataset:
    """Make the data set of a run; collective. Raises ``InputError`` for wrong data."""
    n_clients = configuration.clients
    check_memory(CLIENT_BYTES * n_clients, f"clients is {n_clients}, which")
    made: Callable[..., Dataset] = find("data", configuration.data.name)
    with enough_memory(f"the data set {configuration.data.name} with such options"):
        dataset = made(n_clients, configuration.seed, communicator, **configuration.data.options)
    if ":" in configuration.data.name:
        dataset = Checked(dataset)
    description = dataset.description
    if description.n_clients != n_clients:
        raise InputError(
            f"clients is {n_clients}, but the data set holds {description.n_clients} clients"
        )
    fraction = configuration.evaluation.validation_fraction
    return HeldOut(dataset, fraction, configuration.seed) if fraction else dataset


def make(
    configuration: Configuration,
    communicator: Communicator,
    horizon: int,
    stored: dict[str, np.ndarray] | None = None,
    dataset: Dataset | None = None,
    renumber: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
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
    scored = description.n_test + (description.n_val if configuration.evaluation.validates else 0)
    work = description.n_train + scored / configuration.evaluation.every
    method = algorithm_class(configuration.algorithm.name)
    exchanging, options = exchanging_of(configuration)
    n_training = int((~unseen).sum())
    begins = stored is None
    if stored is None:
        stored = exchanging.prepare(communicator, n_training, configuration.seed, options)
    if configuration.placement == "balanced":
        owner = balanced_owners(work_for_balance(configuration, description), communicator.size)
    else:
        owner = contiguous_owners(work, communicator.size, description.n_train)
    if configuration.placement == "partitioned":
        links = exchanging.links(n_training, configuration.seed, options, stored)
        if links is not None:
            owner = partitioned_owners(work, unseen, links, communicator)
    if renumber is not None:
        owner = renumber(owner, np.where(unseen, 0, description.n_train))
    federation = Federation(
        communicator, owner, unseen, description.n_train, configuration.participation
    )
    _check_samples(configuration, federation, dataset)
    hostile, dataset = attacked(configuration, federation, dataset)
    with enough_memory(f"the model {configuration.model.name} with such options"):
        model = make_model(configuration, description, method)
    device = choose_device(configuration.device, method.devices, communicator)
    _check_storage(configuration, device)
    configuration = with_stepping(configuration, model, device)
    check_memory(
        COPIES * model.n_parameters * _dtype(configuration).itemsize,
        f"the model {configuration.model.name} has {model.n_parameters} parameters, which",
    )
    validate_exact(configuration, model, method)
    algorithm = make_algorithm(configuration, description, model, horizon, device)
    _check_task(configuration, description, algorithm)
    validate_exact(configuration, model, algorithm)
    validate_buffers(configuration, model, federation.is_unbiased)
    if algorithm.online and dataset.fresh is None:
        raise InputError(
            f"algorithm.online is true, but data.name '{configuration.data.name}' cannot draw "
            "fresh samples; allowed: dictionary, poisson, gaussian_mixture"
        )
    if begins:
        algorithm.inspect(_dtype(configuration))
    if unseen.any() and not algorithm.serves_unseen_clients():
        raise InputError(
            f"evaluation.unseen_fraction is {configuration.evaluation.unseen_fraction:g}, but "
            f"algorithm '{configuration.algorithm.name}' cannot serve unseen clients"
        )
    exchange = make_exchange(configuration, federation, stored, algorithm)
    if options.get("asynchrony") == "pairwise" and isinstance(model, Model) and model.n_buffers:
        raise InputError(
            f"exchange.asynchrony is 'pairwise', but the model {configuration.model.name} has "
            "running statistics, which are not the sum of updates; allowed: "
            "exchange.asynchrony=wait_free, or a model without batch normalisation"
        )
    corrects = options.get("correction")
    if corrects is not None and isinstance(model, Model) and model.n_buffers:
        raise InputError(
            f"exchange.correction is '{corrects.name}', but the model {configuration.model.name} "
            "has running statistics, which are not the sum of updates; allowed: "
            "exchange.correction=none, or a model without batch normalisation"
        )
    return Setup(
        configuration, dataset, federation, exchange, model, algorithm, horizon, device, hostile
    )


def _check_samples(configuration: Configuration, federation: Federation, dataset: Dataset) -> None:
    """Refuse samples that do not fit into the memory of the hosts; collective."""
    description = dataset.description
    samples = description.n_train + description.n_val + description.n_test
    by_rank = np.bincount(
        federation.owner, weights=samples, minlength=federation.communicator.size
    ) * sample_bytes(configuration, description)
    host, here = sum_on_host(federation.communicator, by_rank)
    if kept_bytes(configuration, dataset) is not None:
        # Those of the participants of a round alone, and not for long.
        here *= federation.inclusion
    check_memory(
        here,
        f"data.name '{configuration.data.name}' gives the clients on {host} "
        f"{int(samples.sum(dtype=np.float64))} samples of shape {description.input_shape}, which",
    )


def _check_storage(configuration: Configuration, device: torch.device) -> None:
    """Refuse rows on disk for a device that cannot use them, or where they cannot be."""
    options = configuration.storage
    if options.state != "disk":
        return
    if device.type != "cpu":
        raise InputError(
            f"storage.state is disk, but device is {device.type}, whose memory no file can be; "
            "allowed: storage.state=memory, or device=cpu"
        )
    place = options.directory
    if place is None:
        return
    if not (os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK)):
        raise InputError(
            f"storage.directory is '{place}'; it must be a directory that can be written to"
        )
    why = why_unusable(Path(place))
    if why is not None:
        raise InputError(
            f"storage.directory is '{place}', where no file for clients' states can be made: "
            f"{why}; it must be a directory that can be written to"
        )


def kept_bytes(configuration: Configuration, dataset: Dataset) -> float | None:
    """Return the bytes of samples that a rank holds, if it can; None: all are loaded."""
    asked, sampled = configuration.storage.samples, configuration.evaluation.sample < 1
    if dataset.make_split is None or (asked is None and not sampled):
        return None
    return AUTOMATIC if asked is None else asked * 1e6


def sum_on_host(communicator: Communicator, by_rank: np.ndarray) -> tuple[str, float]:
    """Return this host's name and the sum over its ranks of ``by_rank``, (ranks,); collective."""
    host = socket.gethostname()
    hosts = communicator.broadcast_object(communicator.gather_object(host))
    return host, float(by_rank[np.array(hosts) == host].sum())


def sample_bytes(configuration: Configuration, description: Description) -> int:
    """Return the bytes of a sample and its label in memory."""
    return math.prod(description.input_shape) * _dtype(configuration).itemsize + 8


def _dtype(configuration: Configuration) -> torch.dtype:
    return torch.float64 if configuration.dtype == "float64" else torch.float32


def _check_task(
    configuration: Configuration, description: Description, algorithm: Algorithm
) -> None:
    """Refuse an algorithm that cannot learn from data of this task."""
    name, task = configuration.algorithm.name, description.task
    if task not in algorithm.tasks:
        raise InputError(
            f"data.name is '{configuration.data.name}', whose task is {task}, but algorithm "
            f"'{name}' learns from: {', '.join(algorithm.tasks)}"
        )


def check_round(setup: Setup) -> None:
    """Refuse messages that do not fit into the memory of the hosts; collective."""
    federation, communicator = setup.federation, setup.federation.communicator
    trained = np.bincount(federation.owner[federation.training], minlength=communicator.size)
    host, found = sum_on_host(communicator, trained)
    here = int(found)
    rows = int(federation.inclusion * here) + (here if setup.exchange.shared_is_rows else 1)
    rows += setup.exchange.values_kept * here
    numbers = setup.algorithm.payload()
    check_memory(
        float(rows) * numbers * setup.dtype.itemsize,
        f"algorithm {setup.configuration.algorithm.name} has {numbers} numbers in a client's "
        f"message and {here} clients in training on {host}, which",
    )
