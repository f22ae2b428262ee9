"""Handwritten digits and characters: scikit-learn's digits, and IDX files, of MNIST and of EMNIST
(Cohen et al. 2017) as NIST publishes it.
"""

from __future__ import annotations

import contextlib
import math
import re
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mpifed.dataset import Pool, PooledDataset, Source, archives
from mpifed.errors import InputError

# Pixels of scikit-learn's digits are 0 .. 16.
LEVELS = 16
BRIGHTEST = 255

# What the names of the two parts begin with: MNIST says t10k, EMNIST says test.
PARTS = (("train",), ("t10k", "test"))

# Bytes that are read at once.
STEP = 1 << 24

Variant = Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"]

# Lower-case letters that look like the capital are one label with it.
MERGED = string.digits + string.ascii_uppercase + "abdefghnqrt"

# What the labels of each variant mean, from label 0 on.
CHARACTERS: dict[str, str] = {
    "byclass": string.digits + string.ascii_uppercase + string.ascii_lowercase,
    "bymerge": MERGED,
    "balanced": MERGED,
    "letters": string.ascii_uppercase,
    "digits": string.digits,
    "mnist": string.digits,
}


# A directory or an archive, and the name of a file in it.
File = tuple[Path, str]


class Digits(PooledDataset):
    """scikit-learn's 1797 handwritten digits, 8 x 8 pixels in [0, 1], 10 labels."""

    def __init__(self, *run: Any, **options: Any) -> None:
        super().__init__(_digits, {}, *run, **options)


def _digits() -> Source:
    # scikit-learn takes seconds to import, which only one rank has to spend.
    from sklearn.datasets import load_digits

    bundle = load_digits()
    pool = Pool("digits", bundle.target.astype(np.int64), 10, (8, 8), "uint8", LEVELS)
    return Source(pool, lambda: [bundle.images.astype(np.uint8)])


class Idx(PooledDataset):
    """MNIST (LeCun et al. 1998) and its like: IDX files of images and labels, pixels in [0, 1].

    Parameters
    ----------
    raw : str, optional
        Directory or zip archive with ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte`` and
        the two ``t10k-`` (or ``test-``) files, plain or with ``.gz`` or ``.xz``. None is
        ``$MPIFED_DATA/mnist``.
    prefix : str
        What the names of the files begin with, as ``emnist-byclass-``.
    """

    def __init__(self, *run: Any, raw: str | None = None, prefix: str = "", **options: Any) -> None:
        def find() -> Source:
            shape, labels, is_test, images = read(archives.homes(raw, "mnist"), prefix)
            name = prefix.strip("-_.") or "mnist"
            pool = Pool(name, labels, int(labels.max()) + 1, shape, "uint8", BRIGHTEST)
            return Source(pool, images, is_test=is_test)

        super().__init__(find, {}, *run, **options)


class Emnist(PooledDataset):
    """EMNIST (Cohen et al. 2017): characters (28, 28), pixels in [0, 1]; 62 labels as ``byclass``.
    Marfoq et al. 2021 take a tenth of the images (``fraction: 0.1``).

    Parameters
    ----------
    raw : str, optional
        The archive ``gzip.zip``, or a directory with it or its files, as
        ``emnist-byclass-train-images-idx3-ubyte.gz``. None is ``$MPIFED_DATA/emnist``.
    variant : {'byclass', 'bymerge', 'balanced', 'letters', 'digits', 'mnist'}
        Which of the published sets.
    """

    def __init__(
        self, *run: Any, raw: str | None = None, variant: Variant = "byclass", **options: Any
    ) -> None:
        def find() -> Source:
            among, characters = archives.homes(raw, "emnist"), CHARACTERS[variant]
            shape, labels, is_test, images = read(among, f"emnist-{variant}-")
            labels = labels - (variant == "letters")
            if not 0 <= labels.min() <= labels.max() < len(characters):
                raise InputError(
                    f"data.raw is '{among[0]}', where emnist-{variant} has the label "
                    f"{labels.max()}, beyond its {len(characters)} labels"
                )
            pool = Pool(
                *(f"emnist-{variant}", labels, len(characters), shape[::-1], "uint8", BRIGHTEST),
                class_names=tuple(characters),
            )
            # NIST's images lie on their sides.
            return Source(pool, lambda: (x.transpose(0, 2, 1) for x in images()), is_test=is_test)

        super().__init__(find, {}, *run, **options)


def read(
    among: list[Path], prefix: str
) -> tuple[tuple[int, ...], np.ndarray, np.ndarray, Callable[[], Iterator[np.ndarray]]]:
    """Return the shape of an image, all labels, which are of the second part, and a function that
    reads the images.
    """
    files, shapes, labels = [], set(), []
    for part in PARTS:
        files.append(_find(among, prefix, part, "images", 3))
        with _opened(files[-1], 3) as (_, (count, *shape)):
            shapes.add(tuple(shape))
        file = _find(among, prefix, part, "labels", 1)
        labels.append(np.concatenate([*_rows(file, 1)]).astype(np.int64))
        if len(labels[-1]) != count or len(shapes) > 1:
            raise InputError(
                f"'{file[0] / file[1]}' has {len(labels[-1])} labels for {count} images of the "
                f"shapes {sorted(shapes)}"
            )
    is_test = np.repeat([False, True], [len(part_labels) for part_labels in labels])

    def images() -> Iterator[np.ndarray]:
        for file in files:
            yield from _rows(file, 3)

    return shapes.pop(), np.concatenate(labels), is_test, images


def _find(among: list[Path], prefix: str, part: tuple[str, ...], what: str, rank: int) -> File:
    of_part = f"(?:{'|'.join(part)})-{what}[-.]idx{rank}-ubyte"
    pattern = re.compile(rf"(?:.*/)?{re.escape(prefix)}{of_part}(?:\.gz|\.xz)?")
    for root in among:
        matching = [name for name in archives.names(root) if pattern.fullmatch(name)]
        if matching:
            return root, matching[0]
    raise InputError(
        f"data.raw is '{among[0]}', which has no file '{prefix}{part[0]}-{what}-idx{rank}-ubyte', "
        "plain or with .gz or .xz"
    )


@contextlib.contextmanager
def _opened(file: File, rank: int) -> Iterator[tuple[archives.Stream, list[int]]]:
    """Open an IDX file of bytes behind its head; yield its ``rank`` dimensions too."""
    with archives.reading(file[0] / file[1]):
        opened = archives.streams(file[0], file[1].__eq__)
        _, stream = next(opened)
        head = stream.read(4 + 4 * rank)
        magic, *dimensions = np.frombuffer(head, ">u4").tolist() or [0]
        if magic != 0x800 + rank or len(dimensions) != rank or min(dimensions) < 1:
            raise ValueError(f"it is not an IDX file of {rank} dimensions")
        yield stream, dimensions


def _rows(file: File, rank: int) -> Iterator[np.ndarray]:
    """Yield what an IDX file holds, some rows at a time: uint8 (k, ...)."""
    with _opened(file, rank) as (stream, (count, *shape)):
        size = math.prod(shape)
        step = max(1, STEP // size)
        for start in range(0, count, step):
            rows = min(step, count - start)
            data = stream.read(rows * size)
            if len(data) < rows * size:
                raise ValueError(f"it is truncated: its head says {count} samples")
            yield np.frombuffer(data, np.uint8).reshape(rows, *shape)
        if stream.read(1):
            raise ValueError(f"it continues after the {count} samples of its head")
