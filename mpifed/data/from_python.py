"""Arrays and torch data sets that a Python program hands to ``mpifed.run``.

A configuration cannot hold them. It holds a digest of what they contain, under which the process
that made them keeps them for as long as somebody refers to them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from mpifed.data.partitioned import PooledDataset
from mpifed.data.partitions import Choose, GroupedName, Parts
from mpifed.data.tables import (
    Columns,
    Divisor,
    OwnSamples,
    OwnTask,
    count_sources,
    reader,
    with_partition,
)
from mpifed.errors import InputError, one_line
from mpifed.mpi.communicator import Communicator

# Other types of floating-point tensors become float32, which holds all their values.
NUMPY_HAS = (torch.float16, torch.float32, torch.float64)

PREFIX = "data is mpifed.arrays(...), where"

# The arrays of this process, by digest.
_ARRAYS: WeakValueDictionary[str, Columns] = WeakValueDictionary()


def array_of(values: Any, what: str) -> np.ndarray:
    """Return numbers or texts of the argument ``what`` as an array; ``InputError`` for others."""
    try:
        if isinstance(values, torch.Tensor):
            if values.is_floating_point() and values.dtype not in NUMPY_HAS:
                values = values.float()
            return np.asarray(values.detach().cpu().numpy())
        if np.ma.is_masked(values):
            raise TypeError("it has masked values")
        array = np.asarray(values)
        if array.dtype.kind == "O":  # as pandas' columns are
            texts = {isinstance(each, str) for each in array.reshape(-1).tolist()}
            array = np.array(array.tolist()) if len(texts) == 1 else array
        if array.dtype.kind not in "biufU":
            raise TypeError(
                f"it is {array.dtype} of shape {array.shape}, a {type(values).__name__}"
            )
    except (TypeError, ValueError, RuntimeError) as error:  # of numpy, or of torch
        raise InputError(
            f"{PREFIX} {what} is no array of numbers or texts: {one_line(str(error), 200)}"
        ) from None
    return array


def is_dataset(x: Any) -> bool:
    """Return whether ``x`` is a torch data set, or a list of pairs, which serves as one."""
    if isinstance(x, (list, tuple)) and x and isinstance(x[0], tuple):
        return len(x[0]) == 2 and np.ndim(x[0][0]) > 0
    return isinstance(x, Dataset)


def pairs_of(dataset: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return all inputs and all targets of a torch data set, read once from first to last."""
    pairs = (dataset[number] for number in range(len(dataset)))
    inputs, targets = zip(*((array_of(x, "x"), array_of(y, "y")) for x, y in pairs), strict=True)
    return np.stack(inputs), np.stack(targets)


def check_section(data: Any) -> None:
    """Raise ``InputError`` if the section ``data`` of a run is samples themselves."""
    values = data.values() if isinstance(data, Mapping) else data
    values = values if isinstance(data, (Mapping, list, tuple)) else [data]
    if any(isinstance(each, (Dataset, DataLoader)) or getattr(each, "ndim", 0) for each in values):
        raise InputError("samples from Python are passed as data=mpifed.arrays(x, y)")


class ArraysSection(dict[str, Any]):
    """The section ``data`` of a configuration, with the arrays that it stands for."""

    columns: Columns


def arrays(
    x: Any, y: Any = None, *, clients: Any = None, is_test: Any = None, **options: Any
) -> ArraysSection:
    """Return arrays, or a torch data set, as the section ``data`` of a run.

    Under MPI rank 0 deals them; other ranks must pass the same arrays, or none at all.

    Parameters
    ----------
    x : array_like or torch.utils.data.Dataset
        Inputs, numbers (samples, ...); or a torch data set with a length, or a list, of pairs
        (x, y).
    y : array_like, optional
        Targets. Whole numbers of any type or texts (samples,) are labels, 0 and 1 (samples, tags)
        tags, other numbers (samples,) or (samples, targets) are to be regressed on. ``task`` says
        otherwise, and what one-hot rows are.
    clients : array_like, optional
        Whose each sample is, whole numbers or texts (samples,). Every source is a client, unless
        ``partition`` says otherwise. Without it samples are dealt at random.
    is_test : array_like, optional
        True for the samples that clients test on, (samples,), unless ``split`` says otherwise.
    **options
        Options of the data set ``arrays``, as ``partition``, ``split``, ``divisor`` or ``task``.

    Returns
    -------
    dict
        For ``mpifed.run(..., data=...)``. The arrays live as long as this does.

    Raises
    ------
    InputError
        If an argument cannot be made an array, or a torch data set has no length or does not hold
        pairs.

    Examples
    --------
    >>> data = arrays([[0.0], [1.0]], [0, 1], clients=["ann", "bob"])
    >>> data["name"], len(data["digest"])
    ('arrays', 64)
    """
    if is_dataset(x):
        x, y = pairs_of(x)
    optional = {"y": y, "client": clients, "is_test": is_test}
    arguments = {name: array_of(each, name) for name, each in optional.items() if each is not None}
    columns = Columns(array_of(x, "x"), **arguments)  # type: ignore[arg-type]
    digest = digest_of(columns)
    filled_in = {"client": clients is not None, "test": is_test is not None}
    held = ArraysSection(name="arrays", digest=digest, **filled_in, **options)
    # The same arrays passed twice live until neither is referred to.
    registered = _ARRAYS.get(digest)
    if registered is None or digest_of(registered) != digest:
        _ARRAYS[digest] = registered = columns
    held.columns = registered
    return held


class Arrays(PooledDataset, OwnSamples):
    """Arrays or a torch data set that a Python program passes: ``data=mpifed.arrays(x, y)``.

    Parameters
    ----------
    partition : str, optional
        How samples are dealt to the clients. None is natural where each sample has a client, else
        iid.
    split : {'60_20_20', 'in_order', 'published'}, optional
        How a client's samples become training, validation and test samples: 60/20/20 at random, the
        same in the order of the source, or tested on those that are marked. None is published where
        an option marks test samples, else 60_20_20.
    digest : str, optional
        SHA-256 of the arrays, which ``mpifed.arrays`` fills in. A run is resumed with the same
        arrays only.
    client : bool
        Whether each sample has a client; filled in too.
    test : bool
        Whether samples are marked for testing; filled in too.
    """

    def __init__(
        self,
        n_clients: int,
        run_seed: int,
        communicator: Communicator,
        *,
        partition: GroupedName | None = None,
        split: Parts | None = None,
        choose: Choose = "random",
        task: OwnTask = "auto",
        divisor: Divisor | None = None,
        standardise: bool = False,
        digest: str = "",
        client: bool = False,
        test: bool = False,
        **options: Any,
    ) -> None:
        agrees = communicator.gather_object(not _ARRAYS or digest in _ARRAYS)
        reading = {"digest": digest, "agrees": agrees}
        source = reader(self.read, reading, task, divisor, standardise)
        options["partition"], options["split"] = partition or "iid", split
        run = n_clients, run_seed, communicator
        super().__init__(source, {"choose": choose}, *run, **options)

    @staticmethod
    def read(options: Mapping[str, Any]) -> tuple[str, str, Columns]:
        """Return the arrays that this process holds."""
        return checked_columns(options["digest"], options.get("agrees"))

    @staticmethod
    def complete_options(options: dict[str, Any], n_training: int) -> dict[str, Any]:
        """Fill in partition and split; ``InputError`` where there are no arrays."""
        if not options["digest"]:
            raise InputError(
                "data.name is 'arrays', which a Python program passes: data=mpifed.arrays(x, y)"
            )
        return with_partition(options, n_training)

    @classmethod
    def count_clients(cls, options: Mapping[str, Any], run_seed: int) -> int:
        """Return how many sources have enough samples, or a number that does for others."""
        return count_sources(cls.read, options, run_seed)


def checked_columns(digest: str, agrees: list[bool] | None) -> tuple[str, str, Columns]:
    """What rank 0 holds, after checking that it is what every rank was given."""
    columns = _ARRAYS.get(digest)
    if columns is None:
        raise InputError(
            f"data.name is 'arrays', but those with the digest {digest[:12]}... are not here; call "
            "data = mpifed.arrays(...) with the same arrays, keep data while samples are needed"
        )
    if agrees is not None and not all(agrees):
        raise InputError(f"{PREFIX} rank {agrees.index(False)} has other arrays than rank 0")
    if digest_of(columns) != digest:
        raise InputError(f"{PREFIX} an array was changed after mpifed.arrays had read it")
    return PREFIX, "arrays", columns


def digest_of(columns: Columns) -> str:
    """Return the SHA-256 of types, shapes and values of the columns, in hexadecimal digits."""
    digest = hashlib.sha256()
    for column in (columns.x, columns.y, columns.client, columns.is_test):
        if column is None:
            digest.update(b"none;")
            continue
        digest.update(f"{column.dtype.newbyteorder('<').str}{column.shape};".encode())
        stored = np.ascontiguousarray(column, column.dtype.newbyteorder("<"))
        digest.update(stored.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
