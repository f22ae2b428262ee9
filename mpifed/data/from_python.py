"""Samples that a Python program hands to ``mpifed.run``.

A configuration cannot hold them. It holds a digest of what they contain, under which the process
that made them keeps them for as long as somebody refers to them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from mpifed.data.containers import (
    PREFIX,
    Names,
    Samples,
    array_of,
    is_by_client,
    is_dataset,
    merged,
    samples_of,
)
from mpifed.data.partitioned import PooledDataset
from mpifed.data.partitions import Choose, GroupedName, Parts
from mpifed.data.preprocessing import Preprocessing
from mpifed.data.tables import Columns, Divisor, OwnSamples, OwnTask, with_partition
from mpifed.errors import InputError, closest
from mpifed.mpi.communicator import Communicator
from topologies.parameters import options_of

# The arrays of this process, by digest.
_ARRAYS: WeakValueDictionary[str, Columns] = WeakValueDictionary()


class ArraysSection(dict[str, Any]):
    """The section ``data`` of a configuration, with the arrays that it stands for."""

    columns: Columns
    tables: Sequence[Any] = ()  # as they were passed to ``mpifed.frame``


def arrays(
    x: Any,
    y: Any = None,
    *,
    clients: Any = None,
    is_test: Any = None,
    test: Any = None,
    features: str | None = None,
    label: str | None = None,
    client: str | None = None,
    **options: Any,
) -> ArraysSection:
    """Return samples of a Python program as the section ``data`` of a run.

    Under MPI rank 0 deals them; other ranks must pass the same samples, or none at all.

    Parameters
    ----------
    x : array_like, torch.utils.data.Dataset, datasets.Dataset, mapping or list
        Inputs, numbers (samples, ...); or a data set with a length, or a list, of pairs (x, y) or
        of mappings. A mapping of names, or a list, of data sets or pairs of arrays has the samples
        of each client. In place of any of these, ``{"train": ..., "test": ...}`` has those for
        training and those for tests.
    y : array_like, optional
        Targets. Whole numbers of any type or texts (samples,) are labels, 0 and 1 (samples, tags)
        tags, other numbers (samples,) or (samples, targets) are to be regressed on. ``task`` says
        otherwise, and what one-hot rows are.
    clients : array_like, optional
        Whose each sample is, whole numbers or texts (samples,). Every source is a client, unless
        ``partition`` says otherwise. Without it samples are dealt at random.
    is_test : array_like, optional
        True for the samples that clients test on, (samples,), unless ``split`` says otherwise.
    test : tuple, torch.utils.data.Dataset, datasets.Dataset, mapping or list, optional
        Further samples that clients test on: a pair (x, y), a data set, or those of each client,
        unless ``split`` says otherwise.
    features, label, client : str, optional
        Columns of inputs, targets and clients where samples are mappings, as those of Hugging Face
        are. None is a usual name, as ``image`` and ``label``, and no clients.
    **options
        Options of the data set ``arrays``, as ``partition``, ``split``, ``divisor`` or ``task``.

    Returns
    -------
    dict
        For ``mpifed.run(..., data=...)``. The arrays live as long as this does.

    Raises
    ------
    InputError
        If an argument cannot be made an array, a keyword is unknown, or a data set has no length
        or does not hold pairs or mappings.

    Examples
    --------
    >>> data = arrays([[0.0], [1.0]], [0, 1], clients=["ann", "bob"])
    >>> data["name"], len(data["digest"])
    ('arrays', 64)
    >>> of_each = {"ann": (np.zeros((5, 2)), np.arange(5)), "bob": (np.ones((6, 2)), np.arange(6))}
    >>> arrays(of_each)["client"]
    True
    """
    names = Names(features, label, client)
    if y is None:
        samples = samples_of(x, names, options.get("task") == "sequence")
    else:
        for argument, value in (("features", features), ("label", label), ("client", client)):
            if value is not None:
                raise InputError(
                    f"{PREFIX} {argument} names a column of samples that are mappings, but x is an "
                    "array; whose each sample is: clients=[...]"
                )
        samples = Samples(array_of(x, "x"), array_of(y, "y"))
    for argument, field, values in (
        ("clients", "client", clients),
        ("is_test", "is_test", is_test),
    ):
        if values is not None:
            if getattr(samples, field) is not None:
                raise InputError(f"{PREFIX} {argument} is given, but x says so itself")
            column: dict[str, Any] = {field: array_of(values, argument)}
            samples = replace(samples, **column)
    if test is not None:
        samples = merged([("x", unmarked(samples)), ("test", tested(test, names))])
    columns = Columns(
        *(samples.x, samples.y, samples.client, samples.is_test), class_names=samples.class_names
    )
    return hold(columns, options, options_of(arrays))


def unmarked(samples: Samples) -> Samples:
    """Return samples for training, of which none is for testing yet."""
    if samples.is_test is not None:
        raise InputError(f"{PREFIX} test is given beside is_test or a split; allowed: one of them")
    return replace(samples, is_test=np.zeros(len(samples.x), bool))


def tested(test: Any, names: Names) -> Samples:
    """Return the samples of the argument ``test``, marked for testing."""
    if isinstance(test, tuple) and len(test) == 2 and not is_by_client(test):
        samples = Samples(array_of(test[0], "x of test"), array_of(test[1], "y of test"))
    elif is_by_client(test) or is_dataset(test):
        samples = samples_of(test, names)
    else:
        raise InputError(
            f"{PREFIX} test is a {type(test).__name__}; allowed: a pair (x, y), a data set, or a "
            "mapping of these by client (is_test=marks marks samples of x)"
        )
    return replace(samples, is_test=np.ones(len(samples.x), bool))


def check_keywords(options: Mapping[str, Any], arguments: Iterable[str], where: str) -> None:
    """Refuse keywords that are no options of samples from Python.

    Parameters
    ----------
    options : mapping
        What was passed.
    arguments : iterable of str
        What its user may have meant by an unknown option.
    where : str
        Where it was passed, the beginning of the message.
    """
    allowed = {name for name in options_of(Arrays) if name not in ("digest", "client", "test")}
    for name in options:
        if name not in allowed:
            raise InputError(
                f"{where} {name} is no option; {closest(name, allowed | {*arguments})}"
            )


def hold(
    columns: Columns, options: Mapping[str, Any], arguments: Iterable[str] = ()
) -> ArraysSection:
    """Return the section for samples, which live as long as it does.

    Parameters
    ----------
    columns : Columns
        The samples.
    options : mapping
        Options of the data set ``arrays``.
    arguments : iterable of str
        What its user may have meant by an unknown option.
    """
    filled_in = {"client": columns.client is not None, "test": columns.is_test is not None}
    check_keywords(options, arguments, PREFIX)
    digest = digest_of(columns)
    held = ArraysSection(name="arrays", digest=digest, **filled_in, **options)
    # The same arrays passed twice live until neither is referred to.
    registered = _ARRAYS.get(digest)
    if registered is None or registered.label != columns.label or digest_of(registered) != digest:
        _ARRAYS[digest] = registered = columns
    held.columns = registered
    return held


class Arrays(OwnSamples, PooledDataset):
    """Arrays or a torch data set that a Python program passes: ``data=mpifed.arrays(x, y)``.

    Parameters
    ----------
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
        source = self.source(reading, task, divisor, standardise)
        options["partition"], options["split"] = partition or "iid", split
        run = n_clients, run_seed, communicator
        super().__init__(source, {"choose": choose}, *run, **options)

    @property
    def label(self) -> str | None:
        """Name of the column of targets in the table that was passed."""
        return _ARRAYS[self._reading["digest"]].label

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
        if column.dtype.kind == "O":  # texts
            column = column.astype(str)
        digest.update(f"{column.dtype.newbyteorder('<').str}{column.shape};".encode())
        stored = np.ascontiguousarray(column, column.dtype.newbyteorder("<"))
        digest.update(stored.reshape(-1).view(np.uint8).data)
    described = columns.class_names, columns.preprocessing.text
    if described != ((), Preprocessing().text):
        digest.update(repr(described).encode())
    return digest.hexdigest()
