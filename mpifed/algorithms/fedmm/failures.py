"""Linear algebra that fails on numbers grown too large: whose numbers those are.

What fails for one client becomes a row that is not finite, which the exchange finds before it adds
anything up, alike on every rank, and names the client. What fails at the server, or alike on all
ranks, ends the run in its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from mpifed.errors import Diverged, RunError
from mpifed.surrogates.base import LinAlgError, Surrogate

FAILURES = (LinAlgError, RunError)
"""What factorisations raise, torch's own and those of surrogates."""

LARGEST_OBJECTIVE = 1e50
"""Beyond this a run is taken to have diverged, though its numbers are still finite."""


def rows_or_nan(function: Callable[[Tensor], Tensor], rows: Tensor, size: int) -> Tensor:
    """``function`` of ``rows`` (clients, n), row by row: (clients, size); NaN where it fails."""
    if not len(rows):
        return rows.new_empty(0, size)
    try:
        return function(rows)
    except FAILURES:
        return torch.stack([_row_or_nan(function, row, size) for row in rows])


def _row_or_nan(function: Callable[[Tensor], Tensor], row: Tensor, size: int) -> Tensor:
    try:
        return function(row)
    except FAILURES:
        return row.new_full((size,), torch.nan)


def statistics_or_nan(
    surrogate: Surrogate, z: Tensor, theta: Tensor, offsets: np.ndarray
) -> Tensor:
    """``surrogate.statistics``, (clients, size), with NaN for the clients for whom it fails."""
    try:
        return surrogate.statistics(z, theta, offsets)
    except LinAlgError:
        rows = [
            _statistic_or_nan(surrogate, z[first:last], theta if theta.dim() == 1 else theta[i])
            for i, (first, last) in enumerate(pairwise(offsets.tolist()))
        ]
        return torch.stack(rows)


def _statistic_or_nan(surrogate: Surrogate, z: Tensor, theta: Tensor) -> Tensor:
    try:
        return surrogate.statistics(z, theta, np.array([0, len(z)]))[0]
    except LinAlgError:
        return theta.new_full((surrogate.size,), torch.nan)


def mean_loss_or_nan(surrogate: Surrogate, z: Tensor, theta: Tensor) -> Tensor:
    """The mean of ``surrogate.losses``, a scalar; NaN where it fails."""
    try:
        return surrogate.losses(z, theta).mean()
    except LinAlgError:
        return theta.new_tensor(torch.nan)


def bounded(objective: float) -> float:
    """``objective``; raises ``Diverged`` where it is not finite or has no size that data have.

    Every rank has the same.
    """
    if abs(objective) < LARGEST_OBJECTIVE:
        return objective
    raise Diverged(f"the objective is {objective:g}: the training diverged", [])


@contextmanager
def at_the_server(what: str) -> Iterator[None]:
    """Raises ``Diverged`` of no client where ``what``, found alike on every rank, fails."""
    try:
        yield
    except FAILURES as error:
        if isinstance(error, Diverged):
            raise
        reason = " ".join(str(error).split())
        raise Diverged(
            f"the server's {what} cannot be computed: the training diverged ({reason})", []
        ) from error
