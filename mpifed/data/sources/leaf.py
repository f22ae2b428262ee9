"""LEAF's data sets (Caldas et al. 2018) from their JSON files of users and the samples of each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from mpifed.data.sources.mnist import CHARACTERS
from mpifed.data.sources.shakespeare import VOCABULARIES, Vocabulary, windows_of
from mpifed.dataset import Pool, PooledDataset, Source, archives, partitions
from mpifed.errors import InputError, one_line

# Bytes of memory for each byte of a file: `1.0, ` becomes an object of 24 bytes and its place.
HELD = 10.0

JSON = (".json", ".json.gz", ".json.xz", ".json.bz2")
BRIGHTEST = 255


class Leaf(PooledDataset):
    """A data set of LEAF (Caldas et al. 2018): JSON files of users; every user a client.

    Parameters
    ----------
    partition : str
        How samples are dealt to the clients: each gets all samples of one user (``natural``), or
        they are dealt whoever they come from.
    choose : {'random', 'first', 'largest'}
        Which users are taken in the partition ``natural`` where there are more than clients.
    raw : str, optional
        Directory or archive with ``all_data``, or with ``train`` and ``test``, or with the JSON
        files themselves, plain or with .gz, .xz or .bz2. None is ``$MPIFED_DATA/leaf``.
    vocabulary : {'printable', 'leaf'}
        Characters of texts: 100 as in the published code of Marfoq et al. 2021, or LEAF's 80.
    split : {'60_20_20', 'in_order', 'published'}, optional
        How a client's samples become training, validation and test samples: 60/20/20 at random, the
        same in their order, or as the files have it. None is in_order for texts, whose windows
        overlap, else 60_20_20.
    """

    def __init__(
        self,
        *run: Any,
        partition: partitions.GroupedName = "natural",
        choose: partitions.Choose = "random",
        raw: str | None = None,
        vocabulary: Vocabulary = "printable",
        split: partitions.Parts | None = None,
        **options: Any,
    ) -> None:
        options["partition"], options["split"] = partition, split
        characters = VOCABULARIES[vocabulary]

        def find() -> Source:
            users = read(raw, "leaf", characters)
            return _source("leaf", users, characters if users[0].is_text else "")

        super().__init__(find, {"choose": choose}, *run, **options)


class Femnist(PooledDataset):
    """FEMNIST (Caldas et al. 2018): EMNIST's characters by writer, as LEAF's JSON files.

    They are (28, 28), of 62 labels. Marfoq et al. 2021 take 539 writers.

    Parameters
    ----------
    partition : str
        How samples are dealt to the clients: each gets all samples of one writer (``natural``), or
        they are dealt whoever they come from.
    choose : {'random', 'first', 'largest'}
        Which writers are taken in the partition ``natural`` where there are more than clients.
    raw : str, optional
        Directory or archive with ``all_data``, or with ``train`` and ``test``, or with the JSON
        files themselves, plain or with .gz, .xz or .bz2. None is ``$MPIFED_DATA/femnist``.
    """

    def __init__(
        self,
        *run: Any,
        partition: partitions.GroupedName = "natural",
        choose: partitions.Choose = "random",
        raw: str | None = None,
        **options: Any,
    ) -> None:
        options["partition"] = partition
        super().__init__(lambda: _femnist(raw), {"choose": choose}, *run, **options)


@dataclass(frozen=True)
class UserSamples:
    """Samples of one user in one file; x of texts are places in a vocabulary."""

    name: str
    x: np.ndarray
    y: np.ndarray
    is_text: bool
    is_test: bool


def read(raw: str | None, folder: str, vocabulary: str) -> list[UserSamples]:
    """Return the samples of every user in every file, training files before test files."""
    among = archives.homes(raw, folder)
    for root in among:
        is_test = _chosen([name for name in archives.names(root) if name.endswith(JSON)])
        users = [
            user
            for name, content in archives.contents(root, is_test.__contains__, HELD)
            for user in _of_file(root / name, content, is_test[name], vocabulary)
        ]
        if users:
            return sorted(users, key=lambda user: user.is_test)
    raise InputError(
        f"data.raw is '{among[0]}', which has no file .json of LEAF, in all_data or train and test"
    )


def _chosen(members: list[str]) -> dict[str, bool]:
    """The files that count, and whether each is a test file."""
    folders = {name: PurePosixPath(name).parent.name for name in members}
    for kind in (("train", "test"), ("all_data",), ("",)):
        if kind[0] in folders.values():
            return {name: at == "test" for name, at in folders.items() if at in kind}
    return dict.fromkeys(members, False) if len(set(folders.values())) == 1 else {}


def _of_file(path: Path, content: bytes, is_test: bool, vocabulary: str) -> Iterator[UserSamples]:
    with archives.reading(path):
        values = json.loads(content)
        users, data = values["users"], values["user_data"]
    for user in users:
        with archives.reading(path / f"user '{one_line(user, 40)}'"):
            x, y = data[user]["x"], data.pop(user)["y"]
            if not x and not y:
                continue
            is_text = isinstance(x[0], str)
            x, y = _texts(x, y, vocabulary) if is_text else _numbers(x, y)
            if len(x) != len(y):
                raise ValueError(f"it has {len(x)} 'x' and {len(y)} 'y'")
        yield UserSamples(user, x, y, is_text, is_test)


def _texts(x: list[str], y: list[str], vocabulary: str) -> tuple[np.ndarray, np.ndarray]:
    inputs, targets = windows_of(x, vocabulary), windows_of(y, vocabulary)
    if targets.shape[1] != 1:
        raise ValueError("it has texts, but not one character as the target of each")
    return inputs, targets[:, 0].astype(np.int64)


def _numbers(x: list[Any], y: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """x as bytes where all numbers are bytes over 255, and labels."""
    values, labels = np.array(x, np.float64), np.array(y, np.float64)
    if not np.isfinite(values).all():
        raise ValueError("it has an 'x' that is not finite")
    if labels.ndim != 1 or not np.all((labels == labels // 1) & (labels >= 0) & (labels < 1 << 31)):
        raise ValueError("it has a label that is not a whole number from 0 on")
    values = values.reshape(len(x), -1) if values.ndim < 2 else values
    levels = np.round(values * BRIGHTEST)
    if np.all((values >= 0) & (values <= 1) & (levels / BRIGHTEST == values)):
        values = levels.astype(np.uint8)
    return values, labels.astype(np.int64)


def _femnist(raw: str | None) -> Source:
    users = read(raw, "femnist", "a")
    for user in users:
        if user.is_text or user.x.shape[1:] != (784,) or user.y.max() >= 62:
            raise InputError(
                f"data.name is 'femnist', but samples of user '{user.name}' are not 784 pixels "
                "with labels below 62; other data of LEAF are data.name=leaf"
            )
    return _source("femnist", users, CHARACTERS["byclass"], (28, 28))


def _source(
    name: str, users: list[UserSamples], characters: str, shape: tuple[int, ...] | None = None
) -> Source:
    """All samples, user after user in the order of the files."""
    numbers = {user: number for number, user in enumerate(dict.fromkeys(s.name for s in users))}
    first = users[0]
    for user in users:
        if user.x.shape[1:] != first.x.shape[1:] or user.is_text != first.is_text:
            raise InputError(
                f"samples of users '{first.name}' and '{user.name}' of '{name}' have the shapes "
                f"{first.x.shape[1:]} and {user.x.shape[1:]}"
            )
    labels = np.concatenate([user.y for user in users])
    are_bytes = all(user.x.dtype == np.uint8 for user in users)
    pool = Pool(
        *(name, labels, len(characters) or int(labels.max()) + 1, shape or first.x.shape[1:]),
        "uint8" if are_bytes else "float64",
        BRIGHTEST if are_bytes and not first.is_text else 1,
        class_names=tuple(characters),
        is_text=first.is_text,
    )

    def pieces() -> Iterator[np.ndarray]:
        for user in users:
            # Bytes become fractions where some user's samples are no bytes.
            x = user.x / BRIGHTEST if user.x.dtype == np.uint8 and not are_bytes else user.x
            yield x.reshape(-1, *pool.input_shape)

    sizes = [len(user.y) for user in users]
    is_test = np.repeat([user.is_test for user in users], sizes)
    owner = np.repeat([numbers[user.name] for user in users], sizes)
    return Source(pool, pieces, owner, is_test=is_test if is_test.any() else None)
