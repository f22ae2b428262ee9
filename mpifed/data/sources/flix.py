"""Data of Gasanov et al. 2022: sine curves (sec. 6.2), and tags as on Stack Overflow (sec. 6.3),
generated or from a file.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt
from scipy.sparse import csr_matrix, hstack

from mpifed.data.sources.libsvm import dense_rows
from mpifed.dataset import (
    Communicator,
    GeneratedDataset,
    Pool,
    PooledDataset,
    Source,
    alike,
    archives,
    check_memory,
    key,
    partitions,
    stream,
)
from mpifed.errors import InputError

SMALLEST_AMPLITUDE = 0.1
# x is uniform in [-REACH, REACH].
REACH = 5.0

FAMILIES = 2

# Training samples of a client, and its validation samples.
DEFAULTS = {"natural": (90, 110), "divided": (10, 100)}

# Tags of a question, at most.
MOST_TAGS = 5

# 1 + Binomial(MOST_TAGS - 1, CHANCE) tags each.
CHANCE = 0.4

# Words that go with a tag.
SIGNATURE = 30

# Share of words that are about one of the tags; the others are drawn from all words.
ABOUT = 0.5

# All words over those in the vocabulary; the rest is never counted.
BEYOND = 1.2

# Least number of bytes that a column takes: an input or a tag of one sample, and its weight.
COLUMN_BYTES = 24

Name = Literal["natural", "divided"]
Sources = Annotated[int, Ge(1)]
Train = Annotated[int, Ge(1)] | None
Validation = Annotated[int, Ge(0)] | None
Test = Annotated[int, Ge(0)]


class Sine(GeneratedDataset):
    """Sine regression: clients of two families, y = a sin(x + b) (Gasanov et al. 2022).

    Parameters
    ----------
    split : int, optional
        Clients of the first family; the rest belong to the second. None is 30, or three tenths of
        at most 30 clients.
    amplitude_max : float
        Largest amplitude: 5 in the published code and in Finn et al. 2017, 0.5 in the paper's text.
    n_train : int
        Training samples of each client.
    n_val : int
        Validation samples of each client.
    n_test : int
        Test samples of each client.
    seed : int, optional
        Seed of the data set. None is the run's.
    """

    def __init__(
        self,
        n_clients: int,
        run_seed: int,
        communicator: Communicator,
        *,
        split: Annotated[int, Ge(0)] | None = None,
        amplitude_max: Annotated[float, Ge(SMALLEST_AMPLITUDE)] = 5.0,
        n_train: Annotated[int, Ge(1)] = 50,
        n_val: Annotated[int, Ge(0)] = 0,
        n_test: Annotated[int, Ge(0)] = 2000,
        seed: Annotated[int, Ge(0)] | None = None,
    ) -> None:
        if split is None:
            split = 30 if n_clients > 30 else 3 * n_clients // 10
        self.seed: int = run_seed if seed is None else seed
        self.split = split
        self.families = families(self.seed, amplitude_max)
        counts = (n_train, n_val, n_test)
        self.description = alike("sine", (1,), 1, n_clients, counts, "regression")

    def _make(self, client: int, split: str, n: int) -> tuple[np.ndarray, np.ndarray]:
        amplitude, phase = self.families[int(client >= self.split)]
        x = stream(self.seed, f"sine/{split}", client=client).uniform(-REACH, REACH, (n, 1))
        return x, amplitude * np.sin(x + phase)


def families(seed: int, amplitude_max: float) -> np.ndarray:
    """Return amplitude and phase (columns) of the two families (rows), float64 (2, 2)."""
    rng = stream(seed, "sine/families")
    amplitudes = rng.uniform(SMALLEST_AMPLITUDE, amplitude_max, FAMILIES)
    return np.column_stack([amplitudes, rng.uniform(0, 2 * math.pi, FAMILIES)])


@dataclass(frozen=True)
class Layout:
    """How many samples each client has, and how many clients (workers) a source has."""

    name: Name
    n_train: int
    n_val: int
    n_test: int
    workers: int

    @property
    def samples(self) -> int:
        """Samples that a source must have."""
        return self.n_train * self.workers + self.n_val + self.n_test

    def split(
        self, tags: np.ndarray, client: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return training, validation and test samples of ``client``."""
        order = np.arange(self.samples)
        if self.name == "natural":
            order = covering_first(tags[: self.samples], self.n_train, rng)
        first = client % self.workers * self.n_train
        start = self.workers * self.n_train
        val, test = np.split(order[start:], [self.n_val])
        return order[first : first + self.n_train], val, test[: self.n_test]


def layout_for(
    name: Name, n_clients: int, sources: int, n_train: int | None, n_val: int | None, n_test: int
) -> Layout:
    """Return the layout ``name`` for ``n_clients``."""
    train, validation = DEFAULTS[name]
    train = train if n_train is None else n_train
    validation = validation if n_val is None else n_val
    if name == "natural":
        return Layout(name, train, validation, n_test, 1)
    if n_clients % sources:
        raise InputError(f"data.sources is {sources}, which does not divide clients, {n_clients}")
    return Layout(name, train, validation, n_test, n_clients // sources)


def covering_first(tags: np.ndarray, n_first: int, rng: np.random.Generator) -> np.ndarray:
    """Return an order of samples, int64 (samples,), of which the first cover many tags."""
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
    others = np.setdiff1d(np.arange(len(tags)), chosen)
    return order[np.concatenate([np.array(chosen, np.int64), others])]


@dataclass(frozen=True)
class Language:
    """What all clients have in common."""

    topics: np.ndarray
    signatures: np.ndarray
    tag_words: np.ndarray
    any_words: np.ndarray


class OfSources:
    """The options that data of sources have in common.

    Parameters
    ----------
    layout : {'natural', 'divided'}
        How samples lie over clients: each client a source, or ``sources`` sources cut into equal
        clients who share validation samples.
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


class Tags(GeneratedDataset, OfSources):
    """Generated questions with tags, of the shape of Stack Overflow's (Gasanov et al. 2022).

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
        layout: Name = "natural",
        sources: Sources = 2,
        n_train: Train = None,
        n_val: Validation = None,
        n_test: Test = 300,
        seed: Annotated[int, Ge(0)] | None = None,
    ) -> None:
        self.seed: int = run_seed if seed is None else seed
        self.layout = layout_for(layout, n_clients, sources, n_train, n_val, n_test)
        self.language = make_language(self.seed, vocabulary, tags, topics)
        self._intercept, self._vocabulary = intercept, vocabulary
        self._words, self._concentration = words, concentration
        counts = (self.layout.n_train, self.layout.n_val, self.layout.n_test)
        self.description = alike(
            "tags", (vocabulary + intercept,), tags, n_clients, counts, "multi_label"
        )
        # Workers of a source, and the splits of a client, follow each other.
        self.questions = functools.lru_cache(maxsize=1)(self._questions)

    def topic(self, source: int) -> int:
        """Return the topic of a source."""
        rng = stream(self.seed, "tags/topic", client=source)
        return int(rng.integers(len(self.language.topics)))

    def _make(self, client: int, split: str, n: int) -> tuple[np.ndarray, np.ndarray]:
        source = client // self.layout.workers
        words, tags = self.questions(source)
        rng = stream(self.seed, "tags/split", client=source)
        train, val, test = self.layout.split(tags, client, rng)
        rows = {"train": train, "val": val, "test": test}[split]
        return words[rows].toarray(), tags[rows].astype(np.float64)

    def _questions(self, source: int) -> tuple[csr_matrix, np.ndarray]:
        """Words and tags of all samples of a source, in the order in which they were asked."""
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
        counts_in = words < self._vocabulary
        rows, columns, shares = (
            question[counts_in],
            words[counts_in],
            (1 / lengths)[question[counts_in]],
        )
        counted = csr_matrix((shares, (rows, columns)), (n, self._vocabulary))
        return hstack([np.ones((n, int(self._intercept))), counted], "csr"), tags


def make_language(seed: int, vocabulary: int, n_tags: int, n_topics: int) -> Language:
    """Return the language of ``seed``."""
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
    is_about_tag = rng.random(len(question)) < ABOUT
    signature = language.signatures[tag, np.minimum(rank, SIGNATURE - 1)]
    return np.where(is_about_tag, signature, words)


@dataclass(frozen=True)
class Tagged:
    """What is in a file of tagged samples."""

    x: csr_matrix
    tags: csr_matrix
    owner: np.ndarray
    names: np.ndarray
    held_out: np.ndarray
    embeddings: np.ndarray | None


def parse(path: Path) -> Tagged:
    """Return what is in the file ``path``; ``TagsFile`` describes the format."""
    with archives.opened_npz(path) as arrays:
        names, owner = np.unique(_array(arrays, "client", "iu", 1), return_inverse=True)
        tags = _rows(path, arrays, "y", None, "y_tags")
        tags.data[:] = 1  # a tag that is listed twice is a tag
        if "x" in arrays:
            x = csr_matrix(_array(arrays, "x", "biuf", 2).astype(np.float64))
        else:
            x = _rows(path, arrays, "x", _array(arrays, "x_data", "biuf", 1), "x_features")
        held_out, embeddings = np.zeros(len(owner), bool), None
        if "held_out" in arrays:
            held_out = _array(arrays, "held_out", "biu", 1).astype(bool)
        if "embeddings" in arrays:
            embeddings = _array(arrays, "embeddings", "biuf", 2).astype(np.float64)
            if len(embeddings) != len(names) or not np.isfinite(embeddings).all():
                raise ValueError(f"embeddings are not {len(names)} rows of finite numbers")
        if not 0 < len(owner) == x.shape[0] == tags.shape[0] == len(held_out):
            raise ValueError(
                f"it has {len(owner)} samples in client, {x.shape[0]} in x, {tags.shape[0]} in y "
                f"and {len(held_out)} in held_out"
            )
        if not np.isfinite(x.data).all():
            raise ValueError("x has a value that is not finite")
    return Tagged(x, tags, owner.reshape(-1), names, held_out, embeddings)


def _rows(
    path: Path, arrays: Mapping[str, Any], name: str, data: np.ndarray | None, width: str
) -> csr_matrix:
    """Sparse rows; scipy checks that they fit together."""
    indices = _array(arrays, f"{name}_indices", "iu", 1).astype(np.int64)
    indptr = _array(arrays, f"{name}_indptr", "iu", 1).astype(np.int64)
    columns = int(_array(arrays, width, "iu", 0))
    check_memory(
        COLUMN_BYTES * columns, f"data.path is '{path}', whose {width} is {columns}, which"
    )
    values = np.ones(len(indices)) if data is None else data.astype(np.float64)
    if not len(indptr) or np.any(np.diff(indptr) < 0) or indptr[-1] != len(indices) or columns < 1:
        raise ValueError(f"{name}_indptr must begin with 0, never fall and end with all indices")
    rows = csr_matrix((values, indices, indptr), (len(indptr) - 1, columns))
    rows.check_format()
    rows.sum_duplicates()
    return rows


def _array(arrays: Mapping[str, Any], name: str, kinds: str, dimensions: int) -> np.ndarray:
    array = arrays[name] if name in arrays else np.empty(0, object)
    if array.dtype.kind not in kinds or array.ndim != dimensions or 0 in array.shape[1:]:
        words = "real" if "f" in kinds else "whole"
        raise ValueError(
            f"its array '{name}' is {array.dtype} of shape {array.shape}, not {words} numbers in "
            f"{dimensions} dimensions"
        )
    return np.asarray(array)


def tf_idf(tagged: Tagged) -> csr_matrix:
    """Return the TF-IDF of each source: float64 (sources, features), rows of length 1."""
    from sklearn.feature_extraction.text import TfidfTransformer

    which = (np.ones(len(tagged.owner)), (tagged.owner, np.arange(len(tagged.owner))))
    sums = csr_matrix(which, (len(tagged.names), len(tagged.owner))) @ tagged.x
    sums.eliminate_zeros()
    return TfidfTransformer().fit_transform(sums)


class TagsFile(PooledDataset, OfSources):
    """A user's own samples with tags, as Stack Overflow's (Gasanov et al. 2022, sec. 6.3).

    Parameters
    ----------
    path : str
        The `.npz` file, or its name in ``$MPIFED_DATA/tags``.
    choose : {'kmeans', 'first', 'listed'}
        Which sources are taken: those of one cluster, the first ones, or those of ``listed``.
    listed : list of int, optional
        Numbers of the sources, as experiment 1a has two, for ``choose: listed``.
    kmeans_clusters : int
        Number of clusters, for ``choose: kmeans``.
    kmeans_starts : int
        Times that k-means begins anew.
    cluster : int
        Which cluster is taken; 0 is the one with most sources.
    intercept : bool
        Whether a column of ones comes before the others.
    """

    def __init__(
        self,
        n_clients: int,
        run_seed: int,
        communicator: Communicator,
        *,
        path: str,
        choose: Literal["kmeans", "first", "listed"] = "kmeans",
        listed: list[int] | None = None,
        kmeans_clusters: Annotated[int, Ge(1)] = 10,
        kmeans_starts: Annotated[int, Ge(1)] = 100,
        cluster: Annotated[int, Ge(0)] = 0,
        intercept: bool = True,
        layout: Name = "natural",
        sources: Sources = 2,
        n_train: Train = None,
        n_val: Validation = None,
        n_test: Test = 300,
        seed: Annotated[int, Ge(0)] | None = None,
    ) -> None:
        self.seed: int = run_seed if seed is None else seed
        self.layout = layout_for(layout, n_clients, sources, n_train, n_val, n_test)
        n_sources = n_clients // self.layout.workers

        def read() -> Source:
            file = archives.located(path, "tags")
            tagged = parse(file)
            rows = usable_rows(tagged, self.layout)
            if choose == "listed":
                chosen = _listed(tagged, rows, listed or [], n_sources)
            elif choose == "first":
                chosen = np.array(sorted(rows), np.int64)
            else:
                number = key(self.seed, "tags/kmeans") % 2**32
                clusters = sources_by_kmeans(tagged, rows, kmeans_clusters, kmeans_starts, number)
                chosen = clusters[cluster] if cluster < len(clusters) else np.zeros(0, np.int64)
            if len(chosen) < n_sources:
                raise InputError(
                    f"clients is {n_clients}, which asks for {n_sources} sources, but data.path "
                    f"'{file}' has {len(chosen)} of at least {self.layout.samples} samples to "
                    "choose from"
                )
            return self._deal(tagged, [rows[int(each)] for each in chosen[:n_sources]], intercept)

        super().__init__(read, {}, n_clients, run_seed, communicator, seed=seed)

    def _deal(self, tagged: Tagged, rows: list[np.ndarray], intercept: bool) -> Source:
        """Take the samples of the sources that were chosen, and deal them to the clients."""
        selected = np.concatenate(rows)
        n_tags = tagged.tags.shape[1]
        x, tags = tagged.x[selected], tagged.tags[selected].toarray().astype(bool)
        starts = np.cumsum([0, *map(len, rows)])
        parts = []
        for client in range(len(rows) * self.layout.workers):
            source = client // self.layout.workers
            rng = stream(self.seed, "tags/split", client=source)
            of_source = tags[starts[source] : starts[source + 1]]
            train, val, test = (
                starts[source] + r for r in self.layout.split(of_source, client, rng)
            )
            parts.append((train, val, test))
        pool = Pool(
            *("tags_file", tags.astype(np.uint8), n_tags, (x.shape[1] + intercept,), "float64"),
            task="multi_label",
        )
        return Source(pool, lambda: dense_rows(x, intercept), shard_rows=parts)


def usable_rows(tagged: Tagged, layout: Layout) -> dict[int, np.ndarray]:
    """Return the samples that ``layout`` takes of each source that has enough."""
    usable = {}
    n_train = layout.n_train * layout.workers
    for source, samples in enumerate(partitions.grouped(tagged.owner, len(tagged.names))):
        if layout.name == "divided" and tagged.held_out.any():
            held = tagged.held_out[samples]
            train = samples[~held][:n_train]
            samples = (
                np.concatenate([train, samples[held]]) if len(train) == n_train else samples[:0]
            )
        if len(samples) >= layout.samples:
            usable[source] = samples[: layout.samples]
    return usable


def _listed(
    tagged: Tagged, rows: dict[int, np.ndarray], listed: list[int], n_sources: int
) -> np.ndarray:
    positions = {int(name): position for position, name in enumerate(tagged.names)}
    usable = [name for name in set(listed) if positions.get(name) in rows]
    if not len(usable) == len(listed) == n_sources:
        raise InputError(
            f"data.listed is {listed}; it must be {n_sources} different sources with enough samples"
        )
    return np.array([positions[name] for name in listed], np.int64)


def sources_by_kmeans(
    tagged: Tagged, rows: dict[int, np.ndarray], n_clusters: int, n_starts: int, seed: int
) -> list[np.ndarray]:
    """Return the usable sources of each cluster, ascending; clusters with most of them
    come first.
    """
    # scikit-learn takes seconds to import, which only the rank that reads has to spend.
    from sklearn.cluster import KMeans

    points = tf_idf(tagged) if tagged.embeddings is None else tagged.embeddings
    n_clusters = min(n_clusters, points.shape[0])
    owner = KMeans(n_clusters, n_init=n_starts, random_state=seed).fit_predict(points)
    usable = np.array(sorted(rows), np.int64)
    clusters = [usable[owner[usable] == cluster] for cluster in range(n_clusters)]
    return sorted(clusters, key=len, reverse=True)
