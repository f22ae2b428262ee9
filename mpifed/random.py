"""One stream of random numbers for every (seed, purpose, round, client).

Nothing here depends on the rank that draws, nor on earlier draws: a stream is a counter-based
generator whose key is a hash of these four. ``stream`` returns a numpy ``Generator`` for a few
draws; ``shuffles`` orders the samples of many clients at once, as local training does every round.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence

SERVER = -1
"""The client number of draws that belong to the server."""

# Numbers that are shuffled at once.
BLOCK = 1 << 14

_WEYL = np.uint64(0x9E3779B97F4A7C15)
_HIGH = np.uint64(0xFFFFFFFF00000000)


def key(seed: int, purpose: str, round: int = 0, client: int = SERVER) -> int:
    """Hash (seed, purpose, round, client) to a 128-bit key.

    Parameters
    ----------
    seed : int
        The seed of the run.
    purpose : str
        What the numbers are for.
    round : int
        The round; 0 for draws before round 1.
    client : int
        The client, or ``SERVER``.

    Returns
    -------
    int
        The key, in [0, 2**128).
    """
    text = f"{int(seed)}/{purpose}/{int(round)}/{int(client)}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "little")


def stream(seed: int, purpose: str, round: int = 0, client: int = SERVER) -> np.random.Generator:
    """Return the generator of (seed, purpose, round, client): Philox 4x64 from counter 0.

    Parameters
    ----------
    seed, purpose, round, client
        As for :func:`key`.

    Returns
    -------
    numpy.random.Generator
        Always the same for the same arguments.

    Examples
    --------
    >>> stream(0, "noise", 3).random() == stream(0, "noise", 3).random()
    True
    >>> stream(0, "noise", 3).random() == stream(0, "noise", 4).random()
    False
    """
    return np.random.Generator(np.random.Philox(_Key(key(seed, purpose, round, client))))  # type: ignore[arg-type]


class _Key(ISeedSequence):
    """A key of Philox as a seed sequence.

    Given as ``key=``, numpy would ask the system for entropy besides, which takes most of the time.
    """

    def __init__(self, key: int) -> None:
        self._words = np.array([key & 0xFFFFFFFFFFFFFFFF, key >> 64], np.uint64)

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        return self._words


def mix64(values: np.ndarray) -> np.ndarray:
    """Apply the output function of SplitMix64 (Steele et al. 2014) elementwise.

    Parameters
    ----------
    values : ndarray of uint64
        Any shape.

    Returns
    -------
    ndarray of uint64
        The same shape.
    """
    shifted = values >> np.uint64(30)
    z = values ^ shifted
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= np.right_shift(z, np.uint64(27), out=shifted)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= np.right_shift(z, np.uint64(31), out=shifted)
    return z


def client_keys(seed: int, purpose: str, round: int, clients: np.ndarray) -> np.ndarray:
    """Return one 64-bit key per client.

    Parameters
    ----------
    seed, purpose, round
        As for :func:`key`.
    clients : ndarray of int
        Client numbers, of any shape.

    Returns
    -------
    ndarray of uint64
        Shape of ``clients``.
    """
    base = np.uint64(key(seed, purpose, round) & 0xFFFFFFFFFFFFFFFF)
    return mix64(base + (clients.astype(np.uint64) + np.uint64(1)) * _WEYL)


def bits_at(keys: np.ndarray, counters: np.ndarray) -> np.ndarray:
    """Return 64 random bits for each key and counter: SplitMix64 in counter mode.

    Parameters
    ----------
    keys : ndarray of uint64
        Keys, such as those of :func:`client_keys`.
    counters : ndarray of int
        Counters, at least 0; broadcast against ``keys``.

    Returns
    -------
    ndarray of uint64
        The broadcast shape.
    """
    return mix64(keys + (counters.astype(np.uint64) + np.uint64(1)) * _WEYL)


def rows_of_bits(keys: np.ndarray, size: int) -> np.ndarray:
    """Return ``bits_at`` of every key (k,) at the counters 0 ... size - 1, uint64 (k, size)."""
    return mix64(keys[:, None] + _steps(size))


@lru_cache(maxsize=8)
def _steps(size: int) -> np.ndarray:
    steps = np.arange(1, size + 1, dtype=np.uint64) * _WEYL
    steps.flags.writeable = False
    return steps


def shuffles(keys: np.ndarray, lengths: np.ndarray, starts: np.ndarray | None = None) -> np.ndarray:
    """Shuffle ``range(starts[i], starts[i] + lengths[i])`` under ``keys[i]`` for every i.

    Parameters
    ----------
    keys : ndarray of uint64, shape (k,)
        One key per row.
    lengths : ndarray of int64, shape (k,)
        The length of each row.
    starts : ndarray of int64, shape (k,), optional
        The least number of each row; None is 0.

    Returns
    -------
    ndarray of int64, shape (lengths.sum(),)
        The shuffled rows, concatenated. Row i depends on ``keys[i]`` and ``lengths[i]`` alone.

    Notes
    -----
    Each sample gets 32 random bits; sorting (bits, sample) as packed integers shuffles a row. Equal
    bits keep their order, a bias below length / 2**32.

    Examples
    --------
    >>> order = shuffles(client_keys(0, "batches", 1, np.arange(2)), np.array([3, 2]))
    >>> sorted(order[:3].tolist()), sorted(order[3:].tolist())
    ([0, 1, 2], [0, 1])
    """
    ends = np.cumsum(lengths)
    if not len(ends) or ends[-1] == 0:
        return np.zeros(0, np.int64)
    begins = ends - lengths
    shuffled = np.empty(ends[-1], np.uint64)
    # Some rows at a time, so that what is computed of them stays in the cache.
    blocks = np.flatnonzero(np.diff(begins // BLOCK, prepend=-1)).tolist()
    for first, last in zip(blocks, [*blocks[1:], len(keys)], strict=True):
        block = shuffled[begins[first] : ends[last - 1]]
        counts, offsets = lengths[first:last], begins[first:last] - begins[first]
        # (counter + 1) of sample j of a row is its position in the block + 1 - the row's offset.
        shifted = keys[first:last] - offsets.astype(np.uint64) * _WEYL
        positions = np.arange(len(block), dtype=np.uint64)
        np.bitwise_and(
            mix64(np.repeat(shifted, counts) + (positions + np.uint64(1)) * _WEYL), _HIGH, out=block
        )
        block |= positions
        # Row by row: a sort of all rows as one takes twice the time.
        for start, end in zip(offsets.tolist(), (offsets + counts).tolist(), strict=True):
            block[start:end].sort()
        block &= ~_HIGH
        moves = offsets if starts is None else offsets - starts[first:last]
        block -= np.repeat(moves.astype(np.uint64), counts)
    return shuffled.view(np.int64)
