"""Checks of what the methods of an algorithm return, which may be a user's own.

A mistake is named where it is made, by class and method, and not where something else fails of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from numbers import Integral, Real
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from mpifed.algorithms.base import Algorithm, Predictor
from mpifed.components.declared import call_of
from mpifed.components.results import WrongResult, as_called, place_of
from mpifed.components.schema import shown
from mpifed.errors import closest
from mpifed.state import tensors
from topologies.inputs import defined_at


def check_state(algorithm: Algorithm, method: str, made: Any, before: Any = None) -> None:
    """Check a state that a method returned."""
    if before is not None and type(made) is not type(before):
        _refuse(algorithm, method, made, f"a state as it was given, of {type(before).__name__}")
    if not dataclasses.is_dataclass(made) or isinstance(made, type):
        kind = made if isinstance(made, type) else type(made)
        wanted = "a state, which is a dataclass (mpifed.state)"
        if defined_at(kind) and not dataclasses.is_dataclass(kind):
            wanted += f": write @dataclasses.dataclass(frozen=True) above class {kind.__name__}"
        _refuse(algorithm, method, made, wanted)
    given = None if before is None else dict(_fields(before))
    for name, field in _fields(made):
        if "owner" not in field.metadata:
            _wrong(
                algorithm,
                method,
                f"a state whose field '{name}' does not say to whom it belongs; write {name}: "
                "Tensor = state.server(), or client(), shared() or follows() of mpifed.state",
            )
        value = field.value
        if not isinstance(value, Tensor):
            _wrong(
                algorithm, method, f"a state whose {name} is {_kind(value)}; it must be a tensor"
            )
        if not _storable(value):
            _wrong(
                algorithm,
                method,
                f"a state whose {name} is {_form(value)} ({_short(value.layout)}); it must be a "
                "dense tensor of a type that numpy has, such as float32 or int64",
            )
        if given is not None and _form(value) != _form(given[name].value):
            _wrong(
                algorithm,
                method,
                f"a state whose {name} is {_form(value)}; it must be as it was given, "
                f"{_form(given[name].value)}",
            )


@dataclasses.dataclass(frozen=True)
class _Field:
    """A field of a state, or of a state within it."""

    value: Any
    metadata: Mapping[Any, Any]


def _fields(state: Any, prefix: str = "") -> Iterator[tuple[str, _Field]]:
    """Yield the fields of a state and of the states within it, with dots in their names."""
    for field in dataclasses.fields(state):
        value, name = getattr(state, field.name), f"{prefix}{field.name}"
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from _fields(value, f"{name}.")
        else:
            yield name, _Field(value, field.metadata)


def _storable(tensor: Tensor) -> bool:
    """Return whether a file can hold a tensor, and a digest be made of it."""
    if tensor.layout != torch.strided:
        return False
    try:
        torch.empty(0, dtype=tensor.dtype).numpy()
    except (TypeError, RuntimeError):
        return False
    return True


def _form(tensor: Tensor) -> str:
    return f"{_short(tensor.dtype)} of shape {tuple(tensor.shape)}"


def _short(kind: torch.dtype | torch.layout) -> str:
    return str(kind).removeprefix("torch.")


def check_rows(algorithm: Algorithm, made: Any, n_clients: int, shared_is_rows: bool) -> None:
    """Check that what ``init`` returned has a row of each client where it must."""
    for name, tensor, is_rows in tensors(made, shared_is_rows):
        if is_rows and (not tensor.dim() or len(tensor) != n_clients):
            _wrong(
                algorithm,
                "init",
                f"a state whose {name} is {_form(tensor)} for {n_clients} clients; its first axis "
                "must be clients (what exchange.spread returns, for shared fields)",
            )


def checked_predictor(
    algorithm: Algorithm, method: str, made: Any, n_clients: int, n_parameters: int
) -> Predictor:
    """Return what ``deploy`` or ``adapt`` returned."""
    if not isinstance(made, Predictor):
        _refuse(algorithm, method, made, "a mpifed.algorithms.base.Predictor")
    parts = [made.parameters, made.mixture, *made.results.values()]
    for part in parts:
        if part is not None and not isinstance(part, Tensor):
            _refuse(algorithm, method, part, "a Predictor whose parts are tensors")
    if made.gate is not None and (made.mixture is None or not callable(made.gate)):
        wanted = "a Predictor whose gate is a function, with a mixture beside it"
        _refuse(algorithm, method, made.gate, wanted)
    if n_clients:
        said = f"algorithm '{type(algorithm).__name__}': {call_of(Algorithm, method)}"
        place = place_of(algorithm, method)
        check_predictor(made, n_clients, n_parameters, said, f" (in {place})" if place else "")
    return made


def checked_remarks(algorithm: Algorithm, made: Any) -> list[str]:
    """Return what ``remarks`` returned; ``WrongResult`` unless it is a list of strings."""
    if not isinstance(made, (list, tuple)) or not all(isinstance(line, str) for line in made):
        _refuse(algorithm, "remarks", made, "a list of strings")
    return list(made)


def checked_payload(algorithm: Algorithm) -> int:
    """Return ``payload()``; ``WrongResult`` unless it is a whole number, 0 or more."""
    made: Any = algorithm.payload()
    if isinstance(made, bool) or not isinstance(made, Integral) or made < 0:
        _refuse(algorithm, "payload", made, "a whole number, at least 0")
    return int(made)


def checked_measures(algorithm: Algorithm, made: Any) -> dict[str, float | None]:
    """Return the columns that ``measure`` returned."""
    if not isinstance(made, Mapping):
        _refuse(algorithm, "measure", made, "a mapping of columns to numbers")
    for name, value in made.items():
        if name not in algorithm.columns:
            near = closest(str(name), algorithm.columns) if algorithm.columns else "it is empty"
            what = f"the column {shown(name)}, which columns does not declare; {near}"
            _wrong(algorithm, "measure", what)
        is_array = isinstance(value, (Tensor, np.ndarray))
        scalar = isinstance(value, Real) or (is_array and len(value.reshape(-1)) == 1)
        if value is not None and not scalar:
            _refuse(algorithm, "measure", value, f"a number or None for {name}")
    return dict(made)


def checked_learnt(algorithm: Algorithm, made: Any) -> Mapping[str, Any]:
    """Return what ``learnt`` returned; ``WrongResult`` unless it is tensors by name."""
    arrays = (Tensor, np.ndarray, Real)
    if not isinstance(made, Mapping) or not all(
        isinstance(name, str) and isinstance(part, arrays) for name, part in made.items()
    ):
        _refuse(algorithm, "learnt", made, "a mapping of names to tensors")
    return made


def _kind(made: Any) -> str:
    if made is None:
        return "None"
    name = type(made).__name__
    return f"{shown(made)} ({name})" if isinstance(made, (str, Real)) else f"a {name}"


def _refuse(algorithm: Algorithm, method: str, made: Any, wanted: str) -> NoReturn:
    _wrong(algorithm, method, f"{_kind(made)}; it must return {wanted}")


def _wrong(algorithm: Algorithm, method: str, what: str) -> NoReturn:
    """Raise ``WrongResult`` for ``what`` a method returned, with the call that was made of it."""
    raise WrongResult(
        f"algorithm '{type(algorithm).__name__}': {method} returned {what}"
        f"{as_called(algorithm, Algorithm, method)}"
    )


def check_predictor(
    predictor: Predictor,
    n_clients: int,
    n_parameters: int,
    said: str = "the algorithm",
    where: str = "",
) -> None:
    """Refuse a predictor whose shapes do not say which models a client deploys."""
    came, mixture = predictor.parameters, predictor.mixture
    if came is not None:
        shape, models = tuple(came.shape), came.shape[-2] if came.dim() > 1 else 0
        own = (n_clients, models, n_parameters)
        fits = models > 0 and shape in ((models, n_parameters), own)
        models += predictor.beside is not None
        mixed = models == 1 if mixture is None else tuple(mixture.shape) == (n_clients, models)
        if not (fits and mixed):
            beside = (
                "no mixture" if mixture is None else f"a mixture of shape {tuple(mixture.shape)}"
            )
            raise WrongResult(
                f"{said} deploys parameters of shape {shape} and {beside} for {n_clients} "
                f"clients; allowed: (M, {n_parameters}) for M models that all share, or "
                f"({n_clients}, M, {n_parameters}) for each client's own, with a mixture "
                f"({n_clients}, M), which M = 1 may do without, or ({n_clients}, M + 1) with a "
                f"predictor beside them{where}"
            )
    for name, values in predictor.results.items():
        if values.dim() == 0 or len(values) != n_clients:
            raise WrongResult(
                f"{said} deploys results '{name}' of shape {tuple(values.shape)} for "
                f"{n_clients} clients; the first axis must be clients{where}"
            )
