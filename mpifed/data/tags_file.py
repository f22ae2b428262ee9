"""Clients out of a user's own samples with tags: which sources, and which of their samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge
from scipy.sparse import csr_matrix

from mpifed.data import tag_layout
from mpifed.data.base import Dataset, Shards
from mpifed.data.compressed import located
from mpifed.data.delivery import agreed
from mpifed.data.pooled import PIECE, Pool, describe, load_pooled
from mpifed.data.tag_layout import Layout, Sources, Test, Train, Validation
from mpifed.data.tagged import Tagged, parse, tf_idf
from mpifed.errors import InputError
from mpifed.memory import check_memory
from mpifed.mpi.communicator import Communicator
from mpifed.random import key, stream


@dataclass(frozen=True)
class Explicit:
    """Clients whose samples are listed, split by split; see ``pooled.Dealt``.

    Attributes
    ----------
    parts : list of tuple
        Training, validation and test samples of each client, int64 each.
    """

    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]]

    def counts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        sizes = np.array([[len(rows) for rows in part] for part in self.parts], np.int64)
        return sizes[:, 0], sizes[:, 1], sizes[:, 2]

    def split(self, client: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.parts[client]


class TagsFile(Dataset):
    """A user's own samples with tags, as Stack Overflow's (Gasanov et al. 2022, sec. 6.3).

    The file has

    * the samples, either ``x`` (samples, features) or, as a sparse matrix by rows, ``x_data``,
      ``x_indices``, ``x_indptr`` and ``x_features``, their number;
    * the tags of each: ``y_indices``, ``y_indptr`` and ``y_tags``, their number;
    * ``client`` (samples,): whole numbers, the source of each sample;
    * optional ``held_out`` (samples,), true where ``divided`` may not train, ``embeddings``
      (sources, dimension) in ascending order of the sources' numbers, and anything else, which is
      not read (``text``).

    It is read without pickle. Sources with too few samples are left out. ``choose: kmeans``, the
    paper's experiment 1b, cuts the sources by their ``embeddings`` or else by the TF-IDF of their
    samples. A source's first samples are taken. Rank 0 reads the file and sends each sample to its
    owner.

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
        layout: tag_layout.Name = "natural",
        sources: Sources = 2,
        n_train: Train = None,
        n_val: Validation = None,
        n_test: Test = 300,
        seed: Annotated[int, Ge(0)] | None = None,
    ) -> None:
        self.seed: int = run_seed if seed is None else seed
        self.layout = tag_layout.layout(layout, n_clients, sources, n_train, n_val, n_test)
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
    """Return the samples that ``layout`` takes of each source that has enough.

    ``divided`` trains on a source's first samples that are not held out. Validation and test
    samples are the first that are held out or, if the file holds out none, those that follow.

    Parameters
    ----------
    tagged : Tagged
        A file.
    layout : Layout
        How many samples are needed.

    Returns
    -------
    dict of int to ndarray
        Sample numbers by source, int64 (``layout.samples``,), in the order of the layout.
    """
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
    """Return the usable sources of each cluster, ascending; clusters with most of them come first.

    All sources are clustered, as in the published code, by their embeddings or else by ``tf_idf``.

    Parameters
    ----------
    tagged : Tagged
        A file.
    rows : dict
        What ``usable_rows`` returned.
    n_clusters : int
        Number of clusters, at most one per source.
    n_starts : int
        Times that k-means begins anew.
    seed : int
        Seed of k-means.

    Returns
    -------
    list of ndarray
        Positions of sources, int64, cluster by cluster.
    """
    # scikit-learn takes seconds to import, which only the rank that reads has to spend.
    from sklearn.cluster import KMeans

    points = tf_idf(tagged) if tagged.embeddings is None else tagged.embeddings
    n_clusters = min(n_clusters, points.shape[0])
    owner = KMeans(n_clusters, n_init=n_starts, random_state=seed).fit_predict(points)
    usable = np.array(sorted(rows), np.int64)
    clusters = [usable[owner[usable] == cluster] for cluster in range(n_clusters)]
    return sorted(clusters, key=len, reverse=True)
