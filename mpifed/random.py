"""One stream of random numbers per (seed, purpose, round, client).

Nothing here depends on the rank that asks, nor on what was asked before: a stream is a
counter-based generator whose key is a hash of its four names. ``stream`` gives a numpy
``Generator`` for draws in small numbers; ``shuffles`` orders the samples of many clients at once
and is the one that local training calls every round.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np

SERVER = -1
"""The client number of draws that belong to the server."""


def key(seed: int, purpose: str, round: int = 0, client: int = SERVER) -> int:
    """A 128-bit key for (seed, purpose, round, client)."""
    text = f"{int(seed)}/{purpose}/{int(round)}/{int(client)}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "little")


def stream(seed: int, purpose: str, round: int = 0, client: int = SERVER) -> np.random.Generator:
    """A generator of its own for (seed, purpose, round, client): Philox 4x64, keyed, counter 0."""
    return np.random.Generator(np.random.Philox(key=key(seed, purpose, round, client)))


def mix64(values: np.ndarray) -> np.ndarray:
    """The output function of SplitMix64 (Steele et al. 2014), elementwise on uint64."""
    shifted = values >> np.uint64(30)
    z = values ^ shifted
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= np.right_shift(z, np.uint64(27), out=shifted)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= np.right_shift(z, np.uint64(31), out=shifted)
    return z


_WEYL = np.uint64(0x9E3779B97F4A7C15)


def client_keys(seed: int, purpose: str, round: int, clients: np.ndarray) -> np.ndarray:
    """One 64-bit key per client, uint64, shape of ``clients``; vectorised over clients."""
    base = np.uint64(key(seed, purpose, round) & 0xFFFFFFFFFFFFFFFF)
    return mix64(base + (clients.astype(np.uint64) + np.uint64(1)) * _WEYL)


def uniforms(keys: np.ndarray, counters: np.ndarray) -> np.ndarray:
    """64 random bits for each (key, counter), uint64; broadcasts. SplitMix64 in counter mode."""
    return mix64(keys + (counters.astype(np.uint64) + np.uint64(1)) * _WEYL)


def rows_of_bits(keys: np.ndarray, size: int) -> np.ndarray:
    """``uniforms`` of every key (k,) at the counters 0 ... size - 1: uint64 (k, size)."""
    return mix64(keys[:, None] + _steps(size))


@lru_cache(maxsize=8)
def _steps(size: int) -> np.ndarray:
    steps = np.arange(1, size + 1, dtype=np.uint64) * _WEYL
    steps.flags.writeable = False
    return steps


def shuffles(keys: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """A random order of ``range(lengths[i])`` under ``keys[i]`` for every i, concatenated.

    ``keys`` uint64 and ``lengths`` int64 have shape (k,); the result is int64 of shape
    (lengths.sum(),). What row i becomes depends on ``keys[i]`` and ``lengths[i]`` alone.

    Each sample gets 32 random bits; sorting (row, bits, sample) as one packed integer shuffles all
    rows in one vectorised sort. Equal bits keep their order, a bias below length / 2**32.
    """
    starts = np.concatenate([[0], np.cumsum(lengths)])
    if starts[-1] == 0:
        return np.zeros(0, np.int64)
    sample_bits = max(1, int(lengths.max() - 1).bit_length())
    rows_at_once = 1 << max(0, 32 - sample_bits)
    parts = [
        _packed_sort(keys[lo : lo + rows_at_once], lengths[lo : lo + rows_at_once], sample_bits)
        for lo in range(0, len(keys), rows_at_once)
    ]
    return np.concatenate(parts)


def _packed_sort(keys: np.ndarray, lengths: np.ndarray, sample_bits: int) -> np.ndarray:
    starts = np.cumsum(lengths) - lengths
    row = np.repeat(np.arange(len(keys), dtype=np.uint64), lengths)
    sample = np.arange(lengths.sum(), dtype=np.uint64) - np.repeat(starts, lengths).astype(
        np.uint64
    )
    packed = uniforms(np.repeat(keys, lengths), sample) >> np.uint64(32)
    packed <<= np.uint64(sample_bits)
    packed |= row << np.uint64(32 + sample_bits)
    packed |= sample
    packed.sort()
    return (packed & np.uint64((1 << sample_bits) - 1)).astype(np.int64)
