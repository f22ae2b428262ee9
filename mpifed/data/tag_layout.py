"""How samples with tags are laid out over clients (Gasanov et al. 2022, sec. 6.3).

``natural`` (experiment 1b): every source of samples, a user of Stack Overflow, is one client.
``divided`` (experiment 1a): few sources, the training samples of each cut into equal runs, one for
each of its workers, who share the source's validation and test samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge

from mpifed.errors import InputError

Name = Literal["natural", "divided"]
Sources = Annotated[int, Ge(1)]
Train = Annotated[int, Ge(1)] | None
Validation = Annotated[int, Ge(0)] | None
Test = Annotated[int, Ge(0)]

DEFAULTS = {"natural": (90, 110), "divided": (10, 100)}
"""Training samples of a client, and its validation samples."""


@dataclass(frozen=True)
class Layout:
    """How many samples each client has, and how many clients (workers) a source has.

    Attributes
    ----------
    name : {'natural', 'divided'}
        The kind of layout.
    n_train : int
        Training samples of a client.
    n_val : int
        Validation samples of a client or, where divided, of a source.
    n_test : int
        Test samples of a source.
    workers : int
        Clients of a source; 1 for ``natural``.
    """

    name: Name
    n_train: int
    n_val: int
    n_test: int
    workers: int

    @property
    def samples(self) -> int:
        """Samples that a source must have."""
        return self.n_train * self.workers + self.n_val + self.n_test

    def source_of(self, client: int) -> int:
        """Return the source to which ``client`` belongs, counted from 0."""
        return client // self.workers

    def split(
        self, tags: np.ndarray, client: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return training, validation and test samples of ``client``.

        They are positions among the samples of its source, int64. ``natural`` takes samples for
        training that cover the source's tags, then any; the rest is dealt at random. ``divided``
        keeps the order: the workers' runs, then validation, then test.

        Parameters
        ----------
        tags : ndarray
            The tags of its source's samples, bool (samples, tags).
        client : int
            Number of the client.
        rng : Generator
            Draws of the source, the same for all its clients.
        """
        if self.name == "natural":
            order = covering_first(tags[: self.samples], self.n_train, rng)
            return self._cut(order, order[: self.n_train], self.n_train)
        first = client % self.workers * self.n_train
        every = np.arange(self.samples)
        own = every[first : first + self.n_train]
        return self._cut(every, own, self.n_train * self.workers)

    def _cut(
        self, order: np.ndarray, own: np.ndarray, start: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        middle = start + self.n_val
        return own, order[start:middle], order[middle : middle + self.n_test]


def layout(
    name: Name, n_clients: int, sources: int, n_train: int | None, n_val: int | None, n_test: int
) -> Layout:
    """Return the layout ``name`` for ``n_clients``.

    Parameters
    ----------
    name : {'natural', 'divided'}
        The kind of layout.
    n_clients : int
        Number of clients.
    sources : int
        Number of sources, for ``divided``.
    n_train, n_val : int or None
        As in ``Layout``; None is the paper's number.
    n_test : int
        Test samples of a source.

    Raises
    ------
    InputError
        If ``sources`` does not divide ``n_clients``, for ``divided``.
    """
    train, validation = DEFAULTS[name]
    workers = 1
    if name == "divided":
        if n_clients % sources:
            raise InputError(
                f"data.sources is {sources}, which does not divide clients, {n_clients}"
            )
        workers = n_clients // sources
    return Layout(
        name,
        train if n_train is None else n_train,
        validation if n_val is None else n_val,
        n_test,
        workers,
    )


def covering_first(tags: np.ndarray, n_first: int, rng: np.random.Generator) -> np.ndarray:
    """Return an order of samples, int64 (samples,), of which the first cover many tags.

    Each next sample is the one with most tags that are new, ties by a random order (a greedy set
    cover). When no tag is new any more, or ``n_first`` samples are chosen, all others follow in
    random order.

    Parameters
    ----------
    tags : ndarray
        bool (samples, tags).
    n_first : int
        Samples that are chosen to cover tags, at most.
    rng : Generator
        Draws the random order.

    Examples
    --------
    >>> tags = np.array([[True, False, False], [True, True, True]])
    >>> covering_first(tags, 1, np.random.default_rng(0)).tolist()
    [1, 0]
    """
    order = rng.permutation(len(tags))
    shuffled = tags[order].astype(np.int64)
    new = np.ones(tags.shape[1], bool)
    chosen: list[int] = []
    while len(chosen) < min(n_first, len(tags)):
        gains = shuffled[:, new].sum(axis=1)
        best = int(gains.argmax())
        if gains[best] == 0:
            break
        chosen.append(best)
        new &= shuffled[best] == 0
    rest = np.setdiff1d(np.arange(len(tags)), chosen)
    return order[np.concatenate([np.array(chosen, np.int64), rest])]
