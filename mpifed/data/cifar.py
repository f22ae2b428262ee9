"""CIFAR-10 and CIFAR-100 in the published python version: pickles of pictures and labels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mpifed.data import pickles
from mpifed.data.archives import contents, places
from mpifed.data.dealing import Alpha
from mpifed.data.dealt import DealtDataset, Source
from mpifed.data.pooled import PIECE, Pool
from mpifed.errors import InputError
from mpifed.mpi.communicator import Communicator

BRIGHTEST = 255

PUBLISHED = 60_000
"""Pictures of each of the two data sets."""

SHAPE = (3, 32, 32)
COMPRESSED = r"(?:\.gz|\.xz|\.bz2)?"


@dataclass(frozen=True)
class Form:
    """How one of the two data sets is laid out.

    Attributes
    ----------
    name : str
        Of the data set, and of its directory in ``$MPIFED_DATA``.
    train, test, meta : str
        Patterns of the names of files.
    labels, names : str
        Keys of the labels in a batch, and of their names in the file ``meta``.
    n_classes : int
        Number of labels.
    n_coarse : int
        Number of coarse labels; 0 where there are none.
    """

    name: str
    train: str
    test: str
    meta: str
    labels: str
    names: str
    n_classes: int
    n_coarse: int = 0


CIFAR_10 = Form(
    *("cifar10", r"data_batch_\d+", "test_batch", r"batches\.meta", "labels", "label_names", 10)
)
CIFAR_100 = Form(
    *("cifar100", "train", "test", "meta", "fine_labels", "fine_label_names", 100), n_coarse=20
)


class Cifar10(DealtDataset):
    """CIFAR-10: 60,000 colour pictures (3, 32, 32) in [0, 1], 10 labels.

    Training and test part are put together and dealt to the clients, who each split theirs
    60/20/20.

    Parameters
    ----------
    raw : str, optional
        The archive ``cifar-10-python.tar.gz``, or the directory with its files ``data_batch_1``
        ... and ``test_batch``, plain or with .gz, .xz or .bz2. None is ``$MPIFED_DATA/cifar10``.
    """

    def __init__(
        self,
        n_clients: int,
        run_seed: int,
        communicator: Communicator,
        *,
        raw: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(n_clients, run_seed, communicator, lambda: read(raw, CIFAR_10), **options)


class Cifar100(DealtDataset):
    """CIFAR-100: 60,000 colour pictures (3, 32, 32) in [0, 1], 100 labels in 20 coarse ones.

    As ``cifar10``, with Pachinko allocation over coarse and fine labels.

    Parameters
    ----------
    raw : str, optional
        The archive ``cifar-100-python.tar.gz``, or the directory with its files ``train`` and
        ``test``, plain or with .gz, .xz or .bz2. None is ``$MPIFED_DATA/cifar100``.
    partition : str
        How samples are dealt to the clients.
    pachinko_alpha : float
        Concentration of the partition ``pachinko`` over coarse labels.
    pachinko_beta : float
        Its concentration over the fine labels of a coarse one.
    """

    def __init__(
        self,
        n_clients: int,
        run_seed: int,
        communicator: Communicator,
        *,
        raw: str | None = None,
        partition: Literal[
            "pachinko", "contiguous", "dirichlet", "iid", "pathological", "quantity_skew"
        ] = "pachinko",
        pachinko_alpha: Alpha = 0.4,
        pachinko_beta: Alpha = 10.0,
        **options: Any,
    ) -> None:
        further = {"pachinko_alpha": pachinko_alpha, "pachinko_beta": pachinko_beta}
        options["partition"] = partition
        super().__init__(
            n_clients, run_seed, communicator, lambda: read(raw, CIFAR_100), further, **options
        )


@dataclass(frozen=True)
class Batch:
    """One file of pictures: uint8 (k, 3072), and one label or more of each, int64 (k, ...)."""

    pictures: np.ndarray
    labels: np.ndarray
    coarse: np.ndarray | None


def read(raw: str | None, form: Form) -> Source:
    """Return the data set that ``raw`` names.

    Raises
    ------
    InputError
        If a file is missing, damaged, or not in the published layout.
    """
    found = _contents(raw, form)
    trained = sorted(name for name in found if re.fullmatch(form.train, name))
    tested = sorted(name for name in found if re.fullmatch(form.test, name))
    if not trained:
        example = form.train.replace(r"\d+", "1")
        raise InputError(
            f"data.raw is '{places(raw, form.name)[0]}', which has no file '{example}', plain or "
            "with .gz, .xz or .bz2"
        )
    batches = [_batch(*found[name], form) for name in (*trained, *tested)]
    sizes = [len(batch.labels) for batch in batches]
    is_test = np.repeat([False] * len(trained) + [True] * len(tested), sizes)
    labels = np.concatenate([batch.labels for batch in batches])
    coarse = [batch.coarse for batch in batches if batch.coarse is not None]
    pool = Pool(
        form.name,
        labels,
        form.n_classes,
        SHAPE,
        "uint8",
        BRIGHTEST,
        class_names=_names(found, form),
    )
    return Source(
        pool,
        lambda: _pieces(batches),
        coarse=np.concatenate(coarse) if coarse else None,
        is_test=is_test if tested else None,
        remarks=tuple(_incomplete(form, sum(sizes), [*trained, *tested])),
    )


def _incomplete(form: Form, count: int, files: list[str]) -> Iterator[str]:
    if count != PUBLISHED:
        yield (
            f"{form.name} has {count:,} pictures here, in {', '.join(files)}; as published it has "
            f"{PUBLISHED:,}"
        )


def _contents(raw: str | None, form: Form) -> dict[str, tuple[Path, Any]]:
    """What the files of ``form`` hold, and where each is from, by their names alone."""
    pattern = re.compile(f"(?:.*/)?({form.train}|{form.test}|{form.meta}){COMPRESSED}")
    found: dict[str, tuple[Path, Any]] = {}

    def is_new(name: str) -> bool:
        match = pattern.fullmatch(name)
        return match is not None and match[1] not in found

    for place in places(raw, form.name):
        for name, content in contents(place, is_new, pickles.HELD):
            match = pattern.fullmatch(name)
            assert match is not None
            found[match[1]] = (place / name, pickles.load(content, place / name))
    return found


def _batch(path: Path, content: Any, form: Form) -> Batch:
    values = _by_text(content)
    pictures = values.get("data")
    if not (
        isinstance(pictures, np.ndarray)
        and pictures.dtype == np.uint8
        and pictures.shape[1:] == (np.prod(SHAPE),)
    ):
        shown = getattr(pictures, "shape", None)
        raise InputError(
            f"'{path}' has pictures 'data' of shape {shown}, not bytes of shape (pictures, 3072)"
        )
    labels = _labels(path, values, form.labels, len(pictures), form.n_classes)
    coarse = None
    if form.n_coarse:
        coarse = _labels(path, values, "coarse_labels", len(pictures), form.n_coarse)
    return Batch(pictures, labels, coarse)


def _labels(path: Path, values: dict[str, Any], key: str, count: int, below: int) -> np.ndarray:
    found = values.get(key)
    if isinstance(found, np.ndarray):
        found = found.tolist()
    if not (isinstance(found, list) and all(type(label) is int for label in found)):
        raise InputError(f"'{path}' has no list '{key}' of whole numbers")
    if len(found) != count:
        raise InputError(f"'{path}' has {len(found)} labels '{key}' of {count} pictures")
    wrong = [label for label in found if not 0 <= label < below]
    if wrong:
        raise InputError(f"'{path}' has the label {wrong[0]} in '{key}'; allowed: 0 .. {below - 1}")
    return np.array(found, np.int64)


def _names(found: dict[str, tuple[Path, Any]], form: Form) -> tuple[str, ...]:
    """Names of the labels from the file ``meta``; empty where it is missing."""
    for name, (path, content) in found.items():
        if re.fullmatch(form.meta, name):
            names = _by_text(content).get(form.names)
            if not isinstance(names, list) or len(names) != form.n_classes:
                raise InputError(f"'{path}' has no list '{form.names}' of {form.n_classes} names")
            return tuple(map(_text, names))
    return ()


def _by_text(content: Any) -> dict[str, Any]:
    """A dictionary with texts as keys, which Python 2 wrote as bytes."""
    return {_text(key): value for key, value in content.items()} if type(content) is dict else {}


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _pieces(batches: list[Batch]) -> Iterator[np.ndarray]:
    starts = np.cumsum([0, *(len(batch.labels) for batch in batches)])
    for start in range(0, int(starts[-1]), PIECE):
        parts = [
            batch.pictures[max(0, start - first) : max(0, start + PIECE - first)]
            for batch, first in zip(batches, starts[:-1], strict=True)
        ]
        yield np.concatenate(parts).reshape(-1, *SHAPE)
