"""Pickles of published data, read without running what they name.

A pickle is a program, whose author chooses the functions that it calls. Here it may make numbers,
texts, bytes, lists, tuples, dictionaries and arrays of numbers; whatever else it asks for is
refused. Arrays are made by this module from their shape, type and bytes, not by numpy's own
functions for pickles.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from mpifed.errors import InputError, one_line

HELD = 6.0
"""Bytes of memory for each byte of a pickle: the pickle, its texts and the arrays made of them."""

NUMBERS = ("b1", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8")

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
"""What published pickles of arrays consist of; the rest makes objects of other kinds."""

MOST_OPCODES = 1 << 24


def load(content: bytes, path: str | Path) -> Any:
    """Return what a pickle holds.

    Parameters
    ----------
    content : bytes
        The pickle, of any protocol. Texts of Python 2 become bytes.
    path : str or Path
        Where it is from, for messages.

    Returns
    -------
    Any
        Numbers, texts, bytes, lists, tuples, dictionaries and arrays.

    Raises
    ------
    InputError
        If it is damaged, or asks for anything else.

    Examples
    --------
    >>> load(pickle.dumps({"labels": [6, 9]}), "data_batch_1")
    {'labels': [6, 9]}
    """
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
