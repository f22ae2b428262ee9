"""What surrogates are written with, the names that stay stable; ``Surrogate`` is their base.

The problem is min over theta of the mean of l(Z, theta) plus g(theta). Dieuleveut et al. 2025 ask
for two things:

    MM-1  a convex set S in R^q and functions S̄, psi, phi with, for all theta and tau,
          f(theta) <= f(tau) + psi(theta) - psi(tau) - <E S̄(Z, tau), phi(theta) - phi(tau)>
    MM-2  T(s) = argmin over theta of g(theta) + psi(theta) - <s, phi(theta)>, unique on S

and iterate in s: a client computes means of S̄ (``statistics``), a server mixes them and maps them
back (``minimiser``). Psi, phi, S and T must be the same on every client. ``statistics`` with
``minimiser`` is then plain MM: s <- E S̄(Z, T(s)), which cannot increase f + g.

Vectors are flat and float64. ``docs/surrogates.md`` shows how to add a problem. A function of a
``Description`` makes it, decorated by ``with_target`` if it needs the labels. ``client_means``,
``each_row`` and ``padded`` (to a multiple of ``COLUMNS``) compute a client's numbers alike,
whichever clients share its rank. ``cholesky``, ``columns_in_unit_ball``, ``eigenvalues_at_least``,
``positive_semidefinite`` and ``simplex`` are projections and a factor that fail alike everywhere.

FedMM makes the surrogate of its option by ``maker_of``; FedMM-OT takes from here the ``Benchmark``
of transport maps and ``check_targets``.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mpifed.components.registry import checked_section, find
from mpifed.data.base import Description
from mpifed.errors import InputError
from mpifed.local.minibatches import COLUMNS
from mpifed.local.projections import (
    cholesky,
    columns_in_unit_ball,
    eigenvalues_at_least,
    positive_semidefinite,
    simplex,
)
from mpifed.models.loss import LANES
from mpifed.optimal_transport.benchmarks import Benchmark, check_targets, gaussian_benchmark

__all__ = [
    "COLUMNS",
    "Benchmark",
    "Description",
    "LinAlgError",
    "MadeWithTarget",
    "Surrogate",
    "as_surrogate",
    "check_targets",
    "cholesky",
    "client_means",
    "columns_in_unit_ball",
    "each_row",
    "eigenvalues_at_least",
    "gaussian_benchmark",
    "maker_of",
    "padded",
    "positive_semidefinite",
    "simplex",
    "with_target",
]

LinAlgError = torch.linalg.LinAlgError  # type: ignore[attr-defined]
"""What factorisations of torch raise; those of surrogates may raise ``RunError``."""


class Surrogate(ABC):
    """Base class of problems in MM form.

    A function of the data's ``Description`` and of its options makes one.

    A surrogate may need facts about all clients' training data before the run (``fact_blocks``).
    The mean of ``facts`` over clients is then computed block by block, exactly; ``conclude``
    derives from it what is needed, on one rank, and ``knowing`` returns a surrogate that has it.

    Attributes
    ----------
    size : int
        q, the length of s.
    n_parameters : int
        The length of theta.
    fact_blocks : tuple of int
        The length of ``facts`` in each block; none by default.
    waits : bool
        Whether it needs the facts before use; a run then keeps them in its state.
    starts_from_data : bool
        Whether S_0 is the mean of the statistics of all training data under theta_0, not
        ``surrogate_of(theta_0)``; false by default.
    """

    size: int
    n_parameters: int
    starts_from_data: bool = False

    @abstractmethod
    def init(self, generator: np.random.Generator) -> np.ndarray:
        """Return theta_0, float64 (n_parameters,)."""

    @abstractmethod
    def statistics(self, z: Tensor, theta: Tensor, offsets: np.ndarray) -> Tensor:
        """Return each client's mean of S̄(z_j, theta).

        A row of the result does not depend, to the bit, on the other clients. The caller may
        overwrite the result.

        Parameters
        ----------
        z : Tensor, shape (samples, dim)
            The samples, client after client.
        theta : Tensor, shape (n_parameters,) or (clients, n_parameters)
            One theta, or one for each client.
        offsets : ndarray of int64, shape (clients + 1,)
            Client i has the rows ``offsets[i]`` to ``offsets[i + 1]``, at least one.

        Returns
        -------
        Tensor of float64, shape (clients, size)
            The means.
        """

    @abstractmethod
    def minimiser(self, s: Tensor) -> Tensor:
        """Return T(s), from (..., size) to (..., n_parameters), row by row."""

    @abstractmethod
    def project(self, s: Tensor) -> Tensor:
        """Return the Euclidean projection on S of (..., size), row by row."""

    def project_parameters(self, theta: Tensor) -> Tensor:
        """Return the Euclidean projection on Theta of (..., n_parameters), row by row.

        Theta is the closure of T(S), or the set where g is finite; by default all of R^n.
        """
        return theta

    @abstractmethod
    def losses(self, z: Tensor, theta: Tensor) -> Tensor:
        """Return l(z_j, theta) of each sample, (samples,), for one theta (n_parameters,).

        A loss does not depend, to the bit, on the other samples.
        """

    @abstractmethod
    def penalty(self, theta: Tensor) -> float:
        """Return g(theta) for one theta; infinite outside its domain."""

    @abstractmethod
    def surrogate_of(self, theta: Tensor) -> Tensor:
        """Return an s in S, shape (size,), with T(s) = theta, for one theta."""

    def parts(self, theta: Tensor) -> dict[str, Tensor]:
        """Return the parts of one theta by name, each in its own shape.

        They are what ``clients.h5`` shows as learnt; by default the whole as ``parameters``.
        """
        return {"parameters": theta}

    @property
    def fact_blocks(self) -> tuple[int, ...]:
        """The length of ``facts`` in each block."""
        return ()

    @property
    def waits(self) -> bool:
        """Whether it needs the facts before use."""
        return False

    def facts(self, z: Tensor, block: int) -> Tensor:
        """Return one block of facts of one client's samples z (samples, dim)."""
        raise NotImplementedError

    def conclude(self, means: Tensor) -> Tensor:
        """Return what follows from the means of all blocks, concatenated: float64 (k,)."""
        return means

    def knowing(self, facts: Tensor) -> Surrogate:
        """Return the surrogate with known facts.

        Parameters
        ----------
        facts : Tensor of float64, shape (k,)
            The result of ``conclude``.

        Returns
        -------
        Surrogate
            The surrogate.

        Raises
        ------
        InputError
            If the data do not suit the surrogate.
        """
        return self

    def remarks(self) -> list[str]:
        """Return lines for the log about the known facts."""
        return []


class MadeWithTarget:
    """Marks a function that makes surrogates as one that learns from labelled samples.

    A sample is then z = (x, target), and the function gets the ``Description`` of such samples with
    the data's own ``task`` and ``n_classes``. Without the mark z is x alone, whatever the labels.

    Parameters
    ----------
    make : callable
        The function; ``with_target`` marks it as a decorator.
    """

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make
        functools.update_wrapper(self, make)

    def __call__(self, *data: Any, **options: Any) -> Any:
        """Return what the function makes of the same arguments."""
        return self.make(*data, **options)


def with_target(make: Callable[..., Any]) -> MadeWithTarget:
    """Mark a function that makes surrogates; see ``MadeWithTarget``."""
    return MadeWithTarget(make)


def client_means(
    mean: Callable[[Tensor, Tensor], Tensor], z: Tensor, theta: Tensor, offsets: np.ndarray
) -> Tensor:
    """Return ``mean`` of each client's samples and theta.

    One call per client, on nothing but its own samples, makes a row independent of the others.

    Parameters
    ----------
    mean : Callable[[Tensor, Tensor], Tensor]
        A function of the samples (n, dim), float64, and the theta (n_parameters,) of a client.
    z : Tensor, shape (samples, dim)
        The samples, client after client.
    theta : Tensor, shape (n_parameters,) or (clients, n_parameters)
        One theta, or one for each client.
    offsets : ndarray of int64, shape (clients + 1,)
        The bounds of the clients' rows.

    Returns
    -------
    Tensor of float64, shape (clients, size)
        The means.
    """
    z, clients = z.double(), len(offsets) - 1
    thetas = theta if theta.dim() == 2 else theta.expand(clients, -1)
    bounds = offsets.tolist()
    return torch.stack([mean(z[bounds[i] : bounds[i + 1]], thetas[i]) for i in range(clients)])


def each_row(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """Return ``function`` applied to every row, one at a time.

    Parameters
    ----------
    function : Callable[[Tensor], Tensor]
        A function of (n,).
    rows : Tensor, shape (..., n)
        The rows.

    Returns
    -------
    Tensor, shape (..., m)
        The results.

    Examples
    --------
    >>> each_row(lambda row: row / row.sum(), torch.tensor([[1.0, 3.0], [2.0, 2.0]]))
    tensor([[0.2500, 0.7500],
            [0.5000, 0.5000]])
    """
    if rows.dim() == 1:
        return function(rows)
    flat = torch.stack([function(row) for row in rows.reshape(-1, rows.shape[-1])])
    return flat.view(*rows.shape[:-1], -1)


def padded(z: Tensor, multiple: int = LANES) -> Tensor:
    """Return ``z`` with rows of zeros appended.

    Parameters
    ----------
    z : Tensor, shape (samples, dim)
        The rows.
    multiple : int, default LANES
        What the number of rows must be a multiple of.

    Returns
    -------
    Tensor, shape (rows, dim)
        The rows, at least as many as samples.
    """
    missing = -len(z) % multiple
    return torch.nn.functional.pad(z, (0, 0, 0, missing)) if missing else z


def maker_of(surrogate: Any, field: str) -> functools.partial[Any]:
    """Return the function of a ``Description`` that an option names, with its own options.

    ``field`` is the option, for messages.
    """
    section = checked_section("surrogate", surrogate, field)
    return functools.partial(find("surrogate", section.name), **section.options)


def as_surrogate(candidate: Any) -> Surrogate:
    """Return what a user's function made, which must be a surrogate."""
    if not isinstance(candidate, Surrogate):
        raise InputError(
            f"algorithm.surrogate makes a {type(candidate).__name__}, which is not derived from "
            "mpifed.surrogate.Surrogate"
        )
    return candidate
