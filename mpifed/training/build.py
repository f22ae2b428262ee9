"""Makes a run's objects from its configuration."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import torch

from mpifed.components.registry import Section, find
from mpifed.components.registry import make as make_component
from mpifed.components.tables import OWN_DATA
from mpifed.config.configuration import PLAIN_MEAN, Configuration
from mpifed.config.requirements import fits_gpu
from mpifed.data.base import Dataset, Description
from mpifed.data.central import (
    HOLDOUT,
    PASSED,
    Together,
    WithCentral,
    check_alike,
    of_new_samples,
    with_held_out,
)
from mpifed.data.derived import Checked, HeldOut
from mpifed.errors import InputError
from mpifed.exchange.attacks import Attackers, attackers, check_labels
from mpifed.exchange.base import Exchange, Transform, exchange_class
from mpifed.exchange.compression import Compressor, build
from mpifed.exchange.gossip import Gossip
from mpifed.exchange.mixing_options import with_sizes
from mpifed.exchange.privacy import LocalNoise, PairwiseNoise
from mpifed.exchange.server import Server, Silent
from mpifed.exchange.transforms import ServerStep
from mpifed.federation.federation import Federation, draw_unseen
from mpifed.federation.options import PrivacyOptions
from mpifed.federation.participation import check_clients, is_drawn, with_names
from mpifed.federation.placement import balanced_owners, contiguous_owners, partitioned_owners
from mpifed.io.memory import check_memory, enough_memory
from mpifed.local.minibatches import work_of
from mpifed.local.options import LocalOptions
from mpifed.local.solver import LocalSolver
from mpifed.method.algorithm import Algorithm, algorithm_class, algorithm_classes
from mpifed.models.base import Model
from mpifed.models.losses import loss_for
from mpifed.models.modules import ModuleModel, module_model, seeded, with_shapes
from mpifed.mpi.agreement import agree
from mpifed.mpi.communicator import Communicator
from mpifed.training.central import check_central
from mpifed.training.evaluation import columns_of
from mpifed.training.footprint import sample_bytes_by_rank, state_bytes
from mpifed.training.poisoned import Poisoned
from mpifed.training.setup import Setup
from mpifed.training.validation import (
    check_autocast,
    check_kind,
    check_labels_of_data,
    check_model_memory,
    check_number,
    check_risks,
    check_samples,
    check_states,
    check_statistics,
    check_stepping,
    check_sums,
    check_task,
    check_validation,
)
from mpifed.watchdog import heartbeat

# Least number of bytes that a rank needs for each client of the run, hosted here or not.
CLIENT_BYTES = 200

# Bytes of samples that a rank holds where not all are used in a round or an evaluation, unless it
# is said.
AUTOMATIC = 96e6

# The value of a schedule's ``labels`` that asks for the counts of the run's own data.
OF_DATA = "data"

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def make_algorithm(section: Section, model: Model, solver: LocalSolver) -> Algorithm:
    """Return the algorithm of a run, with the solver of its local steps."""
    kinds = algorithm_classes(section.name)
    method: Callable[..., Algorithm] = next(k for k in kinds if isinstance(model, k.model_type()))
    return method(model, solver, **section.options)


def exchanging_of(configuration: Configuration) -> tuple[type[Exchange], Mapping[str, Any]]:
    """Return the class of the exchange of a run, and its options; ``Silent`` if nothing is sent."""
    if not algorithm_class(configuration.algorithm.name).communicates:
        return Silent, {}
    return exchange_class(configuration.exchange.name), configuration.exchange.options


def with_stepping(options: LocalOptions, model: Model, device: torch.device) -> LocalOptions:
    """Return ``local`` with its ``stepping`` as it is used, where digests depend on it."""
    on_cpu, predicts = device.type == "cpu", isinstance(model, Model)
    if options.stepping != "auto" or not predicts or (on_cpu and model.same_bits):
        return options
    return replace(options, stepping=model.stepping if on_cpu else model.stepping_on_gpu)


def make_compressor(section: Section, payload: int) -> Compressor | None:
    """Return what messages of ``payload`` numbers go through."""
    if section.name == "none":
        return None
    compressor = build(section)
    if payload:
        # Refuses a k above the numbers in a message before anything is written.
        compressor.contraction(payload)
    return compressor


def make_exchange(
    exchanging: Callable[..., Exchange],
    options: Mapping[str, Any],
    federation: Federation,
    seed: int,
    stored: Mapping[str, np.ndarray],
    compressor: Compressor | None,
    privacy: PrivacyOptions,
    hostile: Attackers | None,
) -> Exchange:
    """Return the exchange of a run; collective."""
    exchange = exchanging(federation, seed, stored, compressor, **options)
    exchange.transforms = transforms_of(privacy, hostile)
    if privacy.is_asked_for:
        exchange.privacy = privacy
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


def hosting_ranks(hosts: str, threads: int, communicator: Communicator) -> np.ndarray:
    """Return the ranks that may host clients, ascending, int32. Collective."""
    ranks = np.arange(communicator.size, dtype=np.int32)
    if hosts == "ranks" or communicator.size == 1:
        return ranks
    nodes, every = communicator.nodes(), communicator.gather_object(cores_of_this_process())
    ranks_with_cores = None if every is None else first_per_core(nodes, every, threads)
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


def attacked(
    attack: Section, federation: Federation, seed: int, dataset: Dataset
) -> tuple[Attackers | None, Dataset]:
    """Return the attackers of a run, and the data set with the labels that they train on."""
    if attack.name == "none":
        return None, dataset
    hostile = attackers(attack, federation, seed)
    if not hostile.attack.changes_labels:
        return hostile, dataset
    description = dataset.description
    check_labels(hostile.attack, hostile.name, description.task, description.n_classes)
    return hostile, Poisoned(dataset, hostile)


def transforms_of(options: PrivacyOptions, hostile: Attackers | None) -> list[Transform]:
    """Return what clients do to their updates before they send them, in turn."""
    transforms: list[Transform] = []
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
            dtype=DTYPES[configuration.dtype],
            network=built,
        )
    else:
        check_autocast(configuration.local.autocast, name)
    check_kind(built, name, configuration.algorithm.name)
    # A model that does not predict reaches only methods that ask for it by a parameter of its type.
    return cast(Model, built)


def describe_model(model: Model) -> str:
    """Return the size of a model and how it is stepped, for the plan of a run."""
    buffers = f" and {model.n_buffers:,} running statistics" if model.n_buffers else ""
    frozen = model.n_frozen if isinstance(model, ModuleModel) else 0
    frozen_part = f", beside {frozen:,} that are frozen" if frozen else ""
    return f"{model.n_parameters - model.n_buffers:,} parameters{buffers}{frozen_part}"


def make_dataset(configuration: Configuration, communicator: Communicator) -> Dataset:
    """Make the data set of a run; collective. Raises ``InputError`` for wrong data."""
    n_clients = configuration.clients
    check_memory(CLIENT_BYTES * n_clients, f"clients is {n_clients}, which")
    construct: Callable[..., Dataset] = find("data", configuration.data.name)
    with enough_memory(f"the data set {configuration.data.name} with such options"):
        dataset = construct(
            n_clients, configuration.seed, communicator, **configuration.data.options
        )
    which, central = configuration.evaluation.central, None
    if which == HOLDOUT:
        central = dataset.hold_out_published()
    elif which is not None:
        central = _central_file(which, dataset, communicator)
    if ":" in configuration.data.name:
        dataset = Checked(dataset)
    check_number(dataset.description.n_clients, n_clients)
    if central is not None:
        dataset = WithCentral(dataset, central)
    elif which is not None:
        dataset = with_held_out(dataset, configuration.seed)
    fraction = configuration.evaluation.validation_fraction
    return HeldOut(dataset, fraction, configuration.seed) if fraction else dataset


def _central_file(name: str, dataset: Dataset, communicator: Communicator) -> Dataset | None:
    """Return the samples in a file, or of a program, as a central test set; collective."""
    path = Path(os.path.expanduser(name))
    try:
        if path.suffix not in OWN_DATA["federated"]:
            return of_new_samples(name, dataset, communicator)
        kind: Any = find("data", "federated")
        count = kind.count_clients({"path": str(path)}, 0)
        central = Together(kind(count, 0, communicator, path=str(path)))
    except InputError as error:
        what = "" if name.startswith(PASSED) else f" is '{name}'"
        raise InputError(f"evaluation.central{what}: {error}") from None
    check_alike(central.description, dataset.description, path)
    return central


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
    check_labels_of_data(description.task)
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
    evaluation, dtype = configuration.evaluation, DTYPES[configuration.dtype]
    if dataset is None:
        dataset = make_dataset(configuration, communicator)
    description = dataset.description
    samples, shape = description.n_samples, description.input_shape
    check_validation(description.source, description.n_val, evaluation)
    begins = stored is None
    exchanging, options = exchanging_of(configuration)
    unseen = draw_unseen(configuration.clients, evaluation.unseen_fraction, configuration.seed)
    if stored is None:
        n_training, sizes = int((~unseen).sum()), description.n_train[~unseen]
        sized = with_sizes(options, sizes) if "weights" in options else options
        with _labels_of_data(configuration, sized, ~unseen, communicator) as prepared:
            stored = exchanging.prepare(communicator, n_training, configuration.seed, prepared)
    federation = make_federation(configuration, communicator, description, unseen, stored)
    by_rank = sample_bytes_by_rank(federation, samples, shape, dtype)
    heartbeat.set_planned(by_rank[communicator.rank])
    budget = None
    if dataset.make_split is not None:
        megabytes, inclusion = configuration.storage.samples, federation.inclusion
        budget = sample_budget(megabytes, evaluation.sample, by_rank, inclusion)
    # Where there is one, samples are those of the participants of a round alone.
    at_once = by_rank if budget is None else by_rank * federation.inclusion
    check_samples(samples, shape, configuration.data.name, at_once, communicator)
    hostile, dataset = attacked(configuration.attack, federation, configuration.seed, dataset)
    name, method_name = configuration.model.name, configuration.algorithm.name
    with enough_memory(f"the model {name} with such options"):
        model = make_model(configuration, description)
    fits = not torch.cuda.is_available() or fits_gpu(configuration)
    device = choose_device(configuration.device, fits, communicator)
    check_stepping(configuration.local.stepping, configuration.local.autocast, model)
    check_model_memory(model, name, dtype)
    local = with_stepping(configuration.local, model, device)
    solver = LocalSolver(model, local, horizon, int(description.n_train.max()), device)
    algorithm = make_algorithm(configuration.algorithm, model, solver)
    check_task(description.task, configuration.data.name, algorithm, method_name)
    check_risks(model, name, algorithm, method_name)
    stay_local = solver.keeps_buffers and not evaluation.unseen_fraction
    unbiased = federation.is_unbiased
    check_statistics(model, name, configuration.compression.name, unbiased, stay_local)
    if begins:
        algorithm.inspect(dtype)
    compressor = make_compressor(configuration.compression, algorithm.payload())
    parts = federation, configuration.seed, stored, compressor, configuration.privacy, hostile
    exchange = make_exchange(exchanging, options, *parts)
    if isinstance(exchange, Server) and configuration.server_optimizer != PLAIN_MEAN:
        section = "server_optimizer"
        optimizer = make_component(section, configuration.server_optimizer, section)
        exchange.steps = [ServerStep(optimizer, algorithm.shared_buffers)]
    if isinstance(exchange, Gossip):
        exchange.spread_over(horizon)
    if device.type == "cpu":
        states = state_bytes(federation, model, algorithm, solver, dtype, exchange.shared_is_rows)
        check_states(states, model, name, solver.options.optimizer, communicator)
    check_sums(model, name, options)
    setup = Setup(
        experiment=configuration.experiment,
        method=configuration.algorithm,
        data=configuration.data,
        dataset=dataset,
        federation=federation,
        exchange=exchange,
        model=model,
        solver=solver,
        algorithm=algorithm,
        attackers=hostile,
        device=device,
        dtype=dtype,
        sample_budget=budget,
        seed=configuration.seed,
        rounds=configuration.rounds,
        horizon=horizon,
        on_divergence=configuration.on_divergence,
        evaluation=evaluation,
        checkpoint=configuration.checkpoint,
        network=configuration.network,
        compute=configuration.compute,
    )
    if begins:
        check_central(setup)
        columns_of(setup)  # which refuses scores that do not fit the data
    return setup


def make_federation(
    configuration: Configuration,
    communicator: Communicator,
    description: Description,
    unseen: np.ndarray,
    stored: Mapping[str, np.ndarray],
) -> Federation:
    """Return who is hosted where; collective."""
    hosting = hosting_ranks(configuration.hosts, configuration.threads, communicator)
    work, links = samples_of_steps(configuration, description), None
    if configuration.placement == "partitioned":
        exchanging, options = exchanging_of(configuration)
        links = exchanging.links(int((~unseen).sum()), configuration.seed, options, stored)
    if links is not None:
        owner = partitioned_owners(work, unseen, links, len(hosting), communicator)
    elif configuration.placement == "balanced":
        owner = balanced_owners(work, len(hosting))
    else:
        owner = contiguous_owners(work, len(hosting), description.n_train)
    participation = with_names(configuration.participation, description.client_names)
    if not is_drawn(participation):
        agree(communicator, lambda: check_clients(participation, len(unseen)))
    return Federation(communicator, hosting[owner], unseen, description.n_train, participation)


def sample_budget(
    megabytes: float | None, share: float, by_rank: np.ndarray, inclusion: float
) -> float | None:
    """Return the bytes of samples that a rank holds of data made client by client; None: all.

    ``by_rank`` are the bytes of all samples of each rank, so that all ranks decide alike.
    """
    if megabytes is not None:
        return megabytes * 1e6
    if share < 1 or (inclusion < 1 and by_rank.max() > AUTOMATIC):
        return AUTOMATIC
    return None
