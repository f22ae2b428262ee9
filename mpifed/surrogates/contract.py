"""Checks that a surrogate has the methods and results of ``surrogates.base``, before a run begins.

A user's class may lack a method, or return numbers of another shape or type; the message is one
sentence. The values themselves are not checked.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mpifed.components.results import as_called
from mpifed.errors import InputError, RunError, in_words
from mpifed.surrogates.base import LinAlgError, Surrogate
from topologies.places import raised_at, within

RETURNED = {
    "init": "(n_parameters,)",
    "statistics": "(clients, size)",
    "minimiser": "(..., n_parameters) of (..., size)",
    "project": "(..., size)",
    "losses": "(samples,)",
    "penalty": "one number",
    "surrogate_of": "(size,)",
}
"""The methods that a run calls, and the documented shapes; psi and phi are for tests."""


def as_surrogate(made: Any, maker: Any = None) -> Surrogate:
    """Return a user's object as a surrogate that has all that a run needs.

    Parameters
    ----------
    made : Any
        The object.
    maker : callable, optional
        The user's function that made it.

    Raises
    ------
    InputError
        If a method is missing or misspelt, or a size is not a positive integer.
    """
    said = f"algorithm.surrogate makes a {type(made).__name__}"
    surrogate = Surrogate.adopt(made, said, maker)
    for name, size in (("size", surrogate.size), ("n_parameters", surrogate.n_parameters)):
        if not isinstance(size, int | np.integer) or size < 1:
            raise InputError(
                f"{said}, whose {name} is {size!r}; it must be a whole number, at least 1"
                f"{within(type(made)) or within(maker)}"
            )
    return surrogate


def check_returns(surrogate: Surrogate, z: Tensor, generator: np.random.Generator) -> None:
    """Check that the methods return the documented shapes and types.

    Failures of linear algebra on the given samples are ignored here and left to the run.

    Parameters
    ----------
    surrogate : Surrogate
        The surrogate.
    z : Tensor, shape (samples, dim)
        Some samples of one client.
    generator : numpy.random.Generator
        The generator for ``init``.

    Raises
    ------
    InputError
        If a method fails or returns another shape or type.
    """
    try:
        _try_all(surrogate, z, generator)
    except (LinAlgError, RunError):
        return


def _try_all(surrogate: Surrogate, z: Tensor, generator: np.random.Generator) -> None:
    tried: Callable[..., Tensor] = partial(_tried, surrogate)
    q, n, offsets = surrogate.size, surrogate.n_parameters, np.array([0, len(z)])
    theta = tried("init", (n,), generator)
    s = tried("surrogate_of", (q,), theta)
    for given in (theta, theta[None]):
        rows = tried("statistics", (1, q), z, given, offsets)
    for given in (s, rows):
        tried("minimiser", (*given.shape[:-1], n), given)
        tried("project", tuple(given.shape), given)
    tried("losses", (len(z),), z, theta)
    tried("penalty", (), theta)


def _tried(surrogate: Surrogate, method: str, shape: tuple[int, ...], *given: Any) -> Tensor:
    """What ``method`` returns, float64 of this ``shape``; raises ``InputError`` otherwise."""
    where = f"algorithm.surrogate: {type(surrogate).__name__}.{method}"
    shapes = [str(tuple(part.shape)) for part in given if isinstance(part, Tensor)]
    if shapes:
        where += f", given {' and '.join(shapes)},"
    try:
        found = getattr(surrogate, method)(*given)
        if method == "penalty":
            found = torch.tensor(float(found), dtype=torch.float64)
    except (InputError, RunError, LinAlgError, KeyboardInterrupt):
        raise
    except BaseException as error:
        # A user's own method may fail in any way.
        said = f"{where} fails with {in_words(error)}{raised_at(error)}"
        raise InputError(f"{said}{as_called(surrogate, Surrogate, method)}") from error
    kind = np.ndarray if method == "init" else Tensor
    came = f"a {type(found).__name__}"
    if isinstance(found, kind):
        made = torch.as_tensor(found)
        if made.dtype == torch.float64 and tuple(made.shape) == shape:
            return made
        came = f"{found.dtype} of shape {tuple(found.shape)}".removeprefix("torch.")
    raise InputError(
        f"{where} returns {came}; it must return {RETURNED[method]}, here a float64 "
        f"{kind.__name__} of shape {shape}{as_called(surrogate, Surrogate, method)}"
    )
