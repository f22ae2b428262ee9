"""The state of an algorithm: dataclasses of tensors whose fields say to whom they belong.

* ``server``: one copy, identical on every rank, without a client axis;
* ``client``: rows, one for each client hosted here;
* ``shared``: what is averaged: one copy under a server, rows under gossip. The exchange decides, so
  an algorithm is written once for both.

Selecting participants, checkpointing, resuming on other ranks and digesting follow from these
declarations and are written once, here and in ``checkpoint``.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

State = TypeVar("State")


def server() -> Any:
    """A field owned by the server."""
    return dataclasses.field(metadata={"owner": "server"})


def client() -> Any:
    """A field with one row per client."""
    return dataclasses.field(metadata={"owner": "client"})


def shared() -> Any:
    """A field that the exchange averages."""
    return dataclasses.field(metadata={"owner": "shared"})


def follows() -> Any:
    """A field that goes with shared ones, a copy or rows as they are, but is not averaged."""
    return dataclasses.field(metadata={"owner": "follows"})


def inline() -> Any:
    """A nested state whose names stand without the field's own before them."""
    return dataclasses.field(metadata={"owner": "inline"})


@dataclasses.dataclass(frozen=True)
class Nothing:
    """A state without fields."""


@dataclasses.dataclass(frozen=True)
class RunState:
    """What a run keeps from round to round: the algorithm's state, and what messages leave behind.

    ``memory`` belongs to the exchange: error feedback, or replicas of neighbours, where messages
    are compressed.
    """

    algorithm: Any = inline()
    memory: Any = dataclasses.field(default_factory=Nothing)


def tensors(state: Any, shared_is_rows: bool) -> Iterator[tuple[str, Tensor, bool]]:
    """(name, tensor, is_rows) of every field, nested states included, names joined by dots."""
    for field in dataclasses.fields(state):
        value = getattr(state, field.name)
        if dataclasses.is_dataclass(value):
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
    """The fields that the exchange averages."""
    fields = dataclasses.fields(state)
    return [getattr(state, f.name) for f in fields if f.metadata["owner"] == "shared"]


def replace_tensors(state: State, values: dict[str, Tensor]) -> State:
    """``state`` with the named tensors in place of its own; names as ``tensors`` gives them."""
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
    """``state`` as the clients at positions ``rows`` (int64) of the hosted ones see it."""
    chosen = {n: t[rows] for n, t, is_rows in tensors(state, shared_is_rows) if is_rows}
    return replace_tensors(state, chosen)


def merge(
    state: State,
    part: State,
    rows: Tensor,
    shared_is_rows: bool,
    overwritten: Sequence[Tensor] = (),
) -> State:
    """``state`` after the clients at positions ``rows`` moved on to ``part``.

    Its tensors are new, but those of ``state`` that are among ``overwritten`` get the new rows in
    place: nobody else may need what they hold.
    """
    values = {}
    new = {name: tensor for name, tensor, _ in tensors(part, shared_is_rows)}
    for name, tensor, is_rows in tensors(state, shared_is_rows):
        if not is_rows:
            values[name] = new[name]
        elif any(tensor is own for own in overwritten):
            values[name] = tensor.index_copy_(0, rows, new[name])
        else:
            values[name] = tensor.index_copy(0, rows, new[name])
    return replace_tensors(state, values)


def server_digest(state: Any, shared_is_rows: bool) -> bytes:
    """SHA-256 over the name, type, shape and bytes of every field without a client axis."""
    digest = hashlib.sha256()
    for name, tensor, is_rows in tensors(state, shared_is_rows):
        if not is_rows:
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
            digest.update(_bytes(tensor))
    return digest.digest()


def client_digests(state: Any, shared_is_rows: bool, n_hosted: int) -> list[bytes]:
    """One SHA-256 per hosted client over its rows of every field that has a client axis."""
    digests = [hashlib.sha256() for _ in range(n_hosted)]
    for name, tensor, is_rows in tensors(state, shared_is_rows):
        if is_rows:
            header = f"{name} {tensor.dtype} {tuple(tensor.shape[1:])};".encode()
            for digest, row in zip(digests, tensor, strict=True):
                digest.update(header)
                digest.update(_bytes(row))
    return [digest.digest() for digest in digests]


def _bytes(tensor: Tensor) -> Any:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
