"""Two-state Markov chains as pure functions of the round, for nodes and edges that come and go."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Uniform = Callable[[int, NDArray[np.int64]], NDArray[np.float64]]
"""Maps a round, which may be below 1, and which of the chains, to numbers in [0, 1)."""


def states(rate: float, recovery: float, count: int, uniform: Uniform, k: int) -> NDArray[np.bool_]:
    """Return which of ``count`` stationary chains are there in round k.

    With the uniform number u of a round, what is there leaves where u < rate, and what is away
    comes back where u >= 1 - recovery. Going back from round k, the first round whose u has the
    same outcome for both decides, whatever came before (coupling from the past, Propp and Wilson
    1996), so no history is kept; it takes 1 / (rate + recovery) rounds in the mean, or the same for
    2 - rate - recovery where that is smaller. Rounds before the first are drawn as well, which is
    what makes the chain stationary from round 1.

    Parameters
    ----------
    rate : float
        The probability of leaving before a round, in [0, 1).
    recovery : float
        The probability of coming back, in (0, 1].
    count : int
        The number of chains.
    uniform : callable
        The numbers u of a round.
    k : int
        The round.

    Returns
    -------
    ndarray of bool, shape (count,)
        Whether each is there.

    Examples
    --------
    >>> states(0.0, 1.0, 2, lambda k, which: np.zeros(len(which)), k=1)
    array([ True,  True])
    """
    there = np.zeros(count, bool)
    undecided = np.arange(count)
    turned = np.zeros(count, bool)
    while len(undecided):
        u = uniform(k, undecided)
        leaves, returns = u < rate, u >= 1.0 - recovery
        # Both at once is a change of state whichever it was; neither is none.
        decided = leaves != returns
        there[undecided[decided]] = returns[decided] ^ turned[undecided[decided]]
        turned[undecided[leaves & returns]] ^= True
        undecided = undecided[~decided]
        k -= 1
    return there


def uniforms(seed: int, purpose: str, k: int, items: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return a number in [0, 1) for each item, a function of its arguments alone.

    Parameters
    ----------
    seed : int
        The seed.
    purpose : str
        What is drawn.
    k : int
        The round, which may be below 1.
    items : ndarray of int64
        Numbers of what is drawn for, at least 0.

    Returns
    -------
    ndarray of float64
        Of the shape of ``items``.
    """
    words = [seed, zlib.crc32(purpose.encode()), abs(k), int(k < 0)]
    base = np.random.SeedSequence(words).generate_state(1, np.uint64)
    z = base + (items.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    # The output function of SplitMix64 (Steele et al. 2014).
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return np.asarray((z >> np.uint64(11)) * 2.0**-53)
