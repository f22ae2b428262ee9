"""Images in IDX files, the format of MNIST and EMNIST: plain, or compressed with gz or xz. EMNIST
(Cohen et al. 2017) as NIST publishes it:
"""

from __future__ import annotations

import os
import string
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mpifed.data.archives import Stream, member, names, places
from mpifed.data.partitioned import PIECE, DealtDataset, Pool, Source
from mpifed.errors import InputError
from mpifed.io.memory import check_memory
from mpifed.mpi.communicator import Communicator

BRIGHTEST = 255
# What the names of the two parts begin with: MNIST says t10k, EMNIST says test.
PARTS = (("train",), ("t10k", "test"))

COMPRESSIONS = ("", ".gz", ".xz")

# Bytes that are asked for at once: a head may announce more than there is.
STEP = 1 << 24


@dataclass(frozen=True)
class File:
    """An IDX file: its name in a directory or an archive."""

    place: Path
    name: str

    @property
    def path(self) -> Path:
        """Where it is, for messages; within an archive there is no such path."""
        return self.place / self.name

    def opened(self) -> AbstractContextManager[Stream]:
        """Open it for reading its bytes, decompressed."""
        return member(self.place, self.name, 0.0)


@dataclass(frozen=True)
class Part:
    """The images and labels of one part (training or test)."""

    images: File
    labels: File
    count: int
    shape: tuple[int, ...]


class Idx(DealtDataset):
    """MNIST and its like: IDX files of images and labels, pixels in [0, 1].

    Parameters
    ----------
    raw : str, optional
        Directory or zip archive with ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte`` and
        the two ``t10k-`` (or ``test-``) files, plain or with ``.gz`` or ``.xz``. None is
        ``$MPIFED_DATA/mnist``.
    prefix : str
        What the names of the files begin with, as ``emnist-byclass-``.
    """

    def __init__(
        self,
        n_clients: int,
        run_seed: int,
        communicator: Communicator,
        *,
        raw: str | None = None,
        prefix: str = "",
        **options: Any,
    ) -> None:
        super().__init__(n_clients, run_seed, communicator, lambda: _read(raw, prefix), **options)


def _read(raw: str | None, prefix: str) -> Source:
    parts, labels = inspect(places(raw, "mnist"), prefix)
    pool = Pool(
        prefix.strip("-_.") or "mnist",
        labels,
        int(labels.max()) + 1,
        parts[0].shape,
        "uint8",
        BRIGHTEST,
    )
    return Source(pool, lambda: pieces(parts), is_test=in_second(parts))


def inspect(among: list[Path], prefix: str) -> tuple[list[Part], np.ndarray]:
    """Return the two parts and all labels, after checking that images and labels agree."""
    parts, labels = [], []
    for part_names in PARTS:
        images = _find(among, prefix, part_names, "images", 3)
        with images.opened() as stream:
            count, *shape = _header(stream, images.path, 3)
        _check_size(images.path, count * shape[0] * shape[1] + 16)
        matching = _find(among, prefix, part_names, "labels", 1)
        parts.append(Part(images, matching, count, tuple(shape)))
        labels.append(_labels(parts[-1]))
    if parts[0].shape != parts[1].shape:
        raise InputError(
            f"data.raw is '{among[0]}', where the images of {parts[0].images.path.name} are "
            f"{parts[0].shape}, but those of {parts[1].images.path.name} {parts[1].shape}"
        )
    return parts, np.concatenate(labels)


def in_second(parts: list[Part]) -> np.ndarray:
    """Return whether each sample belongs to the second part, bool (images,)."""
    return np.repeat(np.arange(len(parts)) > 0, [part.count for part in parts])


def _find(
    among: list[Path], prefix: str, part_names: tuple[str, ...], what: str, rank: int
) -> File:
    wanted = [
        f"{prefix}{name}-{what}{joint}idx{rank}-ubyte{compression}"
        for name in part_names
        for joint in ("-", ".")
        for compression in COMPRESSIONS
    ]
    for place in among:
        if os.path.isdir(place):
            found = {name: name for name in wanted if os.path.isfile(place / name)}
        else:
            found = {Path(name).name: name for name in names(place)}
        for name in wanted:
            if name in found:
                return File(place, found[name])
    raise InputError(
        f"data.raw is '{among[0]}', which has no file '{wanted[0]}', plain or with .gz or .xz"
    )


def _header(stream: Stream, path: Path, rank: int) -> list[int]:
    """The dimensions in the head of an IDX file of bytes with ``rank`` dimensions."""
    head = stream.read(4 + 4 * rank)
    magic = int.from_bytes(head[:4], "big")
    if len(head) < 4 + 4 * rank or magic != 0x800 + rank:
        raise InputError(
            f"'{path}' is not an IDX file of {'images' if rank == 3 else 'labels'}: it begins with "
            f"{magic}, not {0x800 + rank}"
        )
    dimensions = np.frombuffer(head[4:], ">u4").tolist()
    if min(dimensions) < 1 or max(dimensions[1:], default=1) > 1 << 16:
        raise InputError(f"'{path}' says that its dimensions are {dimensions}")
    return dimensions


def _check_size(path: Path, size: int) -> None:
    # A compressed file shows its length only when it is read.
    plain = path.is_file() and path.suffix not in COMPRESSIONS[1:]
    if plain and path.stat().st_size != size:
        raise InputError(
            f"'{path}' has {path.stat().st_size} bytes, but its head says {size}: it is truncated "
            "or damaged"
        )


def _labels(part: Part) -> np.ndarray:
    path = part.labels.path
    with part.labels.opened() as stream:
        (count,) = _header(stream, path, 1)
        if count != part.count:
            raise InputError(
                f"'{path}' has {count} labels, but '{part.images.path}' {part.count} images"
            )
        # One byte and one int64 for each.
        check_memory(9.0 * count, f"'{path}' says that it has {count} labels, which")
        return _bytes(stream, path, count, last=True).astype(np.int64)


def _bytes(stream: Stream, path: Path, size: int, last: bool) -> np.ndarray:
    """The next ``size`` bytes, which must be there and, if ``last``, be the end."""
    parts, missing = [], size
    while missing and (part := stream.read(min(missing, STEP))):
        parts.append(part)
        missing -= len(part)
    data = b"".join(parts)
    if len(data) < size:
        raise InputError(f"'{path}' is truncated: {size - len(data)} bytes are missing")
    if last and stream.read(1):
        raise InputError(f"'{path}' continues after the {size} bytes that its header announces")
    return np.frombuffer(data, np.uint8)


def pieces(parts: list[Part]) -> Iterator[np.ndarray]:
    """Yield all images, ``PIECE`` at a time, the second part after the first."""
    waiting = np.empty((0, *parts[0].shape), np.uint8)
    for part in parts:
        with part.images.opened() as stream:
            _header(stream, part.images.path, 3)
            for start in range(0, part.count, PIECE):
                count = min(PIECE, part.count - start)
                last = start + count == part.count
                size = count * part.shape[0] * part.shape[1]
                data = _bytes(stream, part.images.path, size, last).reshape(count, *part.shape)
                waiting = np.concatenate([waiting, data])
                if len(waiting) >= PIECE:
                    yield waiting[:PIECE]
                    waiting = waiting[PIECE:]
    if len(waiting):
        yield waiting


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


class Emnist(DealtDataset):
    """EMNIST: handwritten characters (28, 28), pixels in [0, 1]; 62 labels as ``byclass``. Marfoq
    et al. 2021 take a tenth of the images (``fraction:

    Parameters
    ----------
    raw : str, optional
        The archive ``gzip.zip``, or a directory with it or its files, as
        ``emnist-byclass-train-images-idx3-ubyte.gz``. None is ``$MPIFED_DATA/emnist``.
    variant : {'byclass', 'bymerge', 'balanced', 'letters', 'digits', 'mnist'}
        Which of the published sets.
    """

    def __init__(
        self,
        n_clients: int,
        run_seed: int,
        communicator: Communicator,
        *,
        raw: str | None = None,
        variant: Variant = "byclass",
        **options: Any,
    ) -> None:
        super().__init__(
            n_clients, run_seed, communicator, lambda: _emnist_read(raw, variant), **options
        )


def _emnist_read(raw: str | None, variant: Variant) -> Source:
    among, characters = places(raw, "emnist"), CHARACTERS[variant]
    parts, labels = inspect(among, f"emnist-{variant}-")
    labels = labels - (variant == "letters")
    wrong = labels[(labels < 0) | (labels >= len(characters))]
    if len(wrong):
        raise InputError(
            f"data.raw is '{among[0]}', where a label of emnist-{variant} is "
            f"{wrong[0] + (variant == 'letters')}, beyond its {len(characters)} labels"
        )
    pool = Pool(
        f"emnist-{variant}",
        labels,
        len(characters),
        parts[0].shape[::-1],
        "uint8",
        BRIGHTEST,
        class_names=tuple(characters),
    )
    return Source(pool, lambda: _upright(parts), is_test=in_second(parts))


def _upright(parts: list[Part]) -> Iterator[np.ndarray]:
    for piece in pieces(parts):
        yield np.ascontiguousarray(piece.transpose(0, 2, 1))
