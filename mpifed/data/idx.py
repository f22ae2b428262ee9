"""Images in IDX files, the format of MNIST and EMNIST: plain, or compressed with gz or xz.

An IDX file is a magic number (two zero bytes, 8 for unsigned bytes, the number of dimensions), the
dimensions as big-endian 32-bit numbers, and the bytes (Y. LeCun's MNIST page).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge

from mpifed.data.base import Dataset, Shards
from mpifed.data.compressed import Stream, opened
from mpifed.data.delivery import agreed
from mpifed.data.partition import FEWEST, Alpha, Classes, MinSamples, Name
from mpifed.data.pooled import PIECE, Pool, assign, load_pooled
from mpifed.errors import InputError
from mpifed.memory import check_memory
from mpifed.mpi.communicator import Communicator

BRIGHTEST = 255
PARTS = (("train",), ("t10k", "test"))
"""What the names of the two parts begin with: MNIST says t10k, EMNIST says test."""

COMPRESSIONS = ("", ".gz", ".xz")

STEP = 1 << 24
"""Bytes that are asked for at once: a head may announce more than there is."""


@dataclass(frozen=True)
class Part:
    """The images and labels of one part (training or test).

    Attributes
    ----------
    images, labels : Path
        The two files.
    count : int
        Number of images.
    shape : tuple of int
        Rows and columns of an image, in pixels.
    """

    images: Path
    labels: Path
    count: int
    shape: tuple[int, ...]


class Idx(Dataset):
    """MNIST, EMNIST and their like: IDX files of images and labels, pixels in [0, 1].

    Training and test part are put together and dealt to the clients, who each split theirs
    60/20/20. A sample has the shape of the image, (28, 28), as it lies in the file; labels are 0 ..
    the largest. Rank 0 reads the files and sends each image to its owner.

    Parameters
    ----------
    raw : str, optional
        Directory with ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte`` and the two
        ``t10k-`` (or ``test-``) files, plain or with ``.gz`` or ``.xz``. None is
        ``$MPIFED_DATA/mnist``.
    prefix : str
        What the names of the files begin with, as ``emnist-byclass-``.
    partition : str
        How samples are dealt to the clients: dirichlet, pathological, iid.
    dirichlet_alpha : float
        Concentration of the partition ``dirichlet``: the larger, the more alike clients are.
    classes_per_client : int
        Labels that a client has in the partition ``pathological``.
    min_samples : int
        Fewest samples that a client may get.
    seed : int, optional
        Seed of the data set. None is the run's.
    """

    divisor = BRIGHTEST

    def __init__(
        self,
        n_clients: int,
        run_seed: int,
        communicator: Communicator,
        *,
        raw: str | None = None,
        prefix: str = "",
        partition: Name = "dirichlet",
        dirichlet_alpha: Alpha = 0.4,
        classes_per_client: Classes = 2,
        min_samples: MinSamples = FEWEST,
        seed: Annotated[int, Ge(0)] | None = None,
    ) -> None:
        self.seed: int = run_seed if seed is None else seed
        self._parts, labels = agreed(communicator, lambda: _inspect(_directory(raw), prefix))
        self._pool = Pool(
            prefix.strip("-_.") or "mnist",
            labels,
            int(labels.max()) + 1,
            self._parts[0].shape,
            "uint8",
            BRIGHTEST,
        )
        self._assignment = assign(
            self._pool,
            n_clients,
            self.seed,
            partition,
            dirichlet_alpha=dirichlet_alpha,
            classes_per_client=classes_per_client,
            min_samples=min_samples,
        )
        self.description = self._assignment.describe(self._pool)
        self._communicator = communicator

    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """Return the shards of ``client_ids``; ``InputError`` for a damaged file. Collective."""
        return load_pooled(
            self._pool,
            self._assignment,
            lambda: _pieces(self._parts),
            client_ids,
            dtype,
            self._communicator,
        )


def _directory(raw: str | None) -> Path:
    if raw is None:
        home = os.environ.get("MPIFED_DATA")
        if not home:
            raise InputError(
                "data.raw is empty and MPIFED_DATA is not set; one of them must say where the IDX "
                "files are"
            )
        directory = Path(home) / "mnist"
    else:
        directory = Path(raw).expanduser()
    if not os.path.isdir(directory):
        raise InputError(f"data.raw is '{directory}', but there is no such directory")
    return directory


def _inspect(directory: Path, prefix: str) -> tuple[list[Part], np.ndarray]:
    """The two parts and all labels, int64, after checking that images and labels agree."""
    parts, labels = [], []
    for names in PARTS:
        images = _find(directory, prefix, names, "images", 3)
        with opened(images) as stream:
            count, *shape = _header(stream, images, 3)
        _check_size(images, count * shape[0] * shape[1] + 16)
        matching = _find(directory, prefix, names, "labels", 1)
        parts.append(Part(images, matching, count, tuple(shape)))
        labels.append(_labels(parts[-1]))
    if parts[0].shape != parts[1].shape:
        raise InputError(
            f"data.raw is '{directory}', where the images of {parts[0].images.name} are "
            f"{parts[0].shape}, but those of {parts[1].images.name} {parts[1].shape}"
        )
    return parts, np.concatenate(labels)


def _find(directory: Path, prefix: str, names: tuple[str, ...], what: str, rank: int) -> Path:
    for name in names:
        for joint in ("-", "."):
            for compression in COMPRESSIONS:
                path = directory / f"{prefix}{name}-{what}{joint}idx{rank}-ubyte{compression}"
                if os.path.isfile(path):
                    return path
    wanted = f"{prefix}{names[0]}-{what}-idx{rank}-ubyte"
    raise InputError(
        f"data.raw is '{directory}', which has no file '{wanted}', plain or with .gz or .xz"
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
    if path.suffix not in COMPRESSIONS[1:] and path.stat().st_size != size:
        raise InputError(
            f"'{path}' has {path.stat().st_size} bytes, but its head says {size}: it is truncated "
            "or damaged"
        )


def _labels(part: Part) -> np.ndarray:
    with opened(part.labels) as stream:
        (count,) = _header(stream, part.labels, 1)
        if count != part.count:
            raise InputError(
                f"'{part.labels}' has {count} labels, but '{part.images}' {part.count} images"
            )
        # One byte and one int64 for each.
        check_memory(9.0 * count, f"'{part.labels}' says that it has {count} labels, which")
        return _bytes(stream, part.labels, count, last=True).astype(np.int64)


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


def _pieces(parts: list[Part]) -> Iterator[np.ndarray]:
    """All images, ``PIECE`` at a time, the second part after the first; uint8 (k, rows, cols)."""
    waiting = np.empty((0, *parts[0].shape), np.uint8)
    for part in parts:
        with opened(part.images) as stream:
            _header(stream, part.images, 3)
            for start in range(0, part.count, PIECE):
                count = min(PIECE, part.count - start)
                last = start + count == part.count
                size = count * part.shape[0] * part.shape[1]
                data = _bytes(stream, part.images, size, last).reshape(count, *part.shape)
                waiting = np.concatenate([waiting, data])
                if len(waiting) >= PIECE:
                    yield waiting[:PIECE]
                    waiting = waiting[PIECE:]
    if len(waiting):
        yield waiting
