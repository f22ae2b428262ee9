"""Whether a surrogate is what ``surrogates.base`` asks for, tried before a run begins.

A class of a user's own may lack a method, or return numbers of another shape or type; that is said
in one sentence. What it computes is not judged.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mpifed.errors import InputError, RunError, in_words
from mpifed.surrogates.base import LinAlgError, Surrogate

SIZES = ("size", "n_parameters")
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


def check_methods(surrogate: Surrogate) -> None:
    """Raises ``InputError`` unless ``surrogate`` has all that a run needs of it."""
    kind = type(surrogate).__name__
    for name in (*SIZES, *RETURNED):
        if not hasattr(surrogate, name):
            raise InputError(
                f"algorithm.surrogate: {kind} has no '{name}'; a surrogate has "
                f"{', '.join((*SIZES, *RETURNED))}"
            )
    for name in SIZES:
        size = getattr(surrogate, name)
        if not isinstance(size, int | np.integer) or size < 1:
            raise InputError(
                f"algorithm.surrogate: {kind}.{name} is {size!r}; it must be a whole number, at "
                "least 1"
            )


def check_returns(surrogate: Surrogate, z: Tensor, generator: np.random.Generator) -> None:
    """Raises ``InputError`` unless what the methods return has the documented shape and type.

    ``z`` (samples, dim) are some samples of one client. Linear algebra that fails on them is no
    question of form, and left to the run.
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
        raise InputError(f"{where} fails with {in_words(error)}") from error
    kind = np.ndarray if method == "init" else Tensor
    came = f"a {type(found).__name__}"
    if isinstance(found, kind):
        made = torch.as_tensor(found)
        if made.dtype == torch.float64 and tuple(made.shape) == shape:
            return made
        came = f"{found.dtype} of shape {tuple(found.shape)}".removeprefix("torch.")
    raise InputError(
        f"{where} returns {came}; it must return {RETURNED[method]}, here a float64 "
        f"{kind.__name__} of shape {shape}"
    )
