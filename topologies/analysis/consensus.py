"""Consensus rates, spectra, communication cost and a simulation of gossip averaging."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from topologies.errors import TopologyError
from topologies.graphs.build import edge_array
from topologies.matrix import ACTIVE, MixingMatrix
from topologies.memory_limits import check_memory
from topologies.schedules.sequences import Drawn, LocalRounds, Schedule, as_matrix, as_schedule

Array = NDArray[np.float64]

DENSE_NODES = 2000
SAMPLES = 200

# A consensus rate p of at most this is rounding error: gossip does not converge.
NEGLIGIBLE_RATE = 1e-10

SAMPLED_ROUNDS = 50
MESSAGE_BYTES = 4_000_000


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
        backwards = [w.T for w in reversed(rounds)]

        def square(x: Array) -> Array:
            x = x.ravel()
            for w in rounds:
                x = w @ x
            x = x - x.mean()
            for w in backwards:
                x = w @ x
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


def rate_of(factor: float, tau: int = 1) -> ConsensusRate:
    """Return the rate of ``tau`` rounds whose ``contraction`` is ``factor``."""
    return ConsensusRate(max(0.0, 1 - factor**2), tau)


def consensus_rate(
    source: MixingMatrix | Schedule | Array, samples: int = SAMPLES
) -> ConsensusRate:
    """Return the (p, tau) of a matrix used in every round, or of a schedule.

    The rate is exact for periodic schedules, p = 1 - ||W_tau ... W_1 - 11'/n||_2^2, and for
    independent rounds with a known E[W'W], p = 1 - ||E[W'W] - 11'/n||_2. Otherwise E[W'W] is
    estimated by the mean over ``samples`` blocks of tau rounds. The norm of the mean is biased
    upwards, so the estimated p is conservative.

    Parameters
    ----------
    source : MixingMatrix, Schedule or array (n, n)
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
        return rate_of(contraction(block), schedule.period)
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


def mixing_time(source: MixingMatrix | Schedule | Array, accuracy: float = 1e-2) -> float:
    """Return how many rounds contract any distance from consensus to ``accuracy`` of it.

    For random schedules the root mean square distance is meant; for periodic ones the number is a
    multiple of the period.

    Parameters
    ----------
    source : MixingMatrix, Schedule or array (n, n)
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


def spectrum(matrix: MixingMatrix | Array) -> Array:
    """Return the eigenvalues of a symmetric W, otherwise its singular values.

    Parameters
    ----------
    matrix : MixingMatrix or array (n, n)
        The mixing matrix W.

    Returns
    -------
    ndarray of float64, shape (n,)
        The values in ascending order.

    Examples
    --------
    >>> from topologies import build_graph, mixing_matrix
    >>> spectrum(mixing_matrix(build_graph("complete", 3), "uniform")).round(12) + 0.0
    array([0., 0., 1.])
    """
    from scipy import linalg

    matrix = as_matrix(matrix)
    dense = matrix.to_dense()
    values = np.linalg.eigvalsh(dense) if matrix.symmetric else linalg.svdvals(dense)[::-1]
    return np.asarray(values, dtype=np.float64)


def slem(matrix: MixingMatrix | Array) -> float:
    """Return ||W - 11'/n||_2, the factor by which one round contracts in the worst case.

    Of a symmetric W this is the second largest eigenvalue modulus. Where columns do not sum to one
    it is ||(I - 11'/n) W||_2, the same worst-case contraction of the distance from consensus.

    Parameters
    ----------
    matrix : MixingMatrix or array (n, n)
        The mixing matrix W.

    Returns
    -------
    float
        The SLEM; 0 for one node.

    Raises
    ------
    TopologyError
        If Lanczos iterations do not converge on a matrix of more than 2000 nodes.

    Examples
    --------
    >>> from topologies import build_graph, mixing_matrix
    >>> round(slem(mixing_matrix(build_graph("ring", 4), "metropolis_hastings")), 12)
    0.333333333333
    """
    return contraction([as_matrix(matrix)])


def stationary_distribution(matrix: MixingMatrix | Array) -> Array:
    """Return pi with pi W = pi, float64 (n,), the weights of the mean to which gossip leads.

    ``TopologyError`` is raised if there are several, or more than 2000 nodes.
    """
    matrix = as_matrix(matrix)
    n = matrix.n
    if n > DENSE_NODES:
        raise TopologyError(f"the matrix has {n} nodes, but at most {DENSE_NODES} are solved for")
    pi = np.full(n, np.nan)
    with contextlib.suppress(np.linalg.LinAlgError):
        pi = np.linalg.solve(matrix.to_dense().T - np.eye(n) + 1, np.ones(n))
    if not np.abs(pi).max() <= 2:  # a distribution, up to rounding
        raise TopologyError("the nodes do not all hear each other: there is no one distribution")
    return pi


def weighted_slem(matrix: MixingMatrix | Array, sizes: Array | None = None) -> float:
    """Return ||W - 1 pi||, the worst factor of a round in the norm of unequal nodes.

    The norm is that of L2(s), ||x||^2 = sum_i s_i ||x_i||^2 (Liu et al. 2025, arXiv 2511.19513),
    and pi the stationary distribution. For reversible W with s = pi (``by_size``) it is the largest
    modulus of an eigenvalue but 1. For a doubly stochastic W and unequal s it is above that: the
    two compare the paper's strategies, weights in W and weights in the losses.

    Parameters
    ----------
    matrix : MixingMatrix
        The mixing matrix W, of at most 2000 nodes.
    sizes : ndarray, optional
        s, positive; None is pi.

    Examples
    --------
    >>> from topologies import build_graph, mixing_matrix
    >>> w = mixing_matrix(build_graph("complete", 3), "by_size", sizes=[1, 1, 4])
    >>> round(weighted_slem(w), 6)
    0.5
    """
    matrix = as_matrix(matrix)
    pi = stationary_distribution(matrix)
    root = np.sqrt(pi if sizes is None else np.asarray(sizes, float))
    return float(np.linalg.norm(root[:, None] * (matrix.to_dense() - pi) / root, 2))


def effective_neighbours(source: MixingMatrix | Schedule | Array, gamma: float = 0.9) -> float:
    """Return how many nodes' noise a node averages in a random walk with decay ``gamma``.

    Nodes update z <- W (sqrt(gamma) z + noise). The number is the stationary variance of a node
    without communication, 1 / (1 - gamma), divided by that with it: n for the complete graph, 1
    without any exchange. For symmetric W with eigenvalues l the latter is the mean of l^2 / (1 -
    gamma l^2) (Vogels, Hendrikx and Jaggi 2022, Beyond spectral gap, section 3). For schedules that
    are not static the covariance itself is iterated: over one period, or, if random, over ten times
    the rounds in which gamma^k falls below 1e-9.

    Parameters
    ----------
    source : MixingMatrix, Schedule or array (n, n)
        The matrix or schedule.
    gamma : float, default 0.9
        The decay, in (0, 1).

    Returns
    -------
    float
        The effective number of neighbours.

    Examples
    --------
    >>> from topologies import build_graph, mixing_matrix
    >>> round(effective_neighbours(mixing_matrix(build_graph("complete", 5), "uniform")), 6)
    5.0
    """
    schedule = as_schedule(source)
    if schedule.period == 1 and schedule.symmetric:
        squares = spectrum(schedule.matrix(1)) ** 2
        return float(1 / (1 - gamma) / np.mean(squares / (1 - gamma * squares)))
    forgetting = math.ceil(math.log(1e-9) / math.log(gamma))
    observed = schedule.period or 10 * forgetting
    covariance = np.zeros((schedule.n, schedule.n))
    variance = 0.0
    for k in range(1, forgetting + observed + 1):
        w = schedule.matrix(k).to_sparse()
        covariance = w @ (gamma * covariance + np.eye(schedule.n))
        covariance = (w @ covariance.T).T
        if k > forgetting:
            variance += covariance.trace() / schedule.n / observed
    return float(1 / (1 - gamma) / variance)


def diameter(graph: nx.Graph) -> float:
    """Return the largest number of hops between two nodes.

    Parameters
    ----------
    graph : networkx.Graph
        An undirected graph on 0 .. n-1.

    Returns
    -------
    float
        The diameter; infinity if the graph is disconnected.

    Examples
    --------
    >>> diameter(nx.cycle_graph(6))
    3.0
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import shortest_path

    n, edges = len(graph), edge_array(graph)
    adjacency = csr_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(n, n))
    longest = 0.0
    for start in range(0, n, 512):
        sources = range(start, min(start + 512, n))
        hops = shortest_path(adjacency, directed=False, unweighted=True, indices=sources)
        longest = max(longest, float(hops.max()))
    return longest


def sampled_rounds(schedule: Schedule) -> list[MixingMatrix]:
    """Return the matrices of one period, or of the first rounds of a schedule without one."""
    count = schedule.period or schedule.tau * math.ceil(SAMPLED_ROUNDS / schedule.tau)
    return [schedule.matrix(k) for k in range(1, count + 1)]


def messages_received(matrix: MixingMatrix | Array) -> NDArray[np.int64]:
    """Return from how many other nodes each node needs a message in a round with this W."""
    matrix = as_matrix(matrix)
    edges = matrix.edges[np.abs(matrix.weights) > ACTIVE]
    receivers = edges.ravel() if matrix.symmetric else edges[:, 0]
    return np.bincount(receivers, minlength=matrix.n)


@dataclass(frozen=True)
class Communication:
    """The messages that a schedule sends.

    Attributes
    ----------
    messages : float
        Messages per round of all nodes together, on average.
    most_messages : int
        The most messages received by one node in one of the rounds looked at.
    bytes : float
        Bytes per round of all nodes together, on average.
    rounds : float
        Rounds until the distance from consensus is ``accuracy`` of the first; may be infinite.
    bytes_to_accuracy : float
        Bytes sent in these rounds.
    """

    messages: float
    most_messages: int
    bytes: float
    rounds: float
    bytes_to_accuracy: float


def communication(
    source: MixingMatrix | Schedule | Array,
    *,
    message_bytes: float = MESSAGE_BYTES,
    accuracy: float = 1e-2,
    rate: ConsensusRate | None = None,
) -> Communication:
    """Return what gossip with a matrix or schedule sends.

    Edges of weight zero send nothing.

    Parameters
    ----------
    source : MixingMatrix, Schedule or array (n, n)
        The matrix or schedule.
    message_bytes : float, default MESSAGE_BYTES
        The size of a message in bytes.
    accuracy : float, default 0.01
        The relative distance from consensus to reach, in (0, 1).
    rate : ConsensusRate, optional
        The consensus rate of ``source``, if it is known already.

    Returns
    -------
    Communication
        Messages, bytes and rounds.
    """
    schedule = as_schedule(source)
    received = [messages_received(matrix) for matrix in sampled_rounds(schedule)]
    messages = float(np.mean([counts.sum() for counts in received]))
    rounds = 0.0
    if schedule.n > 1:
        rounds = rounds_to(accuracy, rate or consensus_rate(schedule))
    total = messages * message_bytes * rounds if messages else 0.0
    most = max(int(counts.max()) for counts in received)
    return Communication(messages, most, messages * message_bytes, rounds, total)


@dataclass(frozen=True)
class GossipRun:
    """The course of gossip on random vectors over the rounds 0 .. K.

    Attributes
    ----------
    distance : ndarray of float64, shape (K + 1,)
        Root mean square distance of the nodes from their mean, 1 in round 0.
    predicted : ndarray of float64, shape (K + 1,)
        The bound by the consensus rate, (1 - p)^(floor(k / tau) / 2).
    rate : ConsensusRate
        The consensus rate.
    contraction : float
        Factor per round on the distance, measured over the later half of the rounds above rounding
        error.
    drift : float
        The total movement of the mean, relative to the distance in round 0.
    """

    distance: Array
    predicted: Array
    rate: ConsensusRate
    contraction: float
    drift: float


def gossip(
    source: MixingMatrix | Schedule | Array, rounds: int = 100, *, width: int = 16, seed: int = 0
) -> GossipRun:
    """Average random normal vectors by x <- W^k x and measure the distance from consensus.

    Parameters
    ----------
    source : MixingMatrix, Schedule or array (n, n)
        The matrix or schedule.
    rounds : int, default 100
        The number of rounds.
    width : int, default 16
        The number of entries of each vector.
    seed : int, default 0
        The seed of the vectors.

    Returns
    -------
    GossipRun
        The measured and the predicted distances.

    Examples
    --------
    >>> from topologies import build_schedule
    >>> run = gossip(build_schedule("one_peer_exponential", 4), rounds=2)
    >>> bool(run.distance[-1] < 1e-15)
    True
    """
    schedule = as_schedule(source)
    check_memory(16 * (schedule.n * width + rounds), f"{rounds} rounds of {width} entries a node")
    rate = consensus_rate(schedule)
    x = np.random.default_rng(seed).standard_normal((schedule.n, width))
    start = x.mean(axis=0)
    distance = np.empty(rounds + 1)
    distance[0] = _distance(x)
    for k in range(1, rounds + 1):
        x = schedule.matrix(k).to_sparse() @ x
        distance[k] = _distance(x)
    scale = distance[0] or 1.0
    predicted = max(0.0, 1 - rate.p) ** (np.arange(rounds + 1) // rate.tau / 2)
    drift = float(np.sqrt(((x.mean(axis=0) - start) ** 2).mean()) / scale)
    relative = distance / scale
    return GossipRun(relative, predicted, rate, _late_contraction(relative, rate.tau), drift)


def _distance(x: Array) -> float:
    return float(np.sqrt(((x - x.mean(axis=0)) ** 2).mean()))


def _late_contraction(distance: Array, tau: int) -> float:
    """Return the factor per round over the later half of the rounds above rounding error."""
    above = np.flatnonzero(distance > 1e-12)
    last = int(above[-1]) if len(above) else 0
    blocks = last // tau
    if not blocks:
        return 0.0
    middle = blocks // 2
    ratio = distance[blocks * tau] / distance[middle * tau]
    return float(ratio ** (1 / ((blocks - middle) * tau)))
