"""What a correction of gossip is, and how a section of a configuration becomes one.

A method takes a client's shared value from x_i to x_i + u_i in a round, whatever it computes: u_i
is its *update*, -eta times a gradient in the simplest case. Plain gossip mixes the result,
x <- W (x + u). Where clients' data are unlike, its limit depends on W and on the step size: at the
optimum of the mean risk the u_i add up to zero, but none of them is zero. A correction changes what
is mixed by what clients remember of earlier rounds. It sees x, u and the neighbours, not what
was computed, so it goes with any method that averages its shared values.

Equations are in terms of u, hence the step size eta of the papers is the method's own, and may
change from round to round. Rows are clients, as everywhere.

``fitted`` and ``misfit`` check what a correction asks of mixing matrices (``Needs``).
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, cast

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

import topologies
from mpifed.components.registry import checked_section, make, named
from mpifed.errors import InputError
from mpifed.exchange.routes import Nearby
from mpifed.federation.clients import Draws
from mpifed.federation.federation import Federation
from mpifed.state import client, pair_of

Needs = Literal["positive", "doubly_stochastic", "symmetric", "static", "tree"]
"""What a correction asks of the W^k, each including those before it but the first:

* positive: non-negative weights, and positive ones of each client for itself;
* doubly_stochastic: columns sum to one, also among those who take part in a round;
* symmetric: W^k = (W^k)';
* static: the same symmetric W in every round, and all clients in each;
* tree: the same, with the edges of a tree.
"""

# Nodes up to which all eigenvalues are computed.
DENSE = 1500

# Matrices of a schedule without a period, or with a longer one, that are looked at.
FEW = 8

ORDER: tuple[Needs, ...] = ("positive", "doubly_stochastic", "symmetric", "static", "tree")

# What separates an eigenvalue from a bound that it must not have: even rings have -1/3 itself.
ROUNDING = 1e-9


Gather = Callable[[Tensor], np.ndarray | None]


@dataclass(frozen=True)
class CorrectionMemory:
    """What clients remember of earlier rounds where gossip is corrected.

    Attributes
    ----------
    corrections : Tensor
        (clients, numbers), one row per client; for the shared values one after another.
    """

    corrections: Tensor = client()


class HeldOutRisks(Protocol):
    """The risks of one model on what each participant holds back; see ``local.objective``."""

    def losses(self, participant: int, models: np.ndarray) -> np.ndarray:
        """Return the risks of models (k, P) for one participant, float64 (k,)."""

    def gradient(self, participant: int, model: np.ndarray) -> np.ndarray:
        """Return the gradient of that risk at a model (P,), float64 (P,)."""


@dataclass(frozen=True)
class Observations:
    """What the participants hosted here may look at to choose whom they mix with.

    Attributes
    ----------
    receive : callable
        Maps rows (participants, numbers), and whose of them each participant asks for, bool
        (participants, nodes), to who then receives from whom. It books a message for each.
        Collective.
    held_out : HeldOutRisks or None
        The risks of models on their own data; None where it is not one model that is averaged.
    layers : sequence of slice
        Where the tensors of a model are in its row.
    draws : Draws
        The random numbers of the round.
    ids : ndarray
        The participants, int64.
    samples : ndarray
        Training samples of each node, int64 (nodes,).
    """

    receive: Callable[[Tensor, np.ndarray], Nearby]
    held_out: HeldOutRisks | None
    layers: Sequence[slice]
    draws: Draws
    ids: np.ndarray
    samples: np.ndarray


@dataclass(frozen=True)
class Neighbours:
    """The participants of a round, for those hosted here.

    Attributes
    ----------
    mix : callable
        Maps rows X, (participants, numbers), to the rows of W X, in memory of their own. Each call
        books a message of so many numbers along every edge, but none where the correction
        ``compresses``: what it mixes then are replicas. Collective.
    mix_in_cliques : callable
        The same with the matrices of ``Correction.clique_schedule``, whose messages it books.
        Collective.
    weights : scipy.sparse.csr_array
        W of the round over all nodes, without explicit zeros.
    mine : ndarray
        The nodes of the participants hosted here, int64 (participants,).
    nearby : callable or None
        Returns who receives from whom, with the rows of neighbours one by one, for corrections
        that are not linear in them. Each call books ``Correction.numbers`` along every edge.
    send : callable or None
        Maps rows (participants, numbers) to what neighbours receive of them, compressed where
        messages are, and books these messages; for corrections that compress.
    consensus_step : float
        gamma of gossip by compressed messages; 1 where they are whole.
    observations : Observations or None
        What they may look at, for corrections that choose neighbours.
    """

    mix: Callable[[Tensor], Tensor]
    mix_in_cliques: Callable[[Tensor], Tensor]
    weights: scipy.sparse.csr_array
    mine: np.ndarray
    nearby: Callable[[], Nearby] | None = None
    send: Callable[[Tensor], Tensor] | None = None
    consensus_step: float = 1.0
    observations: Observations | None = None

    @property
    def column_sums(self) -> Tensor:
        """sum_s W[s, t], by which all receivers of t weigh it, float64 (participants, 1)."""
        return self._of_mine(self.weights.sum(axis=0))

    @property
    def degrees(self) -> Tensor:
        """How many others each participant receives from, float64 (participants, 1)."""
        return self._of_mine(np.diff(self.weights.indptr) - (self.weights.diagonal() != 0))

    def _of_mine(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.asarray(values, float)[self.mine, None])


class Correction(ABC):
    """Base class of corrections; its keyword-only parameters are its options.

    Attributes
    ----------
    needs : str
        What it asks of the mixing matrices; see ``Needs``.
    linear : bool
        Whether ``step`` is linear in what it is passed, and of the neighbours uses the weights,
        ``mine`` and mixed rows alone: a run then tries it without training before round 1, on a
        schedule that changes, and warns where it makes clients drift apart.
    least_eigenvalue : float
        All eigenvalues of a symmetric W must be above this one.
    compresses : bool
        Whether it sends by ``Neighbours.send``, so that messages may be compressed.
    within_steps : bool
        Whether a part of it belongs to the local steps: over a round they take the first ``size``
        numbers of what is kept (its dual variables) from x, step by step, in proportion to the
        learning rates.
    chooses : bool
        Whether clients choose in each round whom they mix with; W then only says who may.
    columns : sequence of str
        What ``measure`` adds to ``metrics.csv``.
    nodes : int
        The number of clients that gossip, where it is known.
    """

    needs: ClassVar[Needs] = "symmetric"
    linear: ClassVar[bool] = False
    least_eigenvalue: float = -1.0
    compresses: ClassVar[bool] = False
    within_steps: ClassVar[bool] = False
    chooses: ClassVar[bool] = False
    columns: ClassVar[Sequence[str]] = ()
    nodes: int = 0

    def width(self, size: int) -> int:
        """Return how many numbers a client remembers for a value of ``size`` numbers."""
        return size

    def numbers(self, size: int) -> int:
        """Return how many numbers a client sends a neighbour for a value of ``size`` numbers.

        ``--dry-run`` says so; see ``Neighbours`` for what is booked.
        """
        return size

    def mixes(self, schedule: Any) -> Any:
        """Return the schedule that it mixes with, made from the configured one."""
        return schedule

    def clique_schedule(self, schedule: Any) -> Any:
        """Return a second schedule that it mixes with, made from the configured one, or None."""
        return None

    def measure(self, memory: Tensor, gather: Gather) -> dict[str, float | None]:
        """Return values of ``columns``, on rank 0; {} elsewhere. Collective.

        Parameters
        ----------
        memory : Tensor
            What the clients hosted here remember, (clients, ``width`` of all values).
        gather : callable
            Maps such rows to those of all clients in their order, an array on rank 0; None
            elsewhere.
        """
        return {}

    @abstractmethod
    def step(
        self, x: Tensor, moved: Tensor, memory: Tensor, neighbours: Neighbours
    ) -> tuple[Tensor, Tensor]:
        """Return the new values, and what is remembered. Collective.

        What arguments hold must not be changed. New memory costs more than arithmetic, so that
        the steps here write into what they have made themselves where they can.

        Parameters
        ----------
        x : Tensor
            The participants' values before the round, (participants, size).
        moved : Tensor
            x + u, what the method has made of them, (participants, size).
        memory : Tensor
            What they remember, (participants, ``width(size)``); zeros before the first round.
        neighbours : Neighbours
            Who takes part.
        """


class Plain(Correction):
    """No correction: x <- W (x + u) (decentralised SGD, Lian et al. 2017)."""

    needs = "positive"

    def width(self, size: int) -> int:
        return 0

    def step(
        self, x: Tensor, moved: Tensor, memory: Tensor, neighbours: Neighbours
    ) -> tuple[Tensor, Tensor]:
        return neighbours.mix(moved), memory


def build(section: Any, path: str = "exchange.correction") -> Correction | None:
    """Return the correction that a section of the configuration asks for; None for ``none``.

    Parameters
    ----------
    section : str, mapping or Section
        A name, or a mapping with a name and options.
    path : str
        The section's place in the configuration, for messages.

    Raises
    ------
    InputError
        For what is unknown, out of range, or not a correction.

    Examples
    --------
    >>> build("tracking").numbers(10)
    20
    """
    chosen = checked_section("correction", section, path)
    if chosen.name == "none":
        return None
    return cast(Correction, make("correction", chosen, path))


def halves(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two values that lie one behind the other in each row."""
    first, second = torch.tensor_split(rows, 2, dim=1)
    return first, second


def least_eigenvalue(schedule: topologies.Schedule) -> float:
    """Return the least eigenvalue of the first few matrices of a symmetric schedule."""
    rounds = min(schedule.period or FEW, FEW)
    return min(_least(schedule.matrix(k)) for k in range(1, rounds + 1))


def _least(matrix: topologies.MixingMatrix) -> float:
    from scipy.sparse.linalg import eigsh  # here, since few corrections need it

    if matrix.n <= DENSE:
        return float(np.linalg.eigvalsh(matrix.to_dense())[0])
    start = np.random.default_rng(0).normal(size=matrix.n)
    return float(eigsh(matrix.to_sparse(), 1, which="SA", v0=start, return_eigenvectors=False)[0])


def fitted(
    section: Any, schedule: topologies.Schedule, federation: Federation
) -> Correction | None:
    """Return the correction that ``section`` asks for, None for ``none``. Collective."""
    correction = build(section)
    if correction is None:
        return None
    correction.nodes = schedule.n
    name, fault = named(section, "exchange.correction")[0], None
    if federation.communicator.rank == 0:
        fault = misfit(correction, name, schedule, federation.participation == 1.0)
        bound = correction.least_eigenvalue
        if (
            fault is None
            and bound > -1
            and (least := least_eigenvalue(schedule)) < bound + ROUNDING
        ):
            fault = (
                f"exchange.correction is '{name}', but the least eigenvalue of W is {least:.6g}; "
                f"it must be above {bound:.6g}; allowed: other weights, or exact_diffusion"
            )
    fault = federation.communicator.broadcast_object(fault)
    if fault is not None:
        raise InputError(fault)
    return correction


# Rounds in which gossip is played, and by how much differences may grow meanwhile.
PLAYED, BEARABLE = 200, 10.0


def growth(correction: Correction, schedule: topologies.Schedule) -> float:
    """Return by how much differences between clients grow where nothing else moves them.

    For corrections that are ``linear``. Schedules that change from round to round can make
    corrections diverge that converge on each of their matrices.
    """
    first = np.random.default_rng(0).normal(size=(schedule.n, 1))
    x = start = torch.from_numpy(first - first.mean())
    memory = x.new_zeros(schedule.n, correction.width(1))
    for k in range(1, PLAYED + 1):
        w = schedule.matrix(k).to_sparse()
        mix = functools.partial(_product, w)
        moved = x - memory[:, :1] if correction.within_steps else x
        neighbours = Neighbours(mix, mix, w, np.arange(schedule.n))
        returned = correction.step(x, moved, memory, neighbours)
        x, memory = pair_of(returned, correction, "step")
        if x.norm() > BEARABLE**6 * start.norm():
            break
    return float(x.norm() / start.norm())


def _product(w: scipy.sparse.csr_array, rows: Tensor) -> Tensor:
    return torch.from_numpy(w @ rows.numpy())


def mixed_by(
    correction: Correction | None, schedule: topologies.Schedule
) -> tuple[topologies.Schedule, topologies.Schedule | None]:
    """Return the schedules by which a correction mixes; the configured one alone for None."""
    if correction is None:
        return schedule, None
    return correction.mixes(schedule), correction.clique_schedule(schedule)


def misfit(
    correction: Correction, name: str, schedule: topologies.Schedule, everyone: bool
) -> str | None:
    """Return what is wrong with a schedule for a correction, in a sentence; None if it fits."""
    subject, level = f"exchange.correction is '{name}'", ORDER.index(correction.needs)
    first = schedule.matrix(1)
    if level == 0:
        least = float(min(first.self_weights.min(), first.weights.min(initial=1.0)))
        if first.self_weights.min() <= 0 or least < 0:
            return (
                f"{subject}, but in round 1 a client's weight for itself is "
                f"{first.self_weights.min():.3g} and the least weight {least:.3g}; it needs "
                "positive weights of clients for themselves, and no negative ones"
            )
        return None
    if not schedule.doubly_stochastic or not (everyone or schedule.symmetric):
        absent = " among those who take part" if schedule.doubly_stochastic else ""
        return (
            f"{subject}, but the columns of the mixing matrices do not sum to one{absent}, so that "
            "gossip moves the mean; allowed: symmetric weights, or correction push_sum"
        )
    if level >= 2 and not schedule.symmetric:
        return (
            f"{subject}, which needs symmetric mixing matrices, but those of exchange.schedule are "
            "directed; allowed with these: tracking, quasi_global, push_sum"
        )
    if level >= 3 and not (everyone and schedule.period == 1):
        return (
            f"{subject}, whose clients need every message of every round; exchange.schedule must "
            "be static, without lost nodes or edges and without local rounds"
        )
    if level == 4 and not is_tree(first):
        used = int(np.count_nonzero(first.weights))
        return (
            f"{subject}, which needs a tree, but {used} edges have a weight between {first.n} "
            f"clients, where a tree has {first.n - 1} that connect them all; allowed: topologies "
            "such as path and star, with weights such as metropolis_hastings"
        )
    return None


def is_tree(matrix: topologies.MixingMatrix) -> bool:
    """Return whether the edges that have a weight are those of a tree."""
    from scipy.sparse.csgraph import connected_components  # here, since few corrections need it

    if np.count_nonzero(matrix.weights) != matrix.n - 1:
        return False
    return int(connected_components(matrix.to_sparse(), directed=False)[0]) == 1
