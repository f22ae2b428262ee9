"""Checks of what the methods of an algorithm return, which may be a user's own.

A mistake is named where it is made, by class and method, and not where something else fails of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, NoReturn

import numpy as np
from torch import Tensor

from mpifed.algorithms.base import Algorithm, Predictor
from mpifed.components.schema import shown
from mpifed.errors import RunError, closest


def check_state(algorithm: Algorithm, method: str, made: Any, before: Any = None) -> None:
    """Check a state that a method returned.

    Parameters
    ----------
    algorithm : Algorithm
        The algorithm.
    method : {'init', 'prepare', 'round'}
        The method that returned it.
    made : Any
        What it returned.
    before : dataclass, optional
        The state that it was given, whose type the new one must have.

    Raises
    ------
    RunError
        For anything else than a dataclass, or one of another type than ``before``.
    """
    if before is not None and type(made) is not type(before):
        _refuse(algorithm, method, made, f"a state as it was given, of {type(before).__name__}")
    if not dataclasses.is_dataclass(made) or isinstance(made, type):
        _refuse(algorithm, method, made, "a state, which is a dataclass (mpifed.state)")


def checked_predictor(algorithm: Algorithm, method: str, made: Any) -> Predictor:
    """Return what ``deploy`` or ``adapt`` returned; ``check_predictor`` looks at its shapes.

    Parameters
    ----------
    algorithm, method, made
        As for ``check_state``.

    Raises
    ------
    RunError
        If it is not a ``Predictor`` of tensors.
    """
    if not isinstance(made, Predictor):
        _refuse(algorithm, method, made, "a mpifed.algorithms.base.Predictor")
    parts = [made.parameters, made.mixture, *made.results.values()]
    for part in parts:
        if part is not None and not isinstance(part, Tensor):
            _refuse(algorithm, method, part, "a Predictor whose parts are tensors")
    if made.gate is not None and (made.mixture is None or not callable(made.gate)):
        wanted = "a Predictor whose gate is a function, with a mixture beside it"
        _refuse(algorithm, method, made.gate, wanted)
    return made


def checked_remarks(algorithm: Algorithm, made: Any) -> list[str]:
    """Return the lines that ``remarks`` returned; ``RunError`` unless it is a list of strings."""
    if not isinstance(made, (list, tuple)) or not all(isinstance(line, str) for line in made):
        _refuse(algorithm, "remarks", made, "a list of strings")
    return list(made)


def checked_payload(algorithm: Algorithm) -> int:
    """Return ``payload()``; ``RunError`` unless it is a whole number, 0 or more."""
    made: Any = algorithm.payload()
    if isinstance(made, bool) or not isinstance(made, Integral) or made < 0:
        _refuse(algorithm, "payload", made, "a whole number, at least 0")
    return int(made)


def checked_measures(algorithm: Algorithm, made: Any) -> dict[str, float | None]:
    """Return the columns that ``measure`` returned.

    Raises
    ------
    RunError
        For a column that ``columns`` does not declare, or a value that is neither a number nor
        None.
    """
    if not isinstance(made, Mapping):
        _refuse(algorithm, "measure", made, "a mapping of columns to numbers")
    for name, value in made.items():
        if name not in algorithm.columns:
            raise RunError(
                f"algorithm '{type(algorithm).__name__}': measure returned the column "
                f"{shown(name)}, which columns does not declare; "
                f"{closest(str(name), algorithm.columns) if algorithm.columns else 'it is empty'}"
            )
        is_array = isinstance(value, (Tensor, np.ndarray))
        scalar = isinstance(value, Real) or (is_array and len(value.reshape(-1)) == 1)
        if value is not None and not scalar:
            _refuse(algorithm, "measure", value, f"a number or None for {name}")
    return dict(made)


def checked_learnt(algorithm: Algorithm, made: Any) -> Mapping[str, Any]:
    """Return what ``learnt`` returned; ``RunError`` unless it is tensors by name."""
    arrays = (Tensor, np.ndarray, Real)
    if not isinstance(made, Mapping) or not all(
        isinstance(name, str) and isinstance(part, arrays) for name, part in made.items()
    ):
        _refuse(algorithm, "learnt", made, "a mapping of names to tensors")
    return made


def _refuse(algorithm: Algorithm, method: str, made: Any, wanted: str) -> NoReturn:
    name = type(made).__name__
    given = f"{shown(made)} ({name})" if isinstance(made, (str, Real)) else f"a {name}"
    given = "None" if made is None else given
    raise RunError(
        f"algorithm '{type(algorithm).__name__}': {method} returned {given}; it must return "
        f"{wanted}"
    )


def check_predictor(predictor: Predictor, n_clients: int, n_parameters: int) -> None:
    """Refuse a predictor whose shapes do not say which models a client deploys.

    Parameters
    ----------
    predictor : Predictor
        What ``deploy`` or ``adapt`` returned.
    n_clients : int
        Number of clients for which it was asked.
    n_parameters : int
        P, the numbers in one model.

    Raises
    ------
    RunError
        For other shapes than allowed; (clients, P) must not be read as M = clients shared models.
    """
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
            raise RunError(
                f"the algorithm deploys parameters of shape {shape} and {beside} for {n_clients} "
                f"clients; allowed: (M, {n_parameters}) for M models that all share, or "
                f"({n_clients}, M, {n_parameters}) for each client's own, with a mixture "
                f"({n_clients}, M), which M = 1 may do without, or ({n_clients}, M + 1) with a "
                "predictor beside them"
            )
    for name, values in predictor.results.items():
        if values.dim() == 0 or len(values) != n_clients:
            raise RunError(
                f"the algorithm deploys results '{name}' of shape {tuple(values.shape)} for "
                f"{n_clients} clients; the first axis must be clients"
            )
