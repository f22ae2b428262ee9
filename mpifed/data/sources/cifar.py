"""CIFAR-10 and CIFAR-100 in the published python version: pickles of pictures and labels."""

from __future__ import annotations

import io
import pickle
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mpifed.dataset import Pool, PooledDataset, Source, archives, partitions
from mpifed.errors import InputError

# Bytes of memory for each byte of a pickle: the pickle, its texts and the arrays made of them.
HELD = 6.0
BRIGHTEST = 255
SHAPE = (3, 32, 32)
# By colour, what FedEM's published code subtracts from pictures in [0, 1] and divides them by.
MEANS, DEVIATIONS = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
COMPRESSED = r"(?:\.gz|\.xz|\.bz2)?"


# What files are called: of training and test pictures, and of the names of labels.
TRAIN, TEST, META = r"data_batch_\d+|train", "test_batch|test", r"batches\.meta|meta"


@dataclass(frozen=True)
class Form:
    """The keys that one of the two data sets has in its files."""

    name: str
    labels: str
    names: str
    n_classes: int
    n_coarse: int = 0


class Cifar10(PooledDataset):
    """CIFAR-10 (Krizhevsky 2009): 60,000 colour pictures (3, 32, 32) in [0, 1], 10 labels.

    Parameters
    ----------
    raw : str, optional
        The archive ``cifar-10-python.tar.gz``, or the directory with its files ``data_batch_1``
        ... and ``test_batch``, plain or with .gz, .xz or .bz2. None is ``$MPIFED_DATA/cifar10``.
    standardise : bool
        Whether each colour is less its mean and over its deviation, as in FedEM's published code.
    """

    def __init__(
        self, *run: Any, raw: str | None = None, standardise: bool = False, **options: Any
    ) -> None:
        form = Form("cifar10", "labels", "label_names", 10)
        super().__init__(lambda: read(raw, form, standardise), {}, *run, **options)


class Cifar100(PooledDataset):
    """CIFAR-100 (Krizhevsky 2009): 60,000 pictures (3, 32, 32), 100 labels of 20 coarse ones.

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
    standardise : bool
        Whether each colour is less its mean and over its deviation, as in FedEM's published code,
        which has those of CIFAR-10.
    """

    def __init__(
        self,
        *run: Any,
        raw: str | None = None,
        partition: Literal[
            "pachinko",
            "contiguous",
            "dirichlet",
            "balanced_dirichlet",
            "extended_dirichlet",
            "iid",
            "pathological",
            "quantity_skew",
        ] = "pachinko",
        pachinko_alpha: partitions.Alpha = 0.4,
        pachinko_beta: partitions.Alpha = 10.0,
        standardise: bool = False,
        **options: Any,
    ) -> None:
        form = Form("cifar100", "fine_labels", "fine_label_names", 100, n_coarse=20)
        further = {"pachinko_alpha": pachinko_alpha, "pachinko_beta": pachinko_beta}
        options["partition"] = partition
        super().__init__(lambda: read(raw, form, standardise), further, *run, **options)


def read(raw: str | None, form: Form, standardise: bool) -> Source:
    """Return the data set that ``raw`` names."""
    files = _files(raw, form)
    trained = sorted(name for name in files if re.fullmatch(TRAIN, name))
    tested = sorted(name for name in files if re.fullmatch(TEST, name))
    if not trained:
        raise InputError(
            f"data.raw is '{archives.home(raw, form.name)}', which has no file 'data_batch_1' or "
            "'train', plain or with .gz, .xz or .bz2"
        )
    pictures, labels, coarse = [], [], []
    for name in (*trained, *tested):
        path, values = files[name]
        with archives.reading(path):
            x = _pictures(values["data"])
            pictures.append(x)
            labels.append(_labels(values[form.labels], len(x), form.n_classes))
            if form.n_coarse:
                coarse.append(_labels(values["coarse_labels"], len(x), form.n_coarse))
    class_names: tuple[str, ...] = ()
    for name in files.keys() - {*trained, *tested}:
        path, values = files[name]
        with archives.reading(path):
            class_names = tuple(map(_text, values[form.names]))
    sizes = [len(part) for part in labels]
    stored = ("float32", 1) if standardise else ("uint8", BRIGHTEST)
    pool = Pool(
        *(form.name, np.concatenate(labels), form.n_classes, SHAPE, *stored),
        class_names=class_names if len(class_names) == form.n_classes else (),
    )
    return Source(
        pool,
        lambda: map(standardised, pictures) if standardise else pictures,
        coarse=np.concatenate(coarse) if coarse else None,
        is_test=np.repeat(np.arange(len(sizes)) >= len(trained), sizes) if tested else None,
    )


def _files(raw: str | None, form: Form) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Where each file of ``form`` is and what it holds, by its name alone."""
    pattern = re.compile(f"(?:.*/)?({TRAIN}|{TEST}|{META}){COMPRESSED}")
    files: dict[str, tuple[Path, dict[str, Any]]] = {}
    for root in archives.homes(raw, form.name):
        for name, content in archives.contents(
            root, lambda name: bool(pattern.fullmatch(name)), HELD
        ):
            path = root / name
            files.setdefault(pattern.sub(r"\1", name), (path, unpickled(path, content)))
    return files


def standardised(pictures: np.ndarray) -> np.ndarray:
    """Return float32 pictures whose colours are less ``MEANS`` and over ``DEVIATIONS``."""
    means, deviations = (np.array(each)[:, None, None] for each in (MEANS, DEVIATIONS))
    # In float32 throughout: float64 copies of a file's pictures would be eight times as large.
    scale, shift = 1 / (BRIGHTEST * deviations), means / deviations
    return pictures * scale.astype(np.float32) - shift.astype(np.float32)


def _labels(values: list[int], count: int, below: int) -> np.ndarray:
    labels = np.array(values)
    if (
        labels.dtype.kind not in "iu"
        or labels.shape != (count,)
        or not np.all((labels >= 0) & (labels < below))
    ):
        raise ValueError(f"its labels are not {count} whole numbers among 0 .. {below - 1}")
    return labels.astype(np.int64)


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def unpickled(path: Path, content: bytes) -> dict[str, Any]:
    """Return the arrays, lists and texts of a pickled dictionary, by texts as its keys."""
    with archives.reading(path):
        values = _Unpickler(io.BytesIO(content), encoding="bytes").load()
        if not isinstance(values, dict):
            raise ValueError(f"it holds a {type(values).__name__}, not a dictionary of arrays")
        return {_text(key): value for key, value in values.items()}


class _Pickled:
    """What a pickle makes of numpy's names: the arguments and the state, of which nothing runs."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments, self.state = arguments, None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle._Unpickler):
    """Of Python's two unpicklers the one whose memory the numbers of a pickle cannot set."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in for what numpy's arrays are pickled with."""
        if f"{module}.{name}" == "_codecs.encode":
            return lambda text, encoding: text.encode("latin1")
        if module in ("numpy", "numpy.core.multiarray", "numpy._core.multiarray"):
            return _Pickled
        raise ValueError(f"it asks for {module}.{name}, and only arrays of numbers are read")


def _pictures(pickled: Any) -> np.ndarray:
    """The array that a pickle describes: bytes (pictures, 3072)."""
    _, shape, kind, by_columns, content = pickled.state
    if _text(kind.arguments[0]) != "u1" or len(shape) != 2:
        raise ValueError(f"its 'data' are {kind.arguments[0]} of shape {shape}, not rows of bytes")
    pixels = np.frombuffer(content, np.uint8).reshape(shape, order="F" if by_columns else "C")
    return pixels.reshape(-1, *SHAPE)
