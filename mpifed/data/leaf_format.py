"""LEAF's JSON files (Caldas et al. 2018): users, and the samples of each.

A file has ``users`` (names), ``num_samples`` and ``user_data``: for each user ``x`` and ``y``, one
entry a sample. An ``x`` is a list of numbers, as FEMNIST's 784 pixels, or a text, as the 80
characters of Shakespeare; a ``y`` is a label or, beside texts, a character. Files lie in
``all_data``, or in ``train`` and ``test``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from mpifed.data.archives import contents, names, places
from mpifed.data.characters import UNKNOWN, codes
from mpifed.errors import InputError, one_line

HELD = 10.0
"""Bytes of memory for each byte of a file: `1.0, ` becomes an object of 24 bytes and its place."""

JSON = (".json", ".json.gz", ".json.xz", ".json.bz2")


@dataclass(frozen=True)
class Shard:
    """Samples of one user in one file.

    Attributes
    ----------
    user : str
        The user's name.
    x : ndarray
        uint8 where the values are whole multiples of 1/255 or characters, else float64;
        (samples, ...).
    y : ndarray
        Labels, int64 (samples,).
    is_text : bool
        Whether x are places of characters in the vocabulary.
    is_test : bool
        Whether the file belongs to the test part.
    """

    user: str
    x: np.ndarray
    y: np.ndarray
    is_text: bool
    is_test: bool


def read(raw: str | None, folder: str, vocabulary: str) -> Iterator[Shard]:
    """Yield the samples of every user in every file, in the order of the files.

    Parameters
    ----------
    raw : str or None
        A directory or archive; see ``places``.
    folder : str
        Its name in ``$MPIFED_DATA``.
    vocabulary : str
        The characters of texts.

    Raises
    ------
    InputError
        If there is no file, or one does not have the format.
    """
    among = places(raw, folder)
    for place in among:
        chosen = _chosen([name for name in names(place) if name.endswith(JSON)])
        for name, content in contents(place, chosen.__contains__, HELD):
            yield from _of_file(place / name, content, chosen[name], vocabulary)
        if chosen:
            return
    raise InputError(
        f"data.raw is '{among[0]}', which has no file .json of LEAF, in all_data or train and test"
    )


def _chosen(found: list[str]) -> dict[str, bool]:
    """The files that count, and whether each is a test file."""
    folders = {name: PurePosixPath(name).parent.name for name in found}
    for wanted in (("train", "test"), ("all_data",), ("",)):
        if wanted[0] in folders.values():
            return {name: at == "test" for name, at in folders.items() if at in wanted}
    return dict.fromkeys(found, False) if len(set(folders.values())) == 1 else {}


def _of_file(path: Path, content: bytes, is_test: bool, vocabulary: str) -> Iterator[Shard]:
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        reason = one_line(str(error) or "nested too deep", 120)
        raise InputError(f"'{path}' is not JSON: {reason}") from None
    del content
    if not isinstance(values, dict) or not isinstance(values.get("user_data"), dict):
        raise InputError(f"'{path}' is not a file of LEAF: it has no 'users' and 'user_data'")
    users, data = values.get("users"), values["user_data"]
    if not isinstance(users, list) or not all(isinstance(user, str) for user in users):
        raise InputError(f"'{path}' has no 'users' that are texts")
    if sorted(users) != sorted(data):
        raise InputError(f"'{path}' has other 'users' than 'user_data'")
    counts = values.get("num_samples", [None] * len(users))
    if not isinstance(counts, list) or len(counts) != len(users):
        raise InputError(f"'{path}' has no number in 'num_samples' for each user")
    for user, count in zip(users, counts, strict=True):
        said = f"'{path}', user '{one_line(user, 40)}',"
        shard = _shard(said, user, data.pop(user), is_test, vocabulary)
        if count is not None and count != len(shard.y):
            raise InputError(f"{said} has {len(shard.y)} samples, but 'num_samples' is {count}")
        if len(shard.y):
            yield shard


def _shard(said: str, user: str, samples: Any, is_test: bool, vocabulary: str) -> Shard:
    x = samples.get("x") if isinstance(samples, Mapping) else None
    y = samples.get("y") if isinstance(samples, Mapping) else None
    if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
        raise InputError(f"{said} has no lists 'x' and 'y' of the same length")
    if x and all(isinstance(each, str) for each in x):
        return Shard(user, *_texts(said, x, y, vocabulary), True, is_test)
    return Shard(user, _numbers(said, x), _labels(said, y), False, is_test)


def _texts(said: str, x: list[str], y: list[Any], vocabulary: str) -> tuple[np.ndarray, np.ndarray]:
    if len({len(each) for each in x}) > 1 or not x[0]:
        raise InputError(f"{said} has texts of different lengths")
    if not all(isinstance(each, str) and len(each) == 1 for each in y):
        raise InputError(f"{said} has texts, but not one character as the target of each")
    inputs, targets = codes("".join(x), vocabulary), codes("".join(y), vocabulary)
    for found, text in ((inputs, "".join(x)), (targets, "".join(y))):
        if (found == UNKNOWN).any():
            lacking = text[int((found == UNKNOWN).argmax())]
            raise InputError(
                f"{said} has the character {lacking!r}, which the vocabulary lacks "
                "(data.vocabulary)"
            )
    return inputs.reshape(len(x), -1), targets.astype(np.int64)


def _numbers(said: str, x: list[Any]) -> np.ndarray:
    try:
        values = np.array(x, np.float64)
    except (ValueError, TypeError, OverflowError):
        raise InputError(
            f"{said} has an 'x' that is neither a text nor as many numbers as the others"
        ) from None
    if not np.isfinite(values).all():
        raise InputError(f"{said} has an 'x' that is not finite")
    values = values.reshape(len(x), -1) if values.ndim < 2 else values
    levels = np.round(values * 255)
    if values.size and values.min() >= 0 and values.max() <= 1 and np.all(levels / 255 == values):
        return levels.astype(np.uint8)
    return values


def _labels(said: str, y: list[Any]) -> np.ndarray:
    fine = all(isinstance(label, (int, float)) and label == label // 1 >= 0 for label in y)
    if not fine or max(y, default=0) >= 1 << 31:
        raise InputError(f"{said} has a label that is not a whole number from 0 on")
    return np.array(y, np.int64)
