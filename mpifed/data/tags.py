"""A generated problem with the shape of Stack Overflow's tag prediction (McMahan et al., TFF).

A sample is a question: the share of each word in a text, and the tags of the text. Only the shape
is taken from Stack Overflow: few words a text out of many, few tags out of hundreds, both with a
long tail, and clients with topics.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Gt
from scipy.sparse import csr_matrix

from mpifed.data import tag_layout
from mpifed.data.base import Dataset, Shards, Split, SplitName
from mpifed.data.generated import alike, make_shards, split_made
from mpifed.data.tag_layout import Sources, Test, Train, Validation
from mpifed.memory import check_memory
from mpifed.mpi.communicator import Communicator
from mpifed.random import stream

MOST_TAGS = 5
"""Tags of a question, at most."""

CHANCE = 0.4
"""1 + Binomial(MOST_TAGS - 1, CHANCE) tags each."""

SIGNATURE = 30
"""Words that go with a tag."""

ABOUT = 0.5
"""Share of words that are about one of the tags; the others are drawn from all words."""

BEYOND = 1.2
"""All words over those in the vocabulary; the rest is never counted."""


@dataclass(frozen=True)
class Language:
    """What all clients have in common.

    Attributes
    ----------
    topics : ndarray
        Shares of tags within each topic, float64 (topics, tags).
    signatures : ndarray
        Words that go with each tag, int64 (tags, ``SIGNATURE``).
    tag_words : ndarray
        Cumulated shares of the words of a signature, by rank, float64 (``SIGNATURE``,).
    any_words : ndarray
        Cumulated shares of all words, by rank, float64 (words,).
    """

    topics: np.ndarray
    signatures: np.ndarray
    tag_words: np.ndarray
    any_words: np.ndarray


@dataclass(frozen=True)
class Questions:
    """All samples of a source.

    Attributes
    ----------
    words : csr_matrix
        Inputs, float64 (samples, columns of a sample).
    tags : ndarray
        bool (samples, tags).
    """

    words: csr_matrix
    tags: np.ndarray


class Tags(Dataset):
    """Generated questions with tags, of the shape of Stack Overflow's (Gasanov et al. 2022).

    A sample counts each of the first ``vocabulary`` words over all words of the text, those beyond
    the vocabulary included, after a one if ``intercept``: (1 + vocabulary,). Its target says which
    of the ``tags`` it has. A text has 1 + Poisson(``words``) words, half of them about one of its
    tags. A source's topic is drawn by the seed, and it has its own taste, Dirichlet about the
    topic's tags. A source is a function of the seed and its number; nothing is sent.

    Parameters
    ----------
    vocabulary : int
        Number of words that are counted.
    tags : int
        Number of tags.
    topics : int
        Number of topics, to one of which each source belongs.
    words : float
        Mean length of a text.
    concentration : float
        How alike the sources of a topic are: the larger, the more.
    intercept : bool
        Whether a sample begins with a one.
    layout : {'natural', 'divided'}
        How samples lie over clients: each client a source, or ``sources`` sources cut into equal
        clients who share validation samples; see ``tag_layout.py``.
    sources : int
        Number of sources, for ``layout: divided``.
    n_train : int, optional
        Training samples of a client. None is 90 (``natural``) or 10 (``divided``).
    n_val : int, optional
        Validation samples of a client or, where divided, of a source. None is 110 or 100.
    n_test : int
        Test samples of a source.
    seed : int, optional
        Seed of the data set. None is the run's.
    """

    def __init__(
        self,
        n_clients: int,
        run_seed: int,
        communicator: Communicator,
        *,
        vocabulary: Annotated[int, Ge(1)] = 10000,
        tags: Annotated[int, Ge(1)] = 500,
        topics: Annotated[int, Ge(1)] = 10,
        words: Annotated[float, Ge(0)] = 20.0,
        concentration: Annotated[float, Gt(0)] = 20.0,
        intercept: bool = True,
        layout: tag_layout.Name = "natural",
        sources: Sources = 2,
        n_train: Train = None,
        n_val: Validation = None,
        n_test: Test = 300,
        seed: Annotated[int, Ge(0)] | None = None,
    ) -> None:
        self.seed: int = run_seed if seed is None else seed
        self.layout = tag_layout.layout(layout, n_clients, sources, n_train, n_val, n_test)
        _check_sizes(vocabulary, tags, topics, words, self.layout.samples)
        self.language = make_language(self.seed, vocabulary, tags, topics)
        self._intercept, self._vocabulary = intercept, vocabulary
        self._words, self._concentration = words, concentration
        counts = (self.layout.n_train, self.layout.n_val, self.layout.n_test)
        self.description = alike(
            "tags", (vocabulary + intercept,), tags, n_clients, counts, "multi_label"
        )
        # Workers of a source, and the splits of a client, follow each other.
        self.questions = functools.lru_cache(maxsize=1)(self._questions)

    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """Return the shards of ``client_ids``."""
        return make_shards(self.description, client_ids, dtype, self._make)

    def make_split(self, name: SplitName, client_ids: np.ndarray, dtype: torch.dtype) -> Split:
        """Return one split of ``client_ids``; see ``Dataset``."""
        return split_made(self.description, name, client_ids, dtype, self._make)

    def topic(self, source: int) -> int:
        """Return the topic of a source."""
        rng = stream(self.seed, "tags/topic", client=source)
        return int(rng.integers(len(self.language.topics)))

    def _make(self, client: int, split: str, n: int) -> tuple[np.ndarray, np.ndarray]:
        source = self.layout.source_of(client)
        questions = self.questions(source)
        rng = stream(self.seed, "tags/split", client=source)
        train, val, test = self.layout.split(questions.tags, client, rng)
        rows = {"train": train, "val": val, "test": test}[split]
        return questions.words[rows].toarray(), questions.tags[rows].astype(np.float64)

    def _questions(self, source: int) -> Questions:
        """All samples of a source, in the order in which they were asked."""
        rng = stream(self.seed, "tags/questions", client=source)
        n, language = self.layout.samples, self.language
        base = language.topics[self.topic(source)]
        taste = np.zeros(len(base))
        taste[base > 0] = rng.dirichlet(self._concentration * base[base > 0])
        tags = _draw_tags(rng, taste, n)
        lengths = 1 + rng.poisson(self._words, n)
        question = np.repeat(np.arange(n), lengths)
        words = _draw_words(rng, language, tags, question)
        # Words beyond the vocabulary count in the length only.
        known = words < self._vocabulary
        shares = (1 / lengths)[question[known]]
        columns = words[known] + self._intercept
        if self._intercept:
            shares = np.concatenate([np.ones(n), shares])
            columns = np.concatenate([np.zeros(n, np.int64), columns])
            question = np.concatenate([np.arange(n), question[known]])
        else:
            question = question[known]
        shape = (n, self._vocabulary + self._intercept)
        return Questions(csr_matrix((shares, (question, columns)), shape), tags)


def _check_sizes(vocabulary: int, tags: int, topics: int, words: float, samples: int) -> None:
    """Refuse a language, or the questions of one source, that memory cannot hold."""
    needed = {
        f"data.vocabulary is {vocabulary}, which": 24.0 * vocabulary,
        f"data.tags is {tags}, which with {topics} topics": 8.0 * tags * (topics + SIGNATURE),
        f"data.tags is {tags}, which for {samples} samples of a source": 24.0 * tags * samples,
        f"data.words is {words:g}, which for {samples} samples of a source": 48.0 * words * samples,
    }
    for what, size in needed.items():
        check_memory(size, what)


def make_language(seed: int, vocabulary: int, n_tags: int, n_topics: int) -> Language:
    """Return the language of ``seed``.

    Each topic prefers tags by Zipf's law, in a random order.

    Parameters
    ----------
    seed : int
        Seed of the language.
    vocabulary : int
        Words that are counted; there are ``BEYOND`` times as many.
    n_tags, n_topics : int
        Number of tags and of topics.
    """
    rng = stream(seed, "tags/language")
    wide = min(n_tags, max(2 * MOST_TAGS, 2 * n_tags // n_topics))
    topics = np.zeros((n_topics, n_tags))
    for shares in topics:
        shares[rng.permutation(n_tags)[:wide]] = _zipf(wide)
    signatures = rng.integers(vocabulary, size=(n_tags, SIGNATURE))
    words = np.cumsum(_zipf(int(np.ceil(BEYOND * vocabulary))))
    return Language(topics, signatures, np.cumsum(_zipf(SIGNATURE)), words)


def _zipf(n: int) -> np.ndarray:
    shares = 1 / np.arange(1, n + 1)
    return shares / shares.sum()


def _draw_tags(rng: np.random.Generator, taste: np.ndarray, n: int) -> np.ndarray:
    """1 to ``MOST_TAGS`` different tags a question: bool (n, tags)."""
    possible = np.flatnonzero(taste > 0)
    counts = np.minimum(1 + rng.binomial(MOST_TAGS - 1, CHANCE, n), len(possible))
    # The smallest of exponential times are a weighted sample without replacement.
    times = rng.exponential(size=(n, len(possible))) / taste[possible]
    ranks = times.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
    tags = np.zeros((n, len(taste)), bool)
    tags[:, possible] = ranks < counts[:, None]
    return tags


def _draw_words(
    rng: np.random.Generator, language: Language, tags: np.ndarray, question: np.ndarray
) -> np.ndarray:
    """A word for each entry of ``question``, the question it belongs to: int64, same shape."""
    words = np.searchsorted(language.any_words, rng.random(len(question)), side="right")
    words = np.minimum(words, len(language.any_words) - 1)
    which = (rng.random(len(question)) * tags.sum(axis=1)[question]).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(tags.sum(axis=1))])[question]
    tag = np.nonzero(tags)[1][starts + which]
    rank = np.searchsorted(language.tag_words, rng.random(len(question)), side="right")
    about = rng.random(len(question)) < ABOUT
    signature = language.signatures[tag, np.minimum(rank, SIGNATURE - 1)]
    return np.where(about, signature, words)
