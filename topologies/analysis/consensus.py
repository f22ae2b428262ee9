"""Consensus rates: how fast gossip with a matrix or a schedule averages."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topologies.matrix import MixingMatrix
from topologies.parameters import TopologyError
from topologies.schedules.sequences import Drawn, Schedule, as_schedule
from topologies.schedules.thinning import LocalRounds

Array = NDArray[np.float64]

DENSE_NODES = 2000
SAMPLES = 200

# A consensus rate p of at most this is rounding error: gossip does not converge.
NEGLIGIBLE_RATE = 1e-10


def contraction(matrices: list[MixingMatrix]) -> float:
    """Return ||(I - J) W_last ... W_first||_2, the worst-case factor on the consensus distance."""
    from scipy import linalg
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    n = matrices[0].n
    if n <= DENSE_NODES:
        deviation = np.eye(n)
        for matrix in matrices:
            deviation = matrix.to_sparse() @ deviation
        deviation -= deviation.mean(axis=0)
        if len(matrices) == 1 and matrices[0].symmetric:
            value = float(np.abs(np.linalg.eigvalsh(deviation)).max())
        else:
            value = float(linalg.svdvals(deviation)[0])
    else:
        rounds = [matrix.to_sparse() for matrix in matrices]

        def square(x: Array) -> Array:
            x = x.ravel()
            for w in rounds:
                x = w @ x
            x = x - x.mean()
            for w in reversed(rounds):
                x = w.T @ x
            return x

        operator = LinearOperator((n, n), matvec=square, dtype=np.float64)
        start = np.cos(np.arange(n))
        try:
            top = eigsh(operator, k=1, which="LA", v0=start, return_eigenvectors=False)
        except ArpackNoConvergence:
            raise TopologyError(
                f"the SLEM of this matrix of {n} nodes cannot be computed: the Lanczos iterations "
                "did not converge"
            ) from None
        value = math.sqrt(max(0.0, float(top[0])))
    return 0.0 if value < n * np.finfo(float).eps else value


@dataclass(frozen=True)
class ConsensusRate:
    """The (p, tau) of E||W_tau ... W_1 x - mean||^2 <= (1 - p) ||x - mean||^2.

    Koloskova et al. 2020 (A unified theory of decentralized SGD with changing topology and local
    updates), Assumption 4, which is Assumption 8 of Marfoq et al. 2021 (FedEM).

    Attributes
    ----------
    p : float
        The expected relative decrease of the squared distance over tau rounds, in [0, 1].
    tau : int
        The number of rounds.
    standard_error : float
        The standard error of p where it was estimated, otherwise 0.
    """

    p: float
    tau: int = 1
    standard_error: float = 0.0

    @property
    def contraction(self) -> float:
        """The factor per round on the distance from consensus, averaged over tau rounds."""
        return float(max(0.0, 1 - self.p) ** (0.5 / self.tau))


def consensus_rate(source: MixingMatrix | Schedule, samples: int = SAMPLES) -> ConsensusRate:
    """Return the (p, tau) of a matrix used in every round, or of a schedule.

    The rate is exact for periodic schedules, p = 1 - ||W_tau ... W_1 - 11'/n||_2^2, and for
    independent rounds with a known E[W'W], p = 1 - ||E[W'W] - 11'/n||_2. Otherwise E[W'W] is
    estimated by the mean over ``samples`` blocks of tau rounds. The norm of the mean is biased
    upwards, so the estimated p is conservative.

    Parameters
    ----------
    source : MixingMatrix | Schedule
        The matrix or schedule.
    samples : int, default SAMPLES
        The number of blocks of tau rounds to average over where p is estimated.

    Returns
    -------
    ConsensusRate
        The rate, with a standard error where it is estimated.

    Examples
    --------
    >>> from topologies import build_schedule
    >>> consensus_rate(build_schedule("one_peer_exponential", 4))
    ConsensusRate(p=1.0, tau=2, standard_error=0.0)
    """
    schedule = as_schedule(source)
    if isinstance(schedule, LocalRounds):
        inner = consensus_rate(schedule.inner, samples)
        return ConsensusRate(inner.p, inner.tau * schedule.every, inner.standard_error)
    if schedule.period is not None:
        block = [schedule.matrix(k) for k in range(1, schedule.period + 1)]
        return ConsensusRate(max(0.0, 1 - contraction(block) ** 2), schedule.period)
    if isinstance(schedule, Drawn) and schedule.mean_square is not None:
        square = schedule.mean_square() - 1 / schedule.n
        return ConsensusRate(float(np.clip(1 - np.linalg.eigvalsh(square)[-1], 0, 1)))
    return _estimated_rate(schedule, samples)


def _estimated_rate(schedule: Schedule, samples: int) -> ConsensusRate:
    from scipy.sparse import csr_array

    n, tau = schedule.n, schedule.tau
    blocks = []
    for start in range(1, samples * tau, tau):
        product = schedule.matrix(start).to_sparse()
        for k in range(start + 1, start + tau):
            product = schedule.matrix(k).to_sparse() @ product
        blocks.append(csr_array(product))
    square = np.zeros((n, n))
    for product in blocks:
        square += (product.T @ product).toarray()
        column = product.sum(axis=0)
        square -= np.outer(column, column) / n
    values, vectors = np.linalg.eigh(square / len(blocks))
    worst = vectors[:, -1]
    moved = np.stack([product @ worst for product in blocks])
    norms = ((moved - moved.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
    error = float(norms.std(ddof=1) / math.sqrt(len(blocks))) if len(blocks) > 1 else math.inf
    return ConsensusRate(float(np.clip(1 - values[-1], 0, 1)), tau, error)


def mixing_time(source: MixingMatrix | Schedule, accuracy: float = 1e-2) -> float:
    """Return how many rounds contract any distance from consensus to ``accuracy`` of it.

    For random schedules the root mean square distance is meant; for periodic ones the number is a
    multiple of the period.

    Parameters
    ----------
    source : MixingMatrix | Schedule
        The matrix or schedule.
    accuracy : float, default 0.01
        The relative distance to reach, in (0, 1).

    Returns
    -------
    float
        The number of rounds: 0 for one node, infinity if the distance never falls so far.

    Examples
    --------
    >>> from topologies import build_graph, mixing_matrix
    >>> mixing_time(mixing_matrix(build_graph("ring", 10), "metropolis_hastings"))
    34
    """
    schedule = as_schedule(source)
    return 0 if schedule.n == 1 else rounds_to(accuracy, consensus_rate(schedule))


def rounds_to(accuracy: float, rate: ConsensusRate) -> float:
    """Return the number of rounds, a multiple of tau, that reaches ``accuracy`` at this rate."""
    left = 1 - rate.p
    if left <= accuracy**2:
        return rate.tau
    if left >= 1 - NEGLIGIBLE_RATE:
        return math.inf
    return rate.tau * math.ceil(2 * math.log(accuracy) / math.log(left) * (1 - 1e-12))
