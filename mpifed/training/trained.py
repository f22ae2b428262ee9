"""What a run has trained, as torch modules: the shared models and every client's predictor."""

from __future__ import annotations

import io
import operator
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from mpifed import state as states
from mpifed.checkpoint import files as checkpoint
from mpifed.components.registry import Section, named
from mpifed.components.tables import MODELS
from mpifed.config.configuration import Configuration, resolve, with_all_options
from mpifed.data.base import Dataset, Description, Fresh, Shards, Split, SplitName
from mpifed.data.central import HOLDOUT
from mpifed.data.containers import is_table
from mpifed.errors import InputError, closest, one_line
from mpifed.federation.clients import Clients, Draws
from mpifed.federation.hosted import LazyShards, LoadedShards
from mpifed.io.atomic import replace_bytes
from mpifed.io.memory import enough_memory
from mpifed.io.weights import sealed
from mpifed.method.checks import checked_predictor
from mpifed.method.predictor import Predictor
from mpifed.models.base import Model
from mpifed.models.loss import Loss
from mpifed.mpi.communicator import Alone
from mpifed.results.configurations import read_stored
from mpifed.results.results import larger_is_better, read
from mpifed.state import RunState
from mpifed.training.build import make, make_dataset
from mpifed.training.central import shared_models
from mpifed.training.prediction import outputs_of, predictions_of, probabilities_of
from mpifed.training.setup import Setup
from topologies.errors import excerpt


def of_client(shards: Shards, row: int) -> Shards:
    """Return the shards of the ``row``-th of the clients alone."""
    train, val, test = (split.of_client(row) for split in (shards.train, shards.val, shards.test))
    return Shards(shards.client_ids[row : row + 1], train, val, test, shards.fresh)


class Mixture(nn.Module):
    """The predictor sum_m pi_m h_m (Marfoq et al. 2021, eq. 5) of M models.

    Its outputs are log sum_m pi_m softmax(h_m) for classes at every position, the logit of
    sum_m pi_m sigmoid(h_m) for two classes and for tags, and sum_m pi_m h_m for regressions.

    Parameters
    ----------
    components : sequence of torch.nn.Module
        The M models, whose outputs have the same shape.
    weights : Tensor
        pi, floating-point (M,).
    loss : Loss
        The loss of the task; it says what outputs mean.

    Examples
    --------
    >>> from mpifed.models.losses import CROSS_ENTROPY
    >>> fair = Mixture([nn.Identity(), nn.Identity()], torch.tensor([0.5, 0.5]), CROSS_ENTROPY)
    >>> fair(torch.zeros(1, 4)).exp()
    tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """

    weights: Tensor

    def __init__(self, components: Sequence[nn.Module], weights: Tensor, loss: Loss) -> None:
        super().__init__()
        self.components = nn.ModuleList(components)
        self.register_buffer("weights", weights.detach().clone())
        self.mixed = loss.mixed

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of a batch: (B, *input_shape) to (B, *output_shape)."""
        outputs = torch.stack([component(x) for component in self.components])
        return self.mixed(outputs, self.weights)


class GatedMixture(nn.Module):
    """The predictor sum_m pi_m(x) h_m(x) of M models; its outputs are those of ``Mixture``.

    Parameters
    ----------
    components : sequence of torch.nn.Module
        The M models, whose outputs have the same shape.
    gate : callable
        pi, (B, *input_shape) to (M, B).
    loss : Loss
        The loss of the task; it says what outputs mean.
    """

    def __init__(
        self, components: Sequence[nn.Module], gate: Callable[[Tensor], Tensor], loss: Loss
    ) -> None:
        super().__init__()
        self.components = nn.ModuleList(components)
        self.gate, self.mixed = gate, loss.mixed

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of a batch: (B, *input_shape) to (B, *output_shape)."""
        outputs = torch.stack([component(x) for component in self.components])
        return self.mixed(outputs, self.gate(x))


@dataclass(frozen=True)
class Trained:
    """The models in a checkpoint of a run, on the CPU, in the floating-point type of the run.

    Modules are in evaluation mode, and their parameters are copies. ``load`` makes this.

    Attributes
    ----------
    directory : Path
        The run directory.
    round : int
        The round after which the checkpoint was written.
    """

    directory: Path
    round: int
    _setup: Setup = field(repr=False)
    _state: RunState = field(repr=False)
    _shards: Shards = field(repr=False)

    @property
    def n_clients(self) -> int:
        """The number of clients, unseen ones included."""
        return self._setup.federation.n_clients

    @property
    def client_names(self) -> tuple[str, ...]:
        """The names of the clients, in their order; empty where the data have none."""
        return self._setup.dataset.description.client_names

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the labels, in their order; empty where the data have none."""
        return self._setup.dataset.description.class_names

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the columns of ``encode``, as ``age`` and ``sex_f``; empty for arrays."""
        preprocessing = self._setup.dataset.description.preprocessing
        return () if preprocessing is None else preprocessing.feature_names

    @cached_property
    def components(self) -> list[torch.nn.Module]:
        """The models that all clients share; empty for methods that share none.

        FedEM has M of them, other methods one: the global model (FedAvg, FedAvg+), the model from
        which clients adapt (MAML, Reptile), x of FLIX. Under gossip each is the mean over training
        clients. Each maps a batch (B, *input_shape) to outputs (B, *output_shape): logits of
        classes and tags, one logit for two classes, numbers for regressions.
        """
        if self._shared is None:
            return []
        return [self._setup.model.module(row) for row in self._shared]

    def client(self, client: int | str) -> torch.nn.Module:
        """Return what a client deploys at the end of the round, as it was scored in ``clients.h5``.

        Where the method fits a predictor to training samples (FedAvg+, kNN-Per, MAML, Reptile,
        unseen clients of FedEM), they are loaded and the client's predictor is computed again. For
        other methods no sample is loaded.

        Parameters
        ----------
        client : int or str
            Number of the client, from 0, or its name. Unseen clients adapt as in the run.

        Returns
        -------
        torch.nn.Module
            Maps a batch (B, *input_shape) to outputs (B, *output_shape). Where one model is
            deployed, it is that model, and its outputs are as those of ``components``. Where M are
            mixed, it is a ``mpifed.training.trained.Mixture``, or a ``GatedMixture`` where their
            weights pi depend on the input. Its outputs are log-probabilities
            log sum_m pi_m p_m for classes, one logit of sum_m pi_m p_m for two classes and for each
            tag, and sum_m pi_m h_m for regressions. Losses of torch on logits apply to all of them.

        Raises
        ------
        InputError
            If there is no such client, or its samples cannot be loaded.
        """
        number = self._number(client)
        predictor = self._deployed([number], unseen=bool(self._setup.federation.unseen[number]))
        if predictor.parameters is None:
            raise InputError(without_predictor(self.directory, self._setup.method.name))
        rows, weights = predictor.parameters_of(0), predictor.mixture_of(0)
        modules = [self._setup.model.module(row) for row in rows]
        if predictor.local_predictor is not None:
            modules.append(predictor.local_predictor(0))
        if weights is None or len(modules) == 1:
            return modules[0]
        if predictor.gate is not None:
            return GatedMixture(modules, partial(predictor.gate, 0), self._setup.model.loss).eval()
        return Mixture(modules, weights, self._setup.model.loss).eval()

    def predict(
        self, samples: Any, client: int | str | None = None, *, probabilities: bool = False
    ) -> Any:
        """Return what a trained model says of new samples.

        Parameters
        ----------
        samples : path, pandas.DataFrame, mapping or array_like
            As for ``encode``.
        client : int or str, optional
            Whose predictor is asked: a number, from 0, or a name. None is the shared model.
        probabilities : bool
            Whether to return the probability of each class or tag.

        Returns
        -------
        ndarray or pandas.DataFrame
            The likeliest class of each sample by its name, or by its number where classes have
            none, (samples,), at each position for sequences; which tags it has, bool (samples,
            tags); or the numbers of a regression, (samples,) or (samples, targets). Probabilities
            are (samples, classes), in the order of ``class_names``, or (samples, tags); those of a
            DataFrame are one, with its index and the names of classes as columns.

        Raises
        ------
        InputError
            As for ``encode`` and ``client``; if no client is named where clients share no model or
            mix several; or if probabilities of a regression are asked for.
        """
        description = self._setup.dataset.description
        if probabilities and description.task == "regression":
            raise InputError("probabilities is true, but the run is a regression; allowed: false")
        module = self._only_shared() if client is None else self.client(client)
        outputs = outputs_of(module, torch.from_numpy(self.encode(samples)))
        if not probabilities:
            return predictions_of(outputs, description)
        values = probabilities_of(outputs, description)
        if not is_table(samples) or values.ndim != 2:
            return values
        import pandas

        return pandas.DataFrame(values, samples.index, list(description.class_names) or None)

    def encode(self, samples: Any) -> np.ndarray:
        """Return new samples as the numbers that models see.

        A user's own data are standardised, and texts become columns of 0 and 1, with the means,
        deviations and texts of the run. Of other data sets ``samples`` are inputs already, as those
        of ``Trained.samples`` are.

        Parameters
        ----------
        samples : path, pandas.DataFrame, mapping or array_like
            A CSV or parquet file or a table, which have the run's columns of inputs, in any order
            and among others; a mapping of them to values of one sample; or an array, as
            ``mpifed.arrays`` got it, or with the columns of inputs in the order of the file.

        Returns
        -------
        ndarray
            In the floating-point type of the run, (samples, *input_shape); columns of a table are
            those of ``feature_names``.

        Raises
        ------
        InputError
            If a column is missing, a cell has no value (unless the run's ``data.missing`` is mean),
            or a text that the run does not have; or if an earlier mpifed wrote the run.
        """
        description = self._setup.dataset.description
        if description.preprocessing is None:
            raise InputError(
                f"run is '{self.directory}', of an earlier mpifed, which did not keep how its "
                "samples became inputs: train it again, or give inputs to client(i) or components"
            )
        encoded = description.preprocessing.encode(samples, description.input_shape)
        return encoded.astype(str(self._setup.dtype).removeprefix("torch."))

    def samples(self, client: int | str) -> Shards:
        """Return the samples of a client, as the run had them.

        All clients' samples are loaded at the first call.

        Parameters
        ----------
        client : int or str
            Number of the client, from 0, or its name.

        Returns
        -------
        Shards
            Its ``train``, ``val`` and ``test`` have inputs ``x`` and targets ``y``.

        Raises
        ------
        InputError
            If there is no such client, or its samples cannot be loaded.
        """
        return of_client(self._shards, self._number(client))

    def state_dict(self, component: int = 0) -> dict[str, Tensor]:
        """Return the state dict of a shared model.

        Its names are those of the module itself. ``linear`` and ``mlp`` are sequences of layers
        that begin with ``torch.nn.Flatten``.

        Parameters
        ----------
        component : int
            Which of ``components``.

        Returns
        -------
        dict of str to Tensor
            Contiguous copies.

        Raises
        ------
        InputError
            If there is no such component, or the method shares no model.
        """
        if self._shared is None:
            raise InputError(
                f"algorithm '{self._setup.method.name}' has no model that all "
                "clients share; client(i).state_dict() is that of client i"
            )
        row = self._shared[_index(component, len(self._shared), "component")]
        tensors = self._setup.model.module(row).state_dict()
        return {name: tensor.contiguous() for name, tensor in tensors.items()}

    def save(self, path: str | Path, component: int = 0) -> None:
        """Write ``state_dict(component)`` with ``torch.save``; a file there is replaced.

        Parameters
        ----------
        path : str or Path
            The file, which ``torch.load(path, weights_only=True)`` reads. Its digest, in the
            comment of the archive, is checked where the file becomes ``model.weights``.
        component : int
            Which of ``components``.

        Raises
        ------
        InputError
            As for ``state_dict``, or if the file cannot be written.
        """
        content = io.BytesIO()
        torch.save(self.state_dict(component), content)
        try:
            replace_bytes(Path(path), sealed(content.getvalue()))
        except OSError as error:
            raise InputError(
                f"path is '{path}', which cannot be written: {error.strerror}"
            ) from None

    def _only_shared(self) -> torch.nn.Module:
        """The model that all clients share, where there is one."""
        if len(self.components) == 1:
            return self.components[0]
        count = f"{len(self.components)} models, which each mixes" if self.components else "none"
        whose = f"client={self.client_names[0]!r}" if self.client_names else "client=0"
        raise InputError(
            f"client is None, the model that all clients share, but with algorithm "
            f"'{self._setup.method.name}' they share {count}; predict(samples, {whose}) says whose "
            "model is asked"
        )

    def _number(self, client: int | str) -> int:
        if isinstance(client, str):
            if client not in self.client_names:
                names = one_line(closest(client, self.client_names), 400)
                raise InputError(
                    f"client is {excerpt(client)}, which is no name of a client; {names}"
                )
            return self.client_names.index(client)
        return _index(client, self.n_clients, "client")

    @cached_property
    def _shared(self) -> Tensor | None:
        """The models that all clients share, (M, P), or None."""
        return shared_models(self._setup, self._state.algorithm, lambda: self._deployed([]))

    def _deployed(self, numbers: list[int], unseen: bool = False) -> Predictor:
        """Return what these clients predict with, all of them unseen or none."""
        setup, state, rows = self._setup, self._state.algorithm, np.array(numbers, np.int64)
        clients = Clients(setup.federation, self._shards, rows)
        draws = Draws(setup.seed, self.round)
        with torch.no_grad():
            if unseen:
                predictor = setup.algorithm.adapt(state, clients, setup.exchange, draws)
            else:
                is_rows = setup.exchange.shared_is_rows
                of_clients = states.select(state, torch.from_numpy(rows), is_rows)
                predictor = setup.algorithm.deploy(of_clients, clients, draws)
        method, counts = "adapt" if unseen else "deploy", (len(rows), setup.model.n_parameters)
        return checked_predictor(setup.algorithm, method, predictor, *counts)


def _index(position: int, count: int, name: str) -> int:
    """Return ``position`` as an index below ``count``; raise ``InputError`` if it is none."""
    try:
        number = operator.index(position)
    except TypeError:
        number = -1
    if not 0 <= number < count:
        raise InputError(f"{name} is {position!r}; allowed: 0 to {count - 1}")
    return number


def without_predictor(directory: Path, method: str) -> str:
    """Return why there is nothing to load of a run whose method predicts nothing."""
    return (
        f"run is '{directory}', whose algorithm '{method}' trains no "
        "predictor; what it learnt is in clients.h5"
    )


def check_path(name: str, value: object) -> None:
    """Check that what a program passes as a path is one."""
    if not isinstance(value, (str, os.PathLike)) or "\0" in str(value):
        raise InputError(f"{name} is {excerpt(value)}; it must be a path, a str or a Path")


def load(run: str | os.PathLike[str], round: int | Literal["best"] | None = None) -> Trained:
    """Load what a run has trained, from a checkpoint in its run directory.

    One process loads all of the run, whatever algorithm, exchange and number of ranks it had.
    Models are made from the description of the data that the checkpoint holds. The data themselves
    must be at hand only where ``Trained.client`` and ``Trained.samples`` need samples, and for
    checkpoints of earlier versions, which have no description; data of ``mpifed.arrays`` must then
    be made again. A user's own algorithms and models must be importable.

    Parameters
    ----------
    run : str, Path or Result
        The run directory, or what ``mpifed.run`` returned.
    round : int or 'best', optional
        The round whose checkpoint is loaded; 'best' is that of ``checkpoint.best``. None is the
        newest intact one, with a warning for each damaged one that is newer.

    Returns
    -------
    Trained
        The shared models, and every client's predictor.

    Raises
    ------
    InputError
        If the directory holds no such run or checkpoint, it was written by another version, its
        components are missing, or its method trains no predictor.

    Examples
    --------
    >>> import tempfile
    >>> import mpifed
    >>> options = {"clients": 3, "rounds": 2, "data.n_test": 20, "data.dimension": 10}
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     run = mpifed.run("synthetic-fedem", output=f"{directory}/run", **options)
    ...     trained = mpifed.load(run)
    >>> trained.round, len(trained.components), list(trained.state_dict())
    (2, 3, ['1.weight', '1.bias'])
    >>> trained.client(0)(torch.zeros(5, 10)).shape  # a logit for each of five samples
    torch.Size([5, 1])
    """
    check_path("run", run)
    directory = Path(os.fspath(run))
    path, meta = _checkpoint(directory, round)
    try:
        setup = stored_setup(directory, path, meta)
    except checkpoint.Damaged:
        raise
    except InputError as error:
        raise InputError(f"run is '{directory}', which cannot be loaded: {error}") from None
    if not isinstance(setup.model, Model):
        raise InputError(without_predictor(directory, setup.method.name))
    shards = LazyShards(setup.dataset, setup.device, setup.federation.hosted, _loaded_once(setup))
    with enough_memory("the state of all clients"), torch.no_grad():
        hosted = setup.federation.hosted
        first = setup.first_state(LoadedShards(setup.federation, shards))
        state = checkpoint.read_state(path, first, setup.exchange.shared_is_rows, hosted)
    return Trained(directory, meta.round, setup, state, shards)


def _loaded_once(setup: Setup) -> Callable[[SplitName], Split]:
    """Return what loads the samples of all clients at its first call."""

    @cache
    def loaded() -> Shards:
        with enough_memory("the samples of all clients"):
            return setup.load()

    return lambda name: cast(Split, getattr(loaded(), name))


def stored_setup(directory: Path, path: Path, meta: checkpoint.Meta) -> Setup:
    """Return the objects of the run of a checkpoint, for one process."""
    configuration, dataset = described(meta, directory)
    configuration = replace(
        without_files(configuration), device="cpu", placement="contiguous", threads=1
    )
    return make(configuration, Alone(), meta.horizon, checkpoint.read_arrays(path), dataset)


def described(meta: checkpoint.Meta, directory: Path) -> tuple[Configuration, Dataset | None]:
    """Return the run's configuration, and its data set where the checkpoint describes it.

    Parameters
    ----------
    meta : Meta
        What the checkpoint records besides the state.
    directory : Path
        The run directory.
    """
    if meta.data is None:
        return resolve(meta.configuration), None

    def on_demand() -> Dataset:
        try:
            configuration = resolve(meta.configuration)
            if configuration.evaluation.central != HOLDOUT:  # it has no client's samples
                evaluation = replace(configuration.evaluation, central=None)
                configuration = replace(configuration, evaluation=evaluation)
            return make_dataset(configuration, Alone())
        except InputError as error:
            raise InputError(f"the samples of '{directory}' cannot be loaded: {error}") from None

    # The section is not looked up: the data may be gone, and with them the class that reads them.
    name, options = named(meta.configuration.get("data"), "data")
    configuration = with_all_options({**meta.configuration, "data": Section(name, options)})
    if meta.data.n_clients != configuration.clients:
        raise InputError(f"it describes {meta.data.n_clients} clients, not {configuration.clients}")
    return configuration, LazyDataset(meta.data, on_demand)


class LazyDataset(Dataset):
    """A data set of which the description is known, made only where samples are needed."""

    def __init__(self, description: Description, make: Callable[[], Dataset]) -> None:
        self.description = description
        self._make = make

    @cached_property
    def _dataset(self) -> Dataset:
        """The data set itself; raises ``InputError`` where it is not at hand, or is another one."""
        dataset = self._make()
        for name in ("input_shape", "n_classes", "task", "n_train", "n_val", "n_test"):
            now, then = getattr(dataset.description, name), getattr(self.description, name)
            if not np.array_equal(now, then):
                raise InputError(
                    f"the data '{dataset.description.source}' are not those of the run: they "
                    f"differ in {name}"
                )
        return dataset

    @property
    def fresh(self) -> Fresh | None:  # type: ignore[override]
        """Draws new samples where the source can."""
        return self._dataset.fresh

    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """Return the shards of ``client_ids``. Collective where the data set's own is."""
        return self._dataset.load(client_ids, dtype)


def without_files(configuration: Configuration) -> Configuration:
    """Return the configuration without a file of first parameters, where the checkpoint has all.

    It has no weights that are frozen below an adapter.

    Parameters
    ----------
    configuration : Configuration
        The configuration of the run.
    """
    model = configuration.model
    options = model.options
    if model.name not in MODELS or not options.get("weights") or options.get("adapter"):
        return configuration
    drawn = {**options, "weights": None, "new_classifier": False}
    return replace(configuration, model=Section(model.name, drawn))


def _best_round(directory: Path, stored: Sequence[int]) -> int:
    """Return the best of the rounds that are stored, of a run with ``checkpoint.best``."""
    column = (read_stored(directory / "config.yaml").get("checkpoint") or {}).get("best")
    if column is None:
        raise InputError(
            f"round is 'best', but '{directory}' is a run without checkpoint.best; with "
            "checkpoint.best=validation_accuracy, or another column of metrics.csv, a run stores it"
        )
    metrics = read(directory).metrics
    rounds, values = metrics["round"].astype(np.int64), metrics[column]
    if not np.isfinite(values).any():
        raise InputError(f"round is 'best', but '{directory}' has no value of {column}")
    worth = np.where(np.isnan(values), -np.inf, values if larger_is_better(column) else -values)
    order = rounds[np.argsort(-worth, kind="stable")]
    best = next((int(number) for number in order if number in stored), stored[0])
    if best != order[0]:
        warnings.warn(
            f"round {order[0]} has the best {column}, but is not stored; round {best} is loaded",
            stacklevel=4,
        )
    return best


def _checkpoint(
    directory: Path, round: int | Literal["best"] | None
) -> tuple[Path, checkpoint.Meta]:
    """Return the checkpoint of a round, or the newest intact one."""
    paths = checkpoint.checkpoints_in(directory / "checkpoints")
    if not paths:
        raise InputError(f"run is '{directory}', which holds no checkpoint of a run")
    if round is not None:
        rounds = [checkpoint.round_of(path) for path in paths]
        if round == "best":
            round = _best_round(directory, rounds)
        if round not in rounds:
            there = ", ".join(str(number) for number in sorted(rounds))
            raise InputError(f"round is {round!r}, but '{directory}' holds checkpoints of: {there}")
        path = paths[rounds.index(round)]
        return path, checkpoint.read_meta(path)
    newest, damaged = checkpoint.newest(directory)
    if newest is None:
        raise InputError(
            f"run is '{directory}', which holds no intact checkpoint: {'; '.join(damaged)}"
        )
    for reason in damaged:
        warnings.warn(f"passed over: {reason}", stacklevel=3)
    return newest
