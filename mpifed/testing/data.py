"""Data sets as a run has them, without a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mpifed.components.registry import is_component, name_of
from mpifed.config.configuration import with_all_options
from mpifed.config.experiments import with_overrides
from mpifed.data.base import Dataset
from mpifed.mpi.communicator import Alone, Communicator
from mpifed.training.build import make_dataset


def load_dataset(
    data: Any,
    clients: int | str = 5,
    *,
    seed: int = 0,
    communicator: Communicator | None = None,
    **options: Any,
) -> Dataset:
    """Make the data set of a run with these options, in this process and with no run directory.

    Parameters
    ----------
    data : str, type or mapping
        What ``mpifed.run(data=...)`` takes: a name, a file, a class, or a mapping with ``name``
        and the options of the data set; or what ``mpifed.arrays`` returns.
    clients : int or str
        The number of clients, or ``"data"``: as many as the data have.
    seed : int
        The seed of the run.
    communicator : Communicator, optional
        The ranks that make it together, which ``played`` or ``world`` return; this process alone by
        default.
    **options
        Further keys of the configuration, as ``evaluation={"validation_fraction": 0.1}``.

    Returns
    -------
    mpifed.dataset.Dataset
        Its ``description`` is what every rank knows, and its ``load`` returns the samples of some
        clients.

    Raises
    ------
    InputError
        If an option or a file is wrong.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> dataset = load_dataset({"name": "synthetic", "n_test": 10, "dimension": 6}, clients=3)
    >>> dataset.description.n_test
    array([10, 10, 10])
    >>> dataset.load(np.array([1]), torch.float32).test.x.shape
    torch.Size([10, 6])
    """
    keys = {**options, "clients": clients, "seed": seed, "data": with_names(data, "data")}
    configuration = with_all_options(with_overrides({}, keys))
    return make_dataset(configuration, communicator or Alone())


def with_names(value: Any, key: str) -> Any:
    """Return a part of a configuration in which classes and functions have become their names."""
    if is_component(value):
        return name_of(value, key)
    if isinstance(value, Mapping):
        return {name: with_names(item, f"{key}.{name}") for name, item in value.items()}
    return value
