"""Failures of linear algebra on numbers that have grown too large, and to whom they belong.

A computation that fails for one client gives a row of NaN. The exchange finds it before it adds up
messages, alike on every rank, and names the client. A failure at the server, or alike on all ranks,
ends the run as a divergence of no client.
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
"""Exceptions of factorisations, those of torch and those of surrogates."""

LARGEST_OBJECTIVE = 1e50
"""A run with a larger objective counts as diverged, even if all numbers are finite."""


def rows_or_nan(function: Callable[[Tensor], Tensor], rows: Tensor, size: int) -> Tensor:
    """Apply ``function`` to rows, with NaN for those for which it fails.

    Parameters
    ----------
    function : callable
        Maps (R, n) to (R, size), and one row (n,) to (size,).
    rows : Tensor
        (clients, n).
    size : int
        Numbers in a row of the result.

    Returns
    -------
    Tensor
        (clients, size).

    Examples
    --------
    >>> rows_or_nan(torch.square, torch.tensor([[1.0, 2.0]]), 2)
    tensor([[1., 4.]])
    """
    if not len(rows):
        return rows.new_empty(0, size)
    try:
        return function(rows)
    except FAILURES:
        return torch.stack([_row_or_nan(function, row, size) for row in rows])


def _row_or_nan(function: Callable[[Tensor], Tensor], row: Tensor, size: int) -> Tensor:
    """``function`` of one row, or NaN (size,)."""
    try:
        return function(row)
    except FAILURES:
        return row.new_full((size,), torch.nan)


def statistics_or_nan(
    surrogate: Surrogate, z: Tensor, theta: Tensor, offsets: np.ndarray
) -> Tensor:
    """Return ``surrogate.statistics``, with NaN for the clients for whom it fails.

    Parameters
    ----------
    surrogate : Surrogate
        The problem.
    z : Tensor
        Samples of all clients, (samples, dim).
    theta : Tensor
        Parameters, (n_parameters,) or one row per client.
    offsets : numpy.ndarray
        First sample of each client, and their number at the end, int64 (clients + 1,).

    Returns
    -------
    Tensor
        (clients, size).
    """
    try:
        return surrogate.statistics(z, theta, offsets)
    except LinAlgError:
        rows = [
            _statistic_or_nan(surrogate, z[first:last], theta if theta.dim() == 1 else theta[i])
            for i, (first, last) in enumerate(pairwise(offsets.tolist()))
        ]
        return torch.stack(rows)


def _statistic_or_nan(surrogate: Surrogate, z: Tensor, theta: Tensor) -> Tensor:
    """The mean statistics of one client, or NaN (size,)."""
    try:
        return surrogate.statistics(z, theta, np.array([0, len(z)]))[0]
    except LinAlgError:
        return theta.new_full((surrogate.size,), torch.nan)


def mean_loss_or_nan(surrogate: Surrogate, z: Tensor, theta: Tensor) -> Tensor:
    """Return the mean of ``surrogate.losses``, NaN where it fails.

    Parameters
    ----------
    surrogate : Surrogate
        The problem.
    z : Tensor
        Samples of one client, (samples, dim).
    theta : Tensor
        (n_parameters,).

    Returns
    -------
    Tensor
        A scalar.
    """
    try:
        return surrogate.losses(z, theta).mean()
    except LinAlgError:
        return theta.new_tensor(torch.nan)


def bounded(objective: float) -> float:
    """Return ``objective``, which all ranks have.

    Raises
    ------
    Diverged
        Where its absolute value is not below ``LARGEST_OBJECTIVE``, or it is NaN.

    Examples
    --------
    >>> bounded(2.5)
    2.5
    """
    if abs(objective) < LARGEST_OBJECTIVE:
        return objective
    raise Diverged(f"the objective is {objective:g}: the training diverged", [])


@contextmanager
def at_the_server(what: str) -> Iterator[None]:
    """Turn a failure to compute ``what``, alike on every rank, into ``Diverged`` of no client."""
    try:
        yield
    except FAILURES as error:
        if isinstance(error, Diverged):
            raise
        reason = " ".join(str(error).split())
        raise Diverged(
            f"the server's {what} cannot be computed: the training diverged ({reason})", []
        ) from error
