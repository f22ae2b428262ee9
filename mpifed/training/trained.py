"""What a run has trained, as torch modules: the shared models and every client's predictor."""

from __future__ import annotations

import operator
import os
import warnings
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mpifed import state as states
from mpifed.algorithms.base import Predictor, check_predictor
from mpifed.checkpoint import files as checkpoint
from mpifed.config.configuration import resolve
from mpifed.data.base import Shards
from mpifed.errors import InputError
from mpifed.federation.clients import Clients, Draws
from mpifed.memory import enough_memory
from mpifed.models.mixture import Mixture
from mpifed.mpi.communicator import Alone
from mpifed.replacing import replacing
from mpifed.state import RunState
from mpifed.training.build import Setup, make
from mpifed.training.on_demand import OnDemand, of_client, of_nobody

__all__ = ["Trained", "load"]


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
    _shared: Tensor | None = field(repr=False)
    _shards: Shards = field(repr=False)

    @property
    def n_clients(self) -> int:
        """The number of clients, unseen ones included."""
        return self._setup.federation.n_clients

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

    def client(self, client: int) -> torch.nn.Module:
        """Return what a client deploys at the end of the round, as it was scored in ``clients.h5``.

        Where the method fits a predictor to training samples (FedAvg+, MAML, Reptile, unseen
        clients of FedEM), they are loaded and the client's predictor is computed again. For other
        methods no sample is loaded.

        Parameters
        ----------
        client : int
            Number of the client, from 0. Unseen clients adapt as in the run.

        Returns
        -------
        torch.nn.Module
            Maps a batch (B, *input_shape) to outputs (B, *output_shape). Where one model is
            deployed, it is that model, and its outputs are as those of ``components``. Where M are
            mixed, it is a ``mpifed.models.mixture.Mixture``. Its outputs are log-probabilities
            log sum_m pi_m p_m for classes, one logit of sum_m pi_m p_m for two classes and for each
            tag, and sum_m pi_m h_m for regressions. Losses of torch on logits apply to all of them.

        Raises
        ------
        InputError
            If there is no such client, or its samples cannot be loaded.
        """
        predictor = self._deployed(self._number(client))
        rows, weights = predictor.parameters_of(0), predictor.mixture_of(0)
        modules = [self._setup.model.module(row) for row in rows]
        if weights is None or len(modules) == 1:
            return modules[0]
        return Mixture(modules, weights, self._setup.model.loss).eval()

    def samples(self, client: int) -> Shards:
        """Return the samples of a client, as the run had them.

        All clients' samples are loaded at the first call.

        Parameters
        ----------
        client : int
            Number of the client, from 0.

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
                f"algorithm '{self._setup.configuration.algorithm.name}' has no model that all "
                "clients share; client(i).state_dict() is that of client i"
            )
        row = self._shared[_index(component, len(self._shared), "component")]
        found = self._setup.model.module(row).state_dict()
        return {name: tensor.contiguous() for name, tensor in found.items()}

    def save(self, path: str | Path, component: int = 0) -> None:
        """Write ``state_dict(component)`` with ``torch.save``; a file there is replaced.

        Parameters
        ----------
        path : str or Path
            The file, which ``torch.load(path, weights_only=True)`` reads.
        component : int
            Which of ``components``.

        Raises
        ------
        InputError
            As for ``state_dict``, or if the file cannot be written.
        """
        found = self.state_dict(component)
        try:
            with replacing(Path(path)) as partial:
                torch.save(found, partial)
        except OSError as error:
            raise InputError(
                f"path is '{path}', which cannot be written: {error.strerror}"
            ) from None

    def _number(self, client: int) -> int:
        return _index(client, self.n_clients, "client")

    def _deployed(self, client: int) -> Predictor:
        setup, state, rows = self._setup, self._state.algorithm, np.array([client])
        clients = Clients(setup.federation, self._shards, rows)
        draws = Draws(setup.configuration.seed, self.round)
        with torch.no_grad():
            if setup.federation.unseen[client]:
                found = setup.algorithm.adapt(state, clients, setup.exchange, draws)
            else:
                is_rows = setup.exchange.shared_is_rows
                own = states.select(state, torch.from_numpy(rows), is_rows)
                found = setup.algorithm.deploy(own, clients, draws)
        check_predictor(found, 1, setup.model.n_parameters)
        return found


def _index(given: int, count: int, name: str) -> int:
    try:
        number = operator.index(given)
    except TypeError:
        number = -1
    if not 0 <= number < count:
        raise InputError(f"{name} is {given!r}; allowed: 0 to {count - 1}")
    return number


def load(run: str | Path, round: int | None = None) -> Trained:
    """Load what a run has trained, from a checkpoint in its run directory.

    One process loads all of the run, whatever algorithm, exchange and number of ranks it had. The
    data set must be at hand, since the model is made from its description; samples are loaded only
    where ``Trained.client`` and ``Trained.samples`` need them. A user's own components must be
    importable.

    Parameters
    ----------
    run : str or Path
        The run directory.
    round : int, optional
        The round whose checkpoint is loaded. None is the newest intact one, with a warning for each
        damaged one that is newer.

    Returns
    -------
    Trained
        The shared models, and every client's predictor.

    Raises
    ------
    InputError
        If the directory holds no such run or checkpoint, it was written by another version, its
        data set or components are missing, or its method trains no predictor.

    Examples
    --------
    >>> import tempfile
    >>> import mpifed
    >>> options = {"clients": 3, "rounds": 2, "data.n_test": 20, "data.dimension": 10}
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     run = mpifed.run("synthetic-fedem", output=f"{directory}/run", **options)
    ...     trained = mpifed.load(run.directory)
    >>> trained.round, len(trained.components), list(trained.state_dict())
    (2, 3, ['1.weight', '1.bias'])
    >>> trained.client(0)(torch.zeros(5, 10)).shape  # a logit for each of five samples
    torch.Size([5, 1])
    """
    directory = Path(os.fspath(run))
    path, meta = _checkpoint(directory, round)
    try:
        configuration = replace(
            resolve(meta.configuration), device="cpu", placement="contiguous", threads=1
        )
        setup = make(configuration, Alone(), meta.horizon, checkpoint.read_arrays(path))
    except checkpoint.Damaged:
        raise
    except InputError as error:
        raise InputError(f"run is '{directory}', which cannot be loaded: {error}") from None
    shards = OnDemand(setup)
    with enough_memory("the state of all clients"), torch.no_grad():
        hosted = setup.federation.hosted
        first = setup.first_state(Clients(setup.federation, shards, np.arange(len(hosted))))
        state = checkpoint.read_state(path, first, setup.exchange.shared_is_rows, hosted)
        shared = _shared_models(setup, state, directory, meta.round)
    return Trained(directory, meta.round, setup, state, shared, shards)


def _checkpoint(directory: Path, round: int | None) -> tuple[Path, checkpoint.Meta]:
    """Return the checkpoint of a round, or the newest intact one."""
    if not directory.is_dir():
        what = "a file" if directory.exists() else "missing"
        raise InputError(f"run is '{directory}', which is {what}; it must be a run directory")
    paths = checkpoint.listed(directory / "checkpoints")
    if not paths:
        raise InputError(f"run is '{directory}', which holds no checkpoint of a run")
    if round is not None:
        rounds = [checkpoint.round_of(path) for path in paths]
        if round not in rounds:
            there = ", ".join(str(number) for number in sorted(rounds))
            raise InputError(f"round is {round!r}, but '{directory}' holds checkpoints of: {there}")
        path = paths[rounds.index(round)]
        return path, checkpoint.read_meta(path)
    found, damaged = checkpoint.newest(directory)
    if found is None:
        raise InputError(
            f"run is '{directory}', which holds no intact checkpoint: {'; '.join(damaged)}"
        )
    for reason in damaged:
        warnings.warn(f"passed over: {reason}", stacklevel=3)
    return found


def _shared_models(setup: Setup, state: RunState, directory: Path, round: int) -> Tensor | None:
    """Return the models that all clients share, (M, P), or None.

    They are the first models of the state that the exchange averages, or else what all clients
    deploy alike.
    """
    nobody = Clients(setup.federation, of_nobody(setup), np.arange(0))
    is_rows, exchange = setup.exchange.shared_is_rows, setup.exchange
    none = states.select(state.algorithm, torch.arange(0), is_rows)
    deployed = setup.algorithm.deploy(none, nobody, Draws(setup.configuration.seed, round))
    if deployed.parameters is None:
        raise InputError(
            f"run is '{directory}', whose algorithm '{setup.configuration.algorithm.name}' trains "
            "no predictor; what it learnt is in clients.h5"
        )
    for models in states.shared_tensors(state.algorithm):
        if models.dim() == 2 + is_rows and models.shape[-1] == setup.model.n_parameters:
            return exchange.mean(models)
    return deployed.parameters if deployed.parameters.dim() == 2 else None
