"""What a surrogate is to the rest of mpifed.

The problem is min over theta of the mean of l(Z, theta) plus g(theta). Dieuleveut et al. 2025 ask
for two things:

    MM-1  a convex set S in R^q and functions S̄, psi, phi with, for all theta and tau,
          f(theta) <= f(tau) + psi(theta) - psi(tau) - <E S̄(Z, tau), phi(theta) - phi(tau)>
    MM-2  T(s) = argmin over theta of g(theta) + psi(theta) - <s, phi(theta)>, unique on S

and iterate in s: a client computes means of S̄ (``statistics``), a server mixes them and maps them
back (``minimiser``). Psi, phi, S and T must be the same on every client. ``statistics`` with
``minimiser`` is then plain MM: s <- E S̄(Z, T(s)), which cannot increase f + g.

Vectors are flat and float64. ``docs/surrogates.md`` shows how a user adds a problem. A surrogate
may besides have ``parts(theta)``, which names what one theta consists of; see ``parts_of``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from mpifed.local.invariance import LANES

LinAlgError = torch.linalg.LinAlgError  # type: ignore[attr-defined]
"""What factorisations of torch raise; those of surrogates may raise ``RunError``."""

Make = TypeVar("Make", bound=Callable[..., Any])


class Surrogate(Protocol):
    """One problem in MM form; made by a function of the data's ``Description`` and its options."""

    @property
    def size(self) -> int:
        """q, the numbers of s."""

    @property
    def n_parameters(self) -> int:
        """Numbers of theta."""

    def init(self, generator: np.random.Generator) -> np.ndarray:
        """theta_0, float64 (n_parameters,)."""

    def statistics(self, z: Tensor, theta: Tensor, offsets: np.ndarray) -> Tensor:
        """Each client's mean of S̄(z_j, theta): (clients, size).

        ``z`` is (samples, dim), client after client; client i has rows ``offsets[i]`` to
        ``offsets[i + 1]`` and at least one. ``theta`` is (n_parameters,), or one row a client. A
        row of the result does not depend, to the bit, on the other clients. The result is the
        caller's to overwrite.
        """

    def minimiser(self, s: Tensor) -> Tensor:
        """T(s): (..., size) to (..., n_parameters), row by row."""

    def project(self, s: Tensor) -> Tensor:
        """The Euclidean projection on S: (..., size), row by row."""

    def losses(self, z: Tensor, theta: Tensor) -> Tensor:
        """l(z_j, theta) for one theta (n_parameters,): (samples,), each by itself to the bit."""

    def penalty(self, theta: Tensor) -> float:
        """g(theta) for one theta; infinite outside of its domain."""

    def surrogate_of(self, theta: Tensor) -> Tensor:
        """An s in S with T(s) = theta, for one theta: (size,)."""

    def psi(self, theta: Tensor) -> Tensor:
        """psi for one theta, a scalar."""

    def phi(self, theta: Tensor) -> Tensor:
        """phi for one theta: (size,)."""

    # A surrogate whose theta has a domain other than R^n has ``project_parameters`` as well:
    # the Euclidean projection on it, (..., n_parameters), row by row. See ``onto_domain``.


@runtime_checkable
class Asking(Protocol):
    """A surrogate that wants to know something of all clients' training data before the run.

    The mean of ``facts`` over clients is found block by block, exactly; ``conclude`` makes of it
    what is to be known, on one rank, and ``knowing`` a surrogate that knows.
    """

    @property
    def fact_blocks(self) -> tuple[int, ...]:
        """How many numbers ``facts`` has in each block."""

    @property
    def waits(self) -> bool:
        """Whether it cannot be used before; a run then keeps what was found in its state."""

    def facts(self, z: Tensor, block: int) -> Tensor:
        """What one client's samples z (samples, dim) tell: (fact_blocks[block],)."""

    def conclude(self, means: Tensor) -> Tensor:
        """What follows from the means of all blocks, one after the other: (k,) float64."""

    def knowing(self, facts: Tensor) -> Surrogate:
        """The surrogate that knows ``facts`` (k,); raises ``InputError`` for data that are none
        of its own.
        """

    def remarks(self) -> list[str]:
        """Lines for the log, of a surrogate that knows."""


def with_target(make: Make) -> Make:
    """Marks a function that makes surrogates as one that learns from labelled samples.

    A sample is then z = (x, target), and the function gets the ``Description`` of such samples with
    the data's own ``task`` and ``n_classes``. Without the mark z is x alone, whatever the labels.
    """
    make.takes_target = True  # type: ignore[attr-defined]
    return make


def onto_domain(surrogate: Surrogate, theta: Tensor) -> Tensor:
    """``theta`` (..., n_parameters) projected on the surrogate's Theta.

    Theta is what T(S) and its closure fill, or where g is finite; all of R^n, and ``theta`` as it
    is, where the surrogate has no ``project_parameters``.
    """
    onto: Callable[[Tensor], Tensor] | None = getattr(surrogate, "project_parameters", None)
    return theta if onto is None else onto(theta)


def parts_of(surrogate: Surrogate, theta: Tensor) -> dict[str, Tensor]:
    """What ``theta`` (n_parameters,) consists of, by name and in its own shape.

    That is ``surrogate.parts(theta)``, or the whole as ``parameters`` if there is no such method.
    """
    parts = getattr(surrogate, "parts", None)
    return {"parameters": theta} if parts is None else dict(parts(theta))


def client_means(
    mean: Callable[[Tensor, Tensor], Tensor], z: Tensor, theta: Tensor, offsets: np.ndarray
) -> Tensor:
    """``mean(z of the client, its theta)`` of each client, (clients, size), in float64.

    One call a client, on nothing but its own samples, makes a row independent of the others.
    """
    z, clients = z.double(), len(offsets) - 1
    own = theta if theta.dim() == 2 else theta.expand(clients, -1)
    bounds = offsets.tolist()
    return torch.stack([mean(z[bounds[i] : bounds[i + 1]], own[i]) for i in range(clients)])


def each_row(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """``function`` of every row of ``rows`` (..., n), one at a time."""
    if rows.dim() == 1:
        return function(rows)
    flat = torch.stack([function(row) for row in rows.reshape(-1, rows.shape[-1])])
    return flat.view(*rows.shape[:-1], -1)


def padded(z: Tensor, multiple: int = LANES) -> Tensor:
    """``z`` (samples, dim) with rows of zeros up to a multiple of ``multiple``."""
    missing = -len(z) % multiple
    return torch.nn.functional.pad(z, (0, 0, 0, missing)) if missing else z
