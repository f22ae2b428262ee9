"""Arrays and torch data sets that a Python program hands to ``mpifed.run``.

A configuration cannot hold them. It holds a digest of what they contain, under which the process
that made them keeps them for as long as somebody refers to them.
"""

from __future__ import annotations

import hashlib
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from mpifed.components.schema import options_of, shown
from mpifed.data.columns import Columns, OwnDataset
from mpifed.data.conversion import SAID, array_of, is_dataset, is_pair_of_arrays, pairs_of
from mpifed.errors import InputError, closest
from mpifed.mpi.communicator import Communicator


class Held(dict[str, Any]):
    """The section ``data`` of a configuration, with the arrays that it stands for."""

    columns: Columns


FILLED_IN = ("digest", "client", "test")
"""Options of the data set that ``mpifed.arrays`` sets."""

_HELD: WeakValueDictionary[str, Columns] = WeakValueDictionary()
"""What this process holds, by digest."""


def arrays(
    x: Any,
    y: Any = None,
    *,
    clients: Any = None,
    is_test: Any = None,
    **options: Any,
) -> Held:
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
    _check_names(options)
    if y is None and is_pair_of_arrays(x):
        raise InputError(
            f"{SAID} x is a {type(x).__name__} of two arrays; pass them as two arguments: "
            "mpifed.arrays(x, y)"
        )
    if is_dataset(x):
        if y is not None:
            raise InputError(f"{SAID} a torch data set has targets already, but y is given too")
        x, y = pairs_of(x)
    columns = Columns(
        array_of(x, "x"),
        _if_given(y, "y"),
        _if_given(clients, "clients"),
        _if_given(is_test, "is_test"),
    )
    digest = digest_of(columns)
    filled_in = {"client": clients is not None, "test": is_test is not None}
    held = Held(name="arrays", digest=digest, **filled_in, **options)
    # The same arrays passed twice live until neither is referred to.
    known = _HELD.get(digest)
    if known is None or digest_of(known) != digest:
        _HELD[digest] = known = columns
    held.columns = known
    return held


def _check_names(options: dict[str, Any]) -> None:
    own = [name for name in options_of(Arrays) if name not in FILLED_IN]
    for name in options:
        if name not in own:
            near = closest(name, ["x", "y", "clients", "is_test", *own])
            raise InputError(f"mpifed.arrays has no argument {shown(name)}; {near}")


class Arrays(OwnDataset):
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
        digest: str = "",
        client: bool = False,
        test: bool = False,
        **options: Any,
    ) -> None:
        agrees = communicator.gather_object(not _HELD or digest in _HELD)
        super().__init__(
            n_clients, run_seed, communicator, lambda: _held(digest, agrees), **options
        )

    @staticmethod
    def complete_options(options: dict[str, Any], n_training: int) -> dict[str, Any]:
        """Fill in partition and split; ``InputError`` where there are no arrays."""
        if not options["digest"]:
            raise InputError(
                "data.name is 'arrays', which a Python program passes: data=mpifed.arrays(x, y)"
            )
        return OwnDataset.complete_options(options, n_training)


def _held(digest: str, agrees: list[bool] | None) -> tuple[str, str, Columns]:
    """What rank 0 holds, after checking that it is what every rank was given."""
    columns = _HELD.get(digest)
    if columns is None:
        raise InputError(
            f"data.name is 'arrays', but this process does not have those with the digest "
            f"{digest[:12]}...; call data = mpifed.arrays(...) with the same arrays, keep data as "
            "long as samples are needed, and pass data=data to mpifed.run"
        )
    if agrees is not None and not all(agrees):
        raise InputError(f"{SAID} rank {agrees.index(False)} has other arrays than rank 0")
    if digest_of(columns) != digest:
        raise InputError(f"{SAID} an array was changed after mpifed.arrays had read it")
    return SAID, "arrays", columns


def digest_of(columns: Columns) -> str:
    """Return the SHA-256 of types, shapes and values of the columns, in hexadecimal digits."""
    found = hashlib.sha256()
    for column in (columns.x, columns.y, columns.client, columns.is_test):
        if column is None:
            found.update(b"none;")
            continue
        found.update(f"{column.dtype.newbyteorder('<').str}{column.shape};".encode())
        rows = max(1, (1 << 24) // max(1, column[:1].nbytes)) if column.ndim else 1
        for start in range(0, max(1, len(column) if column.ndim else 1), rows):
            part = column[start : start + rows] if column.ndim else column
            found.update(np.ascontiguousarray(part, part.dtype.newbyteorder("<")).tobytes())
    return found.hexdigest()


def _if_given(values: Any, what: str) -> np.ndarray | None:
    return None if values is None else array_of(values, what)
