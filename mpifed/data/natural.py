"""Every client one source of the data: a writer, a role, a drawer (the partition ``natural``)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from mpifed.data.dealing import FEWEST, MinSamples
from mpifed.errors import InputError

Choose = Literal["random", "first", "largest"]


def natural(
    owner: np.ndarray,
    n_clients: int,
    rng: np.random.Generator,
    *,
    min_samples: MinSamples = FEWEST,
    choose: Choose = "random",
) -> list[np.ndarray]:
    """Give each client all samples of one source.

    Sources below ``min_samples`` are left out, and so are those that are not chosen where there are
    more than clients. Clients have the order of their sources.

    Parameters
    ----------
    owner : ndarray
        The source of each sample, int64 (samples,), at least 0.
    n_clients : int
        Number of clients.
    rng : Generator
        Draws the sources.
    min_samples : int
        Fewest samples of a source that is taken.
    choose : {'random', 'first', 'largest'}
        Which sources are taken.

    Returns
    -------
    list of ndarray
        The samples of each client, int64, ascending.

    Raises
    ------
    InputError
        If there are fewer sources than clients.

    Examples
    --------
    >>> owner = np.array([4, 7, 4, 4, 9, 7])
    >>> [own.tolist() for own in natural(owner, 2, np.random.default_rng(0), min_samples=2)]
    [[0, 2, 3], [1, 5]]
    """
    sources = chosen(np.bincount(owner), n_clients, rng, min_samples, choose)
    by_source = np.argsort(owner, kind="stable")
    starts = np.searchsorted(owner[by_source], sources)
    ends = np.searchsorted(owner[by_source], sources, side="right")
    return [by_source[start:end] for start, end in zip(starts, ends, strict=True)]


def chosen(
    sizes: np.ndarray,
    n_clients: int,
    rng: np.random.Generator,
    min_samples: int,
    choose: Choose,
) -> np.ndarray:
    """Return the sources that become clients, int64 (n_clients,), ascending.

    Parameters
    ----------
    sizes : ndarray
        Samples of each source, int64 (sources,).
    n_clients, rng, min_samples, choose
        As for ``natural``.

    Raises
    ------
    InputError
        If fewer sources than clients have ``min_samples``.
    """
    enough = np.flatnonzero(sizes >= min_samples)
    if len(enough) < n_clients:
        raise InputError(
            f"clients is {n_clients}, but only {len(enough)} sources of the data (writers, roles, "
            f"...) have at least {min_samples} samples (data.min_samples)"
        )
    if choose == "random":
        enough = rng.permutation(enough)
    elif choose == "largest":
        enough = enough[np.argsort(-sizes[enough], kind="stable")]
    return np.sort(enough[:n_clients])
