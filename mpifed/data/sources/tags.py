"""A generated problem with the shape of Stack Overflow's tag prediction (McMahan et al., TFF). How
samples with tags are laid out over clients (Gasanov et al. 2022, sec. 6.3).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt
from scipy.sparse import csr_matrix, diags

from mpifed.data.archives import located
from mpifed.data.base import Dataset, Shards, Split, SplitName
from mpifed.data.delivery import agreed
from mpifed.data.generated import alike, make_shards, split_made
from mpifed.data.partitioned import PIECE, Pool, describe, load_pooled
from mpifed.errors import InputError, one_line
from mpifed.io.memory import check_memory
from mpifed.mpi.communicator import Communicator
from mpifed.random import key, stream
from topologies.inputs import check_archive

Name = Literal["natural", "divided"]
Sources = Annotated[int, Ge(1)]
Train = Annotated[int, Ge(1)] | None
Validation = Annotated[int, Ge(0)] | None
Test = Annotated[int, Ge(0)]

# Training samples of a client, and its validation samples.
DEFAULTS = {"natural": (90, 110), "divided": (10, 100)}


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

    def source_of(self, client: int) -> int:
        """Return the source to which ``client`` belongs, counted from 0."""
        return client // self.workers

    def split(
        self, tags: np.ndarray, client: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return training, validation and test samples of ``client``."""
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


def made_layout(
    name: Name, n_clients: int, sources: int, n_train: int | None, n_val: int | None, n_test: int
) -> Layout:
    """Return the layout ``name`` for ``n_clients``."""
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
    rest = np.setdiff1d(np.arange(len(tags)), chosen)
    return order[np.concatenate([np.array(chosen, np.int64), rest])]


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


@dataclass(frozen=True)
class Language:
    """What all clients have in common."""

    topics: np.ndarray
    signatures: np.ndarray
    tag_words: np.ndarray
    any_words: np.ndarray


@dataclass(frozen=True)
class Questions:
    """All samples of a source."""

    words: csr_matrix
    tags: np.ndarray


class Tags(Dataset):
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
        layout: Name = "natural",
        sources: Sources = 2,
        n_train: Train = None,
        n_val: Validation = None,
        n_test: Test = 300,
        seed: Annotated[int, Ge(0)] | None = None,
    ) -> None:
        self.seed: int = run_seed if seed is None else seed
        self.layout = made_layout(layout, n_clients, sources, n_train, n_val, n_test)
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
    about = rng.random(len(question)) < ABOUT
    signature = language.signatures[tag, np.minimum(rank, SIGNATURE - 1)]
    return np.where(about, signature, words)


# Least number of bytes that a column takes: an input or a tag of one sample, and its weight.
COLUMN_BYTES = 24


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
    try:
        check_archive(path)
        with np.load(path, allow_pickle=False) as file:
            return _Reading(file, path).tagged()
    except InputError:
        raise
    except Exception as error:  # zipfile, its decompressors, tokenize and numpy each have their own
        reason = one_line(getattr(error, "strerror", None) or str(error), 120)
        raise InputError(
            f"data.path is '{path}', which cannot be read as an .npz file ({reason})"
        ) from error


@dataclass(frozen=True)
class _Reading:
    file: Any
    path: Path

    def tagged(self) -> Tagged:
        client = self._array("client", "biu", 1)
        if len(client) == 0:
            raise self._refusal("it holds no sample")
        if client.max() > np.iinfo(np.int64).max:
            raise self._refusal(f"client has {client.max()}, which does not fit into int64")
        names, owner = np.unique(client.astype(np.int64), return_inverse=True)
        if "x" in self.file:
            dense = self._array("x", "biuf", 2).astype(np.float64)
            if dense.shape[1] == 0:
                raise self._refusal("x has no column")
            x = csr_matrix(dense)
        else:
            data = self._array("x_data", "biuf", 1).astype(np.float64)
            x = self._rows("x", data, "x_features")
        tags = self._rows("y", None, "y_tags")
        tags.data[:] = 1  # a tag that is listed twice is a tag
        for name, found in (("x", x.shape[0]), ("y", tags.shape[0])):
            if found != len(client):
                raise self._refusal(f"{name} has {found} samples, but client {len(client)}")
        if not np.isfinite(x.data).all():
            raise self._refusal("x has a value that is not finite")
        held_out = np.zeros(len(client), bool)
        if "held_out" in self.file:
            held_out = self._array("held_out", "biu", 1).astype(bool)
        embeddings = None
        if "embeddings" in self.file:
            embeddings = self._array("embeddings", "biuf", 2).astype(np.float64)
            fits = len(embeddings) == len(names) and embeddings.shape[1] > 0
            if not (fits and np.isfinite(embeddings).all()):
                raise self._refusal(
                    f"embeddings has {len(embeddings)} rows for {len(names)} sources, no column, "
                    "or a value that is not finite"
                )
        if len(held_out) != len(client):
            raise self._refusal(f"held_out has {len(held_out)} entries, client {len(client)}")
        return Tagged(x, tags, owner.reshape(-1), names, held_out, embeddings)

    def _rows(self, name: str, data: np.ndarray | None, width: str) -> csr_matrix:
        indices = self._array(f"{name}_indices", "iu", 1).astype(np.int64)
        indptr = self._array(f"{name}_indptr", "iu", 1).astype(np.int64)
        columns = int(self._array(width, "iu", 0))
        values = np.ones(len(indices)) if data is None else data
        # Their differences might not fit into int64.
        if len(indptr) < 1 or indptr[0] != 0 or np.any(indptr[1:] < indptr[:-1]):
            raise self._refusal(f"{name}_indptr must begin with 0 and never fall")
        if not len(values) == len(indices) == indptr[-1]:
            raise self._refusal(
                f"{name}_indptr ends at {indptr[-1]}, but there are {len(indices)} indices and "
                f"{len(values)} values"
            )
        if columns < 1 or (len(indices) and not 0 <= indices.min() <= indices.max() < columns):
            raise self._refusal(f"{name}_indices is not among 0 .. {width} - 1 = {columns - 1}")
        check_memory(
            COLUMN_BYTES * columns, f"data.path is '{self.path}', whose {width} is {columns}, which"
        )
        rows = csr_matrix((values, indices, indptr), (len(indptr) - 1, columns))
        rows.sum_duplicates()
        return rows

    def _array(self, name: str, kinds: str, dimensions: int) -> np.ndarray:
        if name not in self.file:
            raise self._refusal(f"it has no array '{name}'")
        array = self.file[name]
        if not isinstance(array, np.ndarray):
            raise self._refusal(f"'{name}' is not stored as an array")
        if array.dtype.kind not in kinds or array.ndim != dimensions:
            words = "real" if "f" in kinds else "whole"
            raise self._refusal(
                f"{name} is {array.dtype} of shape {array.shape}, not {words} numbers in "
                f"{dimensions} dimensions"
            )
        return array

    def _refusal(self, what: str) -> InputError:
        return InputError(f"data.path is '{self.path}', which is not a file of tags: {what}")


def tf_idf(tagged: Tagged) -> csr_matrix:
    """Return the TF-IDF of each source: float64 (sources, features), rows of length 1."""
    n = len(tagged.names)
    which = (np.ones(len(tagged.owner)), (tagged.owner, np.arange(len(tagged.owner))))
    sums = csr_matrix(which, (n, len(tagged.owner))) @ tagged.x
    sums.eliminate_zeros()
    weights = np.log((1 + n) / (1 + np.bincount(sums.indices, minlength=sums.shape[1]))) + 1
    weighted = sums @ diags(weights)
    norms = np.sqrt(np.asarray(weighted.multiply(weighted).sum(axis=1)).reshape(-1))
    return csr_matrix(diags(1 / np.where(norms > 0, norms, 1)) @ weighted)


@dataclass(frozen=True)
class Explicit:
    """Clients whose samples are listed, split by split; see ``pooled.Dealt``."""

    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]]

    def counts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        sizes = np.array([[len(rows) for rows in part] for part in self.parts], np.int64)
        return sizes[:, 0], sizes[:, 1], sizes[:, 2]

    def split(self, client: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.parts[client]


class TagsFile(Dataset):
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
        self.layout = made_layout(layout, n_clients, sources, n_train, n_val, n_test)
        self._intercept = intercept
        self._communicator = communicator
        self._x: csr_matrix | None = None
        n_sources = n_clients // self.layout.workers

        def read() -> tuple[Pool, Explicit]:
            file = located(path, "tags")
            tagged = parse(file)
            rows = usable_rows(tagged, self.layout)
            if choose == "listed":
                chosen = _listed(tagged, rows, listed or [], n_sources)
            elif choose == "first":
                chosen = np.array(sorted(rows), np.int64)
            else:
                number = key(self.seed, "tags/kmeans") % 2**32
                clusters = sources_by_kmeans(tagged, rows, kmeans_clusters, kmeans_starts, number)
                if cluster >= len(clusters):
                    raise InputError(
                        f"data.cluster is {cluster}; it must be below {len(clusters)}, the "
                        "number of clusters"
                    )
                chosen = clusters[cluster]
            if len(chosen) < n_sources:
                raise InputError(
                    f"clients is {n_clients}, which asks for {n_sources} sources, but data.path "
                    f"'{file}' has {len(chosen)} of at least {self.layout.samples} samples to "
                    "choose from"
                )
            return self._deal(tagged, [rows[int(source)] for source in chosen[:n_sources]])

        self._pool, self._dealt = agreed(communicator, read)
        self.description = describe(self._pool, self._dealt)

    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """Return the shards of ``client_ids``. Collective."""
        return load_pooled(
            self._pool, self._dealt, self._pieces, client_ids, dtype, self._communicator
        )

    def _deal(self, tagged: Tagged, rows: list[np.ndarray]) -> tuple[Pool, Explicit]:
        """Keeps the samples of the sources that were chosen, and deals them to the clients."""
        kept = np.concatenate(rows)
        n_tags = tagged.tags.shape[1]
        check_memory(10.0 * len(kept) * n_tags, f"data.path: {len(kept)} samples of {n_tags} tags")
        self._x = tagged.x[kept]
        tags = tagged.tags[kept].toarray().astype(bool)
        starts = np.cumsum([0, *map(len, rows)])
        parts = []
        for client in range(len(rows) * self.layout.workers):
            source = self.layout.source_of(client)
            rng = stream(self.seed, "tags/split", client=source)
            own = tags[starts[source] : starts[source + 1]]
            train, val, test = (starts[source] + r for r in self.layout.split(own, client, rng))
            parts.append((train, val, test))
        width = tagged.x.shape[1] + self._intercept
        pool = Pool(
            "tags_file",
            tags.astype(np.uint8),
            tags.shape[1],
            (width,),
            "float64",
            task="multi_label",
        )
        return pool, Explicit(parts)

    def _pieces(self) -> Iterator[np.ndarray]:
        assert self._x is not None
        for start in range(0, self._x.shape[0], PIECE):
            dense = self._x[start : start + PIECE].toarray()
            if self._intercept:
                dense = np.column_stack([np.ones(len(dense)), dense])
            yield dense


def usable_rows(tagged: Tagged, layout: Layout) -> dict[int, np.ndarray]:
    """Return the samples that ``layout`` takes of each source that has enough."""
    order = np.argsort(tagged.owner, kind="stable")
    starts = np.searchsorted(tagged.owner[order], np.arange(len(tagged.names) + 1))
    found = {}
    for source in range(len(tagged.names)):
        own = order[starts[source] : starts[source + 1]]
        if layout.name == "divided" and tagged.held_out.any():
            held = tagged.held_out[own]
            n_train = layout.n_train * layout.workers
            train, rest = own[~held][:n_train], own[held][: layout.samples - n_train]
            own = np.concatenate([train, rest]) if len(train) == n_train else own[:0]
        if len(own) >= layout.samples:
            found[source] = own[: layout.samples]
    return found


def _listed(
    tagged: Tagged, rows: dict[int, np.ndarray], listed: list[int], n_sources: int
) -> np.ndarray:
    if len(listed) != n_sources or len(set(listed)) != n_sources:
        raise InputError(f"data.listed is {listed}; it must be {n_sources} different sources")
    positions = {int(name): position for position, name in enumerate(tagged.names)}
    for name in listed:
        if positions.get(name) not in rows:
            raise InputError(f"data.listed names {name}, which is not a source with enough samples")
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
