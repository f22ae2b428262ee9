"""CIFAR-10 and CIFAR-100 in the published python version: pickles of pictures and labels."""

from __future__ import annotations

import io
import pickle
import pickletools
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np

from mpifed.data.archives import contents, places
from mpifed.data.partitioned import PIECE, DealtDataset, Pool, Source
from mpifed.data.partitions import Alpha
from mpifed.errors import InputError, one_line
from mpifed.mpi.communicator import Communicator

# Bytes of memory for each byte of a pickle: the pickle, its texts and the arrays made of them.
HELD = 6.0

NUMBERS = ("b1", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8")

# What published pickles of arrays consist of; the rest makes objects of other kinds.
OPCODES = (
    *("PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP", "NONE", "NEWTRUE", "NEWFALSE"),
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "FLOAT", "BINFLOAT"),
    *("BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *(
        "EMPTY_LIST",
        "APPEND",
        "APPENDS",
        "LIST",
        "EMPTY_TUPLE",
        "TUPLE",
        "TUPLE1",
        "TUPLE2",
        "TUPLE3",
    ),
    *("EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "GET", "BINGET", "LONG_BINGET"),
    *("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"),
)

MOST_OPCODES = 1 << 24


def load(content: bytes, path: str | Path) -> Any:
    """Return what a pickle holds."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python, about texts that it then refuses
            _check(content)
        return _arrays(_Restricted(io.BytesIO(content), encoding="bytes").load())
    except InputError as error:
        raise InputError(f"'{path}' cannot be read: {error}") from None
    except Exception as error:
        # The bytes of a stranger make the unpickler raise almost anything.
        reason = one_line(str(error) or type(error).__name__, 120)
        raise InputError(f"'{path}' is not a pickle of arrays and lists: {reason}") from None


def _check(content: bytes) -> None:
    """Refuse opcodes beyond ``OPCODES`` and a memo larger than the pickle."""
    for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        if opcode.name not in OPCODES:
            raise InputError(f"it makes objects ({opcode.name}), which are not data")
        if opcode.name in ("PUT", "LONG_BINPUT") and not 0 <= int(argument or 0) <= len(content):
            raise InputError("it numbers more objects than it has bytes")
        if count > MOST_OPCODES:
            raise InputError(f"it has more than {MOST_OPCODES} steps")


class _Stored:
    """What a pickle makes; it may not be changed but by its own ``__setstate__``."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        raise InputError("it changes what is not an array")


class _Type(_Stored):
    """A type of numbers, of which the pickle sets the order of bytes."""

    __slots__ = ("found",)

    def __init__(self, name: Any, *_: Any) -> None:
        text = name.decode("ascii") if isinstance(name, bytes) else name
        if text not in NUMBERS:
            raise InputError(f"it holds an array of {one_line(repr(text), 40)}, not of numbers")
        self.found = np.dtype(text)

    def __setstate__(self, state: Any) -> None:
        order = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        if order not in ("|", "=", "<", ">") or any(state[2:5]):
            raise InputError("it holds an array of records")
        self.found = np.dtype(order + self.found.str[1:])


class _Array(_Stored):
    """An array, which the pickle makes empty and then fills."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values = np.zeros(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, by_columns, content = state
        if not (isinstance(kind, _Type) and isinstance(content, bytes)):
            raise InputError("it holds an array of objects")
        values = np.frombuffer(content, kind.found)
        self.values = values.reshape(shape, order="F" if by_columns else "C")


class _Call(_Stored):
    """A function that a pickle may call."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)


def _encode(text: str, encoding: Any = "latin1") -> bytes:
    """Bytes as Python 3 writes them for Python 2: a text that is to be encoded."""
    if encoding not in ("latin1", b"latin1"):
        raise InputError(f"it encodes a text as {one_line(repr(encoding), 40)}")
    return text.encode("latin1")


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        known: dict[tuple[str, str], Callable[..., Any]] = {
            ("numpy.core.multiarray", "_reconstruct"): lambda *_: _Array(),
            ("numpy._core.multiarray", "_reconstruct"): lambda *_: _Array(),
            ("numpy", "ndarray"): _nothing,
            ("numpy", "dtype"): _Type,
            ("_codecs", "encode"): _encode,
        }
        if (module, name) not in known:
            raise InputError(
                f"it asks for {one_line(f'{module}.{name}', 80)}; only arrays of numbers, lists, "
                "dictionaries, texts and bytes are read"
            )
        return _Call(known[module, name])


def _nothing(*_: Any) -> NoReturn:
    raise InputError("it makes an array in a way that published files do not")


def _arrays(value: Any, depth: int = 0) -> Any:
    """``value`` with the arrays that stand-ins hold; ``InputError`` for functions and types."""
    if depth > 20:
        raise InputError("its values are nested too deep")
    if isinstance(value, _Array):
        return value.values
    if isinstance(value, _Stored):
        raise InputError("it holds a function or a type")
    if isinstance(value, dict):
        return {_arrays(k, depth + 1): _arrays(v, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_arrays(item, depth + 1) for item in value)
    return value


BRIGHTEST = 255

# Pictures of each of the two data sets.
PUBLISHED = 60_000

SHAPE = (3, 32, 32)
COMPRESSED = r"(?:\.gz|\.xz|\.bz2)?"


@dataclass(frozen=True)
class Form:
    """How one of the two data sets is laid out."""

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
    """Return the data set that ``raw`` names."""
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
        for name, content in contents(place, is_new, HELD):
            match = pattern.fullmatch(name)
            assert match is not None
            found[match[1]] = (place / name, load(content, place / name))
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
