"""Arrays and torch data sets that a Python program hands to ``mpifed.run``.

A configuration cannot hold them. It holds a digest of what they contain, under which the process
that made them keeps them for as long as somebody refers to them.

What Python programs pass as samples (arrays, lists, tensors, data sets) as numpy arrays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from mpifed.components.schema import options_of, shown
from mpifed.data.tables import Columns, OwnDataset
from mpifed.errors import InputError, closest, in_words, one_line
from mpifed.mpi.communicator import Communicator

SAID = "data is mpifed.arrays(...), where"

WANTED = {
    "x": "an array, a tensor or a list of numbers (samples, ...), or a torch data set",
    "y": "an array, a tensor or a list with a target for each sample",
    "clients": (
        "an array or a list that says whose each sample is; how many clients there are is "
        "'clients' of mpifed.run"
    ),
    "is_test": "an array or a list with true or false for each sample",
}
"""What each argument of ``mpifed.arrays`` must be."""


def array_of(values: Any, what: str) -> np.ndarray:
    """Return numbers or texts as an array.

    Parameters
    ----------
    values : array_like or Tensor
        An array, a list, or a tensor; of bfloat16 and of 8 bits too, which become float32.
    what : str
        The argument's name, a key of ``WANTED``.

    Raises
    ------
    InputError
        If it is something else, sparse, masked, ragged, or mixed of several types.
    """
    if isinstance(values, torch.Tensor):
        return _of_tensor(values, what)
    if hasattr(values, "toarray"):
        raise InputError(f"{SAID} {what} is sparse; pass {what}.toarray()")
    if np.ma.is_masked(values):
        raise InputError(f"{SAID} {what} has masked values; pass those that are not masked")
    if isinstance(values, DataLoader):
        raise InputError(
            f"{SAID} {what} is a DataLoader; pass its data set, mpifed.arrays(loader.dataset), of "
            "which clients take batches of local.batch_size"
        )
    try:
        found = np.asarray(values)
    except Exception as error:  # numpy's, or what a user's class raises when it is converted
        reason = one_line(str(error), 100)
        raise InputError(
            f"{SAID} {what} cannot be made an array, as where rows have different lengths "
            f"({reason})"
        ) from None
    if found.ndim == 0:
        name = type(values).__name__
        plain = values is None or isinstance(values, (str, Real))
        given = one_line(repr(values), 60) if plain else f"a {name}"
        raise InputError(f"{SAID} {what} is {given}; it must be {WANTED[what]}")
    return _of_objects(found, what) if found.dtype.kind == "O" else found


def _of_tensor(tensor: torch.Tensor, what: str) -> np.ndarray:
    if tensor.layout != torch.strided:
        raise InputError(f"{SAID} {what} is sparse; pass {what}.to_dense()")
    try:
        if tensor.is_floating_point() and tensor.dtype not in (torch.float32, torch.float64):
            # numpy has no bfloat16; float32 holds all its values, and those of 8 bits.
            tensor = tensor if tensor.dtype == torch.float16 else tensor.float()
        return tensor.detach().cpu().resolve_conj().resolve_neg().numpy()
    except (TypeError, RuntimeError, NotImplementedError):
        raise InputError(
            f"{SAID} {what} is a torch tensor of {tensor.dtype} on '{tensor.device}', which is no "
            "numpy array; pass a dense one of integers or floating-point numbers"
        ) from None


def _of_objects(values: np.ndarray, what: str) -> np.ndarray:
    """Numbers or texts that lie in an array of objects, as pandas' columns do."""
    kinds = set(map(type, values.reshape(-1).tolist()))
    for kind, dtype in ((str, np.str_), (Integral, np.int64), (Real, np.float64)):
        if all(issubclass(each, kind) for each in kinds):
            return values.astype(dtype)
    names = one_line(", ".join(sorted(kind.__name__ for kind in kinds)), 60)
    raise InputError(
        f"{SAID} {what} holds objects of the types {names}; it must hold numbers or texts"
    )


def is_pair_of_arrays(x: Any) -> bool:
    """Return whether ``x`` is a tuple or list of two arrays, as of all inputs and all targets."""
    return (
        isinstance(x, (tuple, list))
        and len(x) == 2
        and all(isinstance(each, (np.ndarray, torch.Tensor)) and each.ndim > 0 for each in x)
    )


def is_dataset(x: Any) -> bool:
    """Return whether ``x`` is a torch data set, or a list of pairs, which serves as one."""
    if isinstance(x, (list, tuple)):
        first = x[0] if x else None
        return isinstance(first, tuple) and len(first) == 2 and np.ndim(_shaped(first[0])) > 0
    if isinstance(x, (str, Mapping, torch.Tensor)) or hasattr(x, "__array__"):
        return False
    if hasattr(x, "toarray"):
        return False
    return isinstance(x, torch.utils.data.Dataset) or hasattr(x, "__getitem__")


def _shaped(values: Any) -> Any:
    """An input of a pair: a tensor, an array, a list, or a picture."""
    return values if isinstance(values, (torch.Tensor, Sequence)) else np.asarray(values)


def pairs_of(dataset: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return all inputs and all targets of a torch data set, read once from first to last.

    Parameters
    ----------
    dataset : torch.utils.data.Dataset or list
        With a length, of pairs (x, y).

    Raises
    ------
    InputError
        If it has no length, raises an error, or does not hold pairs of one shape.
    """
    # A subclass may change the samples in ``__getitem__``.
    if type(dataset) is TensorDataset and len(dataset.tensors) == 2:
        return array_of(dataset.tensors[0], "x"), array_of(dataset.tensors[1], "y")
    name = f"{SAID} the torch data set {type(dataset).__name__}"
    if not hasattr(dataset, "__len__") or isinstance(dataset, IterableDataset):
        raise InputError(f"{name} has no length; pass one with a length, or arrays")
    count = len(dataset)
    if count < 1:
        raise InputError(f"{name} is empty; it must hold pairs (x, y), and one at least")
    pairs = [_pair(name, dataset, number) for number in range(count)]
    inputs, targets = zip(*pairs, strict=True)
    return _stacked(inputs, "x"), _stacked(targets, "y")


def _pair(name: str, dataset: Any, number: int) -> tuple[Any, Any]:
    try:
        sample = dataset[number]
    except Exception as error:  # a user's class may raise anything
        raise InputError(f"{name} fails: sample {number} raises {in_words(error)}") from error
    if isinstance(sample, (tuple, list)) and len(sample) == 2:
        return sample[0], sample[1]
    kind = type(sample).__name__
    given = f"{kind} of {len(sample)}" if isinstance(sample, (tuple, list)) else kind
    raise InputError(
        f"{name} must hold pairs (x, y), but sample {number} is a {given}, not a pair; all inputs "
        "and all targets are passed as mpifed.arrays(x, y)"
    )


def _stacked(values: tuple[Any, ...], what: str) -> np.ndarray:
    parts = [_entry(value, what) for value in values]
    shapes = {part.shape for part in parts}
    if len(shapes) > 1:
        shown = " and ".join(map(str, sorted(shapes)[:2]))
        raise InputError(f"{SAID} samples' {what} have different shapes, as {shown}")
    return np.stack(parts)


def _entry(value: Any, what: str) -> np.ndarray:
    """The input or the target of one sample, which may be a single number or text."""
    if isinstance(value, (Real, str, np.generic)):
        return np.asarray(value)
    return array_of(value, what)


def check_section(data: Any) -> None:
    """Raise ``InputError`` if the section ``data`` of a run is samples themselves."""
    samples = data
    if isinstance(data, Mapping):
        samples = next((each for each in data.values() if _holds_samples(each)), None)
    if _holds_samples(samples):
        given = f"data is of the type {type(samples).__name__}"
        raise InputError(
            f"{given if samples is data else 'data holds samples'}; samples from Python are "
            "passed as data=mpifed.arrays(x, y)"
        )


def _holds_samples(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_holds_samples, value[:2]))
    if isinstance(value, np.ndarray):
        return value.ndim > 1
    return isinstance(value, (torch.Tensor, torch.utils.data.Dataset, DataLoader))


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
            lambda: _held(digest, agrees), n_clients, run_seed, communicator, **options
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
