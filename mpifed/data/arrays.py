"""Arrays and torch data sets that a Python program hands to ``mpifed.run``.

A configuration cannot hold them. It holds a digest of what they contain, under which the process
that made them keeps them for as long as somebody refers to them.
"""

from __future__ import annotations

import hashlib
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch

from mpifed.data.columns import Columns, OwnDataset
from mpifed.errors import InputError
from mpifed.mpi.communicator import Communicator

SAID = "data is mpifed.arrays(...), where"


class Held(dict[str, Any]):
    """The section ``data`` of a configuration, with the arrays that it stands for."""

    columns: Columns


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
        Inputs, numbers (samples, ...); or a torch data set with a length, of pairs (x, y).
    y : array_like, optional
        Targets. Whole numbers or texts (samples,) are labels, 0 and 1 (samples, tags) tags, other
        numbers (samples,) or (samples, targets) are to be regressed on.
    clients : array_like, optional
        Whose each sample is, whole numbers or texts (samples,). Every source is a client, unless
        ``partition`` says otherwise. Without it samples are dealt at random.
    is_test : array_like, optional
        True for the samples that ``split="published"`` tests on, (samples,).
    **options
        Options of the data set ``arrays``, as ``partition``, ``split``, ``divisor`` or ``task``.

    Returns
    -------
    dict
        For ``mpifed.run(..., data=...)``. The arrays live as long as this does.

    Raises
    ------
    InputError
        If a torch data set has no length or does not hold pairs.

    Examples
    --------
    >>> data = arrays([[0.0], [1.0]], [0, 1], clients=["ann", "bob"])
    >>> data["name"], len(data["digest"])
    ('arrays', 64)
    """
    if _is_dataset(x):
        if y is not None:
            raise InputError(f"{SAID} a torch data set has targets already, but y is given too")
        x, y = _pairs(x)
    columns = Columns(_array(x), _if_given(y), _if_given(clients), _if_given(is_test))
    digest = digest_of(columns)
    held = Held(name="arrays", digest=digest, client=clients is not None, **options)
    # The same arrays passed twice live until neither is referred to.
    known = _HELD.get(digest)
    if known is None or digest_of(known) != digest:
        _HELD[digest] = known = columns
    held.columns = known
    return held


class Arrays(OwnDataset):
    """Arrays or a torch data set that a Python program passes: ``data=mpifed.arrays(x, y)``.

    Parameters
    ----------
    digest : str
        SHA-256 of the arrays, which ``mpifed.arrays`` fills in. A run is resumed with the same
        arrays only.
    client : bool
        Whether each sample has a client; filled in too.
    """

    def __init__(
        self,
        n_clients: int,
        run_seed: int,
        communicator: Communicator,
        *,
        digest: str,
        client: bool = False,
        **options: Any,
    ) -> None:
        agrees = communicator.gather_object(not _HELD or digest in _HELD)
        super().__init__(
            n_clients, run_seed, communicator, lambda: _held(digest, agrees), **options
        )


def _held(digest: str, agrees: list[bool] | None) -> tuple[str, str, Columns]:
    """What rank 0 holds, after checking that it is what every rank was given."""
    columns = _HELD.get(digest)
    if columns is None:
        raise InputError(
            f"data.name is 'arrays', but this process does not have those with the digest "
            f"{digest[:12]}...; pass data=mpifed.arrays(...) with the same arrays to mpifed.run"
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


def _if_given(values: Any) -> np.ndarray | None:
    return None if values is None else _array(values)


def _array(values: Any) -> np.ndarray:
    if isinstance(values, torch.Tensor):
        return values.detach().cpu().numpy()
    try:
        found = np.asarray(values)
    except ValueError as error:
        raise InputError(f"{SAID} an array has rows of different lengths ({error})") from None
    return found.astype(str) if found.dtype.kind == "O" else found


def _is_dataset(x: Any) -> bool:
    if isinstance(x, (list, tuple)) or hasattr(x, "__array__"):
        return False
    return isinstance(x, torch.utils.data.Dataset) or hasattr(x, "__getitem__")


def _pairs(dataset: Any) -> tuple[Any, Any]:
    """All inputs and all targets of a torch data set."""
    # A subclass may change the samples in ``__getitem__``.
    if type(dataset) is torch.utils.data.TensorDataset and len(dataset.tensors) == 2:
        return dataset.tensors
    if not hasattr(dataset, "__len__"):
        raise InputError(f"{SAID} the torch data set {type(dataset).__name__} has no length")
    pairs = [dataset[number] for number in range(len(dataset))]
    if not pairs or not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
        raise InputError(
            f"{SAID} the torch data set {type(dataset).__name__} must hold pairs (x, y), and one "
            "at least"
        )
    inputs, targets = zip(*pairs, strict=True)
    return _stacked(inputs, "inputs"), _stacked(targets, "targets")


def _stacked(values: tuple[Any, ...], what: str) -> np.ndarray:
    parts = [_array(value) for value in values]
    shapes = {part.shape for part in parts}
    if len(shapes) > 1:
        shown = " and ".join(map(str, sorted(shapes)[:2]))
        raise InputError(f"{SAID} {what} have different shapes, as {shown}")
    return np.stack(parts)
