"""A user's own samples with tags, in one `.npz` file; ``tags_file.TagsFile`` says what is in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, diags

from mpifed.errors import InputError, one_line
from mpifed.memory import check_memory
from topologies.inputs import check_archive

COLUMN_BYTES = 24
"""Least number of bytes that a column takes: an input or a tag of one sample, and its weight."""


@dataclass(frozen=True)
class Tagged:
    """What is in a file of tagged samples.

    Attributes
    ----------
    x : csr_matrix
        Inputs, float64 (samples, features).
    tags : csr_matrix
        1 where a sample has the tag, (samples, tags).
    owner : ndarray
        Source of each sample, int64 (samples,): a position in ``names``.
    names : ndarray
        Numbers of the sources in the file, int64 (sources,), ascending.
    held_out : ndarray
        Whether a sample is kept from training, bool (samples,).
    embeddings : ndarray or None
        A vector for each source, float64 (sources, dimension).
    """

    x: csr_matrix
    tags: csr_matrix
    owner: np.ndarray
    names: np.ndarray
    held_out: np.ndarray
    embeddings: np.ndarray | None


def parse(path: Path) -> Tagged:
    """Return what is in the file ``path``; ``TagsFile`` describes the format.

    Raises
    ------
    InputError
        If the file cannot be read, or an array is missing or does not fit the others.
    """
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
    """Return the TF-IDF of each source: float64 (sources, features), rows of length 1.

    The weight of feature j is log((1 + n) / (1 + n_j)) + 1, where n_j of the n sources have it
    (scikit-learn's smoothed weights). It multiplies the sum of a source's samples.
    """
    n = len(tagged.names)
    which = (np.ones(len(tagged.owner)), (tagged.owner, np.arange(len(tagged.owner))))
    sums = csr_matrix(which, (n, len(tagged.owner))) @ tagged.x
    sums.eliminate_zeros()
    weights = np.log((1 + n) / (1 + np.bincount(sums.indices, minlength=sums.shape[1]))) + 1
    weighted = sums @ diags(weights)
    norms = np.sqrt(np.asarray(weighted.multiply(weighted).sum(axis=1)).reshape(-1))
    return csr_matrix(diags(1 / np.where(norms > 0, norms, 1)) @ weighted)
