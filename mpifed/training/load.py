"""Loads what a run has trained from its directory."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from mpifed.checkpoint import files as checkpoint
from mpifed.components.registry import Section, named
from mpifed.components.tables import MODELS
from mpifed.config.configuration import Configuration, resolve
from mpifed.data.base import Dataset
from mpifed.data.recorded import Recorded
from mpifed.errors import InputError
from mpifed.federation.clients import Clients
from mpifed.io.memory import enough_memory
from mpifed.models.base import Model
from mpifed.mpi.communicator import Alone
from mpifed.training.build import make, make_dataset
from mpifed.training.on_demand import OnDemand
from mpifed.training.trained import Trained, without_predictor


def load(run: str | Path, round: int | None = None) -> Trained:
    """Load what a run has trained, from a checkpoint in its run directory.

    One process loads all of the run, whatever algorithm, exchange and number of ranks it had.
    Models are made from the description of the data that the checkpoint holds. The data themselves
    must be at hand only where ``Trained.client`` and ``Trained.samples`` need samples, and for
    checkpoints of earlier versions, which have no description; data of ``mpifed.arrays`` must then
    be made again. A user's own algorithms and models must be importable.

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
        components are missing, or its method trains no predictor.

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
        configuration, dataset = described(meta, directory)
        configuration = replace(
            without_files(configuration), device="cpu", placement="contiguous", threads=1
        )
        stored = checkpoint.read_arrays(path)
        setup = make(configuration, Alone(), meta.horizon, stored, dataset)
    except checkpoint.Damaged:
        raise
    except InputError as error:
        raise InputError(f"run is '{directory}', which cannot be loaded: {error}") from None
    if not isinstance(setup.model, Model):
        raise InputError(without_predictor(directory, configuration))
    shards = OnDemand(setup)
    with enough_memory("the state of all clients"), torch.no_grad():
        hosted = setup.federation.hosted
        first = setup.first_state(Clients(setup.federation, shards, np.arange(len(hosted))))
        state = checkpoint.read_state(path, first, setup.exchange.shared_is_rows, hosted)
    return Trained(directory, meta.round, setup, state, shards)


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

    def made() -> Dataset:
        try:
            return make_dataset(resolve(meta.configuration), Alone())
        except InputError as error:
            raise InputError(f"the samples of '{directory}' cannot be loaded: {error}") from None

    # The section is not looked up: the data may be gone, and with them the class that reads them.
    name, options = named(meta.configuration.get("data"), "data")
    configuration = resolve({**meta.configuration, "data": Section(name, options)})
    if meta.data.n_clients != configuration.clients:
        raise InputError(f"it describes {meta.data.n_clients} clients, not {configuration.clients}")
    return configuration, Recorded(meta.data, made)


def without_files(configuration: Configuration) -> Configuration:
    """Return the configuration without a file of first parameters: the checkpoint has them all.

    Parameters
    ----------
    configuration : Configuration
        The configuration of the run.
    """
    model = configuration.model
    if model.name not in MODELS or not model.options.get("weights"):
        return configuration
    drawn = {**model.options, "weights": None, "new_classifier": False}
    return replace(configuration, model=Section(model.name, drawn))


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
