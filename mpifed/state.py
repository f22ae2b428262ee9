"""The state of an algorithm: dataclasses of tensors whose fields declare their owner.

* ``server``: one copy, identical on every rank, without a client axis;
* ``client``: rows, one for each client hosted on this rank;
* ``shared``: averaged by the exchange: one copy under a server, rows under gossip. The exchange
  decides, so an algorithm is written once for both;
* ``follows``: of the shape of shared fields, a copy or rows, but not averaged, as a velocity of the
  model. Were it ``server``, ranks would have rows of their clients under gossip, and were it
  ``shared``, compressed gossip would remember replicas of it.

Selecting participants, checkpointing, resuming on other ranks and digesting follow from these
declarations and are written once, here and in ``checkpoint``. ``on_host`` copies tensors into the
host's memory, where MPI and numpy need them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from mpifed.errors import wrong_result

State = TypeVar("State")


def server() -> Any:
    """Declare a field that the server owns.

    It must be the same on every rank, as what ``channel.sum`` and ``channel.mean`` return is. Ranks
    compare it whenever the state's digest is computed.
    """
    return dataclasses.field(metadata={"owner": "server"})


def client() -> Any:
    """Declare a field with one row per client, which is never sent by itself."""
    return dataclasses.field(metadata={"owner": "client"})


def shared() -> Any:
    """Declare a field that the exchange averages, as the model.

    It is one copy under a server and a row of each client under gossip, where
    ``consensus_distance`` measures it and compressed messages have replicas of it.
    """
    return dataclasses.field(metadata={"owner": "shared"})


def follows() -> Any:
    """Declare a field with the shape of shared ones, a copy or rows, that is not averaged.

    Examples
    --------
    A velocity of the model, zeros like it under a server and under gossip:

    >>> @dataclasses.dataclass(frozen=True)
    ... class Moving:
    ...     model: Tensor = shared()
    ...     velocity: Tensor = follows()
    >>> model = torch.zeros(3, 1, 5)
    >>> rows = tensors(Moving(model, torch.zeros_like(model)), shared_is_rows=True)
    >>> [(name, is_rows) for name, _, is_rows in rows]
    [('model', True), ('velocity', True)]
    """
    return dataclasses.field(metadata={"owner": "follows"})


def inline() -> Any:
    """Declare a nested state whose tensors are named without the name of this field."""
    return dataclasses.field(metadata={"owner": "inline"})


@dataclasses.dataclass(frozen=True)
class Nothing:
    """A state without fields."""


@dataclasses.dataclass(frozen=True)
class RunState:
    """What a run keeps from round to round.

    Attributes
    ----------
    algorithm : dataclass
        The state of the algorithm.
    memory : dataclass
        The state of the exchange where messages are compressed: error feedback, or replicas of
        neighbours.
    """

    algorithm: Any = inline()
    memory: Any = dataclasses.field(default_factory=Nothing)


def tensors(state: Any, shared_is_rows: bool) -> Iterator[tuple[str, Tensor, bool]]:
    """Iterate over the tensors of a state.

    Parameters
    ----------
    state : dataclass
        The state; nested states are included.
    shared_is_rows : bool
        Whether shared fields have a client axis, as under gossip.

    Yields
    ------
    (str, Tensor, bool)
        The name, with the names of nested states joined by dots; the tensor; and whether its first
        axis runs over the hosted clients.

    Examples
    --------
    >>> @dataclasses.dataclass(frozen=True)
    ... class Example:
    ...     model: Tensor = shared()
    ...     variate: Tensor = client()
    >>> example = Example(torch.zeros(5), torch.zeros(3, 5))
    >>> [(name, is_rows) for name, _, is_rows in tensors(example, shared_is_rows=False)]
    [('model', False), ('variate', True)]
    """
    for field in dataclasses.fields(state):
        value = getattr(state, field.name)
        if not isinstance(value, Tensor) and dataclasses.is_dataclass(value):
            prefix = _prefix(field)
            for name, tensor, rows in tensors(value, shared_is_rows):
                yield f"{prefix}{name}", tensor, rows
        else:
            owner = field.metadata["owner"]
            goes_along = owner in ("shared", "follows") and shared_is_rows
            yield field.name, value, owner == "client" or goes_along


def _prefix(field: dataclasses.Field[Any]) -> str:
    return "" if field.metadata.get("owner") == "inline" else f"{field.name}."


def shared_tensors(state: Any) -> list[Tensor]:
    """Return the fields that the exchange averages, in order of declaration."""
    return [getattr(state, name) for name in _shared_names(state)]


def merged(state: State, mean: Callable[[Tensor], Tensor]) -> State:
    """Return a state in which every client has the ``mean`` of each field that is averaged."""
    fields_by_name = {name: getattr(state, name) for name in _shared_names(state)}
    return replace_tensors(
        state, {name: mean(rows).expand_as(rows) for name, rows in fields_by_name.items()}
    )


def _shared_names(state: Any) -> list[str]:
    return [f.name for f in dataclasses.fields(state) if f.metadata["owner"] == "shared"]


def replace_tensors(state: State, values: dict[str, Tensor]) -> State:
    """Return ``state`` with some of its tensors replaced.

    Parameters
    ----------
    state : dataclass
        The state.
    values : dict of str to Tensor
        New tensors by name, as :func:`tensors` names them.

    Returns
    -------
    dataclass
        A new state of the same type.
    """
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(state):  # type: ignore[arg-type]
        value = getattr(state, field.name)
        if dataclasses.is_dataclass(value):
            inner = _prefix(field)
            part = {n[len(inner) :]: v for n, v in values.items() if n.startswith(inner)}
            changes[field.name] = replace_tensors(value, part)
        elif field.name in values:
            changes[field.name] = values[field.name]
    return dataclasses.replace(state, **changes)  # type: ignore[type-var]


def select(state: State, rows: Tensor, shared_is_rows: bool) -> State:
    """Return the state of some of the hosted clients.

    Parameters
    ----------
    state : dataclass
        The state of all hosted clients.
    rows : Tensor of int64
        Positions of the selected clients among the hosted ones.
    shared_is_rows : bool
        As for :func:`tensors`.

    Returns
    -------
    dataclass
        A new state; fields without a client axis are the same tensors.
    """
    chosen = {n: t[rows] for n, t, is_rows in tensors(state, shared_is_rows) if is_rows}
    return replace_tensors(state, chosen)


def merge(
    state: State,
    part: State,
    rows: Tensor,
    shared_is_rows: bool,
    overwritten: Sequence[Tensor] = (),
) -> State:
    """Return the state after some of the hosted clients have moved to a new one.

    Parameters
    ----------
    state : dataclass
        The state of all hosted clients.
    part : dataclass
        The new state of the selected clients.
    rows : Tensor of int64
        Their positions among the hosted clients.
    shared_is_rows : bool
        As for :func:`tensors`.
    overwritten : sequence of Tensor
        Tensors of ``state`` that receive the new rows in place; their old values are lost.

    Returns
    -------
    dataclass
        A new state. Fields without a client axis are those of ``part``.
    """
    values = {}
    new = {name: tensor for name, tensor, _ in tensors(part, shared_is_rows)}
    for name, tensor, is_rows in tensors(state, shared_is_rows):
        if not is_rows:
            values[name] = new[name]
        elif any(tensor is reused for reused in overwritten):
            values[name] = tensor.index_copy_(0, rows.to(tensor.device), new[name])
        else:
            values[name] = tensor.index_copy(0, rows.to(tensor.device), new[name])
    return replace_tensors(state, values)


def server_digest(state: Any, shared_is_rows: bool) -> bytes:
    """Return the SHA-256 of name, type, shape and bytes of every field without a client axis."""
    digest = hashlib.sha256()
    for name, tensor, is_rows in tensors(state, shared_is_rows):
        if not is_rows:
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
            digest.update(_bytes(tensor).data)
    return digest.digest()


def client_digests(
    state: Any, shared_is_rows: bool, part: slice, rows: np.ndarray | None = None
) -> bytes:
    """Return the SHA-256 of each of some hosted clients' rows of all fields with a client axis.

    Parameters
    ----------
    state : dataclass
        The state of all hosted clients.
    shared_is_rows : bool
        As for :func:`tensors`.
    part : slice
        Positions among the hosted clients, with a start and a stop.
    rows : ndarray of int64, optional
        Some of ``part``, counted from its start; None for all.

    Returns
    -------
    bytes
        32 of each client, in their order.
    """
    rows = np.arange(part.stop - part.start) if rows is None else rows
    digests = [hashlib.sha256() for _ in rows]
    for name, tensor, is_rows in tensors(state, shared_is_rows):
        if is_rows and digests:
            header = f"{name} {tensor.dtype} {tuple(tensor.shape[1:])};".encode()
            every = _bytes(tensor[part]).reshape(part.stop - part.start, -1)
            for digest, row in zip(digests, rows.tolist(), strict=True):
                digest.update(header)
                digest.update(every[row].data)
    return b"".join(digest.digest() for digest in digests)


def _bytes(tensor: Tensor) -> np.ndarray:
    """The bytes of a tensor, uint8."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def host_memory(like: Tensor) -> Tensor:
    """Return uninitialised host memory for a copy, page-locked where ``like`` is on a GPU.

    Parameters
    ----------
    like : Tensor
        A tensor of the same shape and type.

    Returns
    -------
    Tensor
        Contiguous, on the CPU.
    """
    return torch.empty(like.shape, dtype=like.dtype, pin_memory=like.device.type != "cpu")


def on_host(tensor: Tensor) -> np.ndarray:
    """Return the numbers of a tensor as an array, without a copy where they are on the CPU.

    Parameters
    ----------
    tensor : Tensor
        On any device.

    Returns
    -------
    ndarray
        Of the same shape and type.

    Examples
    --------
    >>> on_host(torch.ones(2))
    array([1., 1.], dtype=float32)
    """
    detached = tensor.detach()
    if detached.device.type != "cpu":
        detached = host_memory(detached).copy_(detached)
    return detached.numpy()


def is_finite(tensor: Tensor) -> bool:
    """Return whether all numbers of a tensor are finite, without a copy."""
    if not tensor.numel() or not tensor.is_floating_point():
        return True
    # A sum takes half the time of a minimum and a maximum, but may overflow by itself.
    if math.isfinite(tensor.detach().sum()):
        return True
    return all(math.isfinite(each) for each in torch.aminmax(tensor.detach()))


def pair_of(returned: Any, component: object, method: str) -> tuple[Any, Any]:
    """Return the two values that a user's code returned; raise ``RunError`` for anything else."""
    if isinstance(returned, (tuple, list)) and len(returned) == 2:
        return returned[0], returned[1]
    actual = type(returned).__name__
    actual += f" of {len(returned)} values" if isinstance(returned, (tuple, list)) else ""
    raise wrong_result(component, method, actual, "a tuple of two values")


def check_result(returned: Any, like: Tensor | np.ndarray, component: object, method: str) -> None:
    """Raise ``RunError`` unless what a user's code returned has the form of another array.

    Parameters
    ----------
    returned : Any
        What the method of the component returned.
    like : Tensor or ndarray
        What has the same class, shape and type of numbers.
    component : object
        What the message names.
    method : str
        Its method, for the message.
    """
    if (
        type(returned) is type(like)
        and returned.shape == like.shape
        and returned.dtype == like.dtype
    ):
        return
    actual = type(returned).__name__
    if hasattr(returned, "shape"):
        actual += f" of shape {tuple(returned.shape)} and type {getattr(returned, 'dtype', None)}"
    expected = f"{type(like).__name__} of shape {tuple(like.shape)} and type {like.dtype}"
    raise wrong_result(component, method, actual, expected)
