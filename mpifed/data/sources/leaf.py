"""LEAF's data sets (Caldas et al. 2018) from their JSON files of users and the samples of each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from mpifed.data.archives import contents, homes, names, reading
from mpifed.data.partitioned import GroupedName, Parts, Pool, PooledDataset, Source
from mpifed.data.partitions import Choose
from mpifed.data.sources.mnist import CHARACTERS
from mpifed.data.sources.shakespeare import VOCABULARIES, Vocabulary, windows_of
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
        partition: GroupedName = "natural",
        choose: Choose = "random",
        raw: str | None = None,
        vocabulary: Vocabulary = "printable",
        split: Parts | None = None,
        **options: Any,
    ) -> None:
        options["partition"], options["split"] = partition, split
        characters = VOCABULARIES[vocabulary]

        def find() -> Source:
            shards = read(raw, "leaf", characters)
            return _source("leaf", shards, characters if shards[0].is_text else "")

        super().__init__(find, {"choose": choose}, *run, **options)


class Femnist(PooledDataset):
    """FEMNIST: EMNIST's characters (28, 28) by writer, 62 labels, as LEAF's JSON files. Marfoq et
    al. 2021 take 539 writers.

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
        partition: GroupedName = "natural",
        choose: Choose = "random",
        raw: str | None = None,
        **options: Any,
    ) -> None:
        options["partition"] = partition
        super().__init__(lambda: _femnist(raw), {"choose": choose}, *run, **options)


@dataclass(frozen=True)
class Shard:
    """Samples of one user in one file; x of texts are places in a vocabulary."""

    user: str
    x: np.ndarray
    y: np.ndarray
    is_text: bool
    is_test: bool


def read(raw: str | None, folder: str, vocabulary: str) -> list[Shard]:
    """Return the samples of every user in every file, training files before test files."""
    among = homes(raw, folder)
    for root in among:
        is_test = _chosen([name for name in names(root) if name.endswith(JSON)])
        shards = [
            shard
            for name, content in contents(root, is_test.__contains__, HELD)
            for shard in _of_file(root / name, content, is_test[name], vocabulary)
        ]
        if shards:
            return sorted(shards, key=lambda shard: shard.is_test)
    raise InputError(
        f"data.raw is '{among[0]}', which has no file .json of LEAF, in all_data or train and test"
    )


def _chosen(names: list[str]) -> dict[str, bool]:
    """The files that count, and whether each is a test file."""
    folders = {name: PurePosixPath(name).parent.name for name in names}
    for kind in (("train", "test"), ("all_data",), ("",)):
        if kind[0] in folders.values():
            return {name: at == "test" for name, at in folders.items() if at in kind}
    return dict.fromkeys(names, False) if len(set(folders.values())) == 1 else {}


def _of_file(path: Path, content: bytes, is_test: bool, vocabulary: str) -> Iterator[Shard]:
    with reading(path):
        values = json.loads(content)
        users, data = values["users"], values["user_data"]
    for user in users:
        with reading(path / f"user '{one_line(user, 40)}'"):
            x, y = data[user]["x"], data.pop(user)["y"]
            if not x and not y:
                continue
            is_text = isinstance(x[0], str)
            x, y = _texts(x, y, vocabulary) if is_text else _numbers(x, y)
            if len(x) != len(y):
                raise ValueError(f"it has {len(x)} 'x' and {len(y)} 'y'")
        yield Shard(user, x, y, is_text, is_test)


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
    shards = read(raw, "femnist", "a")
    for shard in shards:
        if shard.is_text or shard.x.shape[1:] != (784,) or shard.y.max() >= 62:
            raise InputError(
                f"data.name is 'femnist', but samples of user '{shard.user}' are not 784 pixels "
                "with labels below 62; other data of LEAF are data.name=leaf"
            )
    return _source("femnist", shards, CHARACTERS["byclass"], (28, 28))


def _source(
    name: str, shards: list[Shard], characters: str, shape: tuple[int, ...] | None = None
) -> Source:
    """All samples, user after user in the order of the files."""
    numbers = {user: number for number, user in enumerate(dict.fromkeys(s.user for s in shards))}
    first = shards[0]
    for shard in shards:
        if shard.x.shape[1:] != first.x.shape[1:] or shard.is_text != first.is_text:
            raise InputError(
                f"samples of users '{first.user}' and '{shard.user}' of '{name}' have the shapes "
                f"{first.x.shape[1:]} and {shard.x.shape[1:]}"
            )
    labels = np.concatenate([shard.y for shard in shards])
    are_bytes = all(shard.x.dtype == np.uint8 for shard in shards)
    pool = Pool(
        *(name, labels, len(characters) or int(labels.max()) + 1, shape or first.x.shape[1:]),
        "uint8" if are_bytes else "float64",
        BRIGHTEST if are_bytes and not first.is_text else 1,
        class_names=tuple(characters),
    )

    def pieces() -> Iterator[np.ndarray]:
        for shard in shards:
            # Bytes become fractions where some user's samples are no bytes.
            x = shard.x / BRIGHTEST if shard.x.dtype == np.uint8 and not are_bytes else shard.x
            yield x.reshape(-1, *pool.input_shape)

    sizes = [len(shard.y) for shard in shards]
    is_test = np.repeat([shard.is_test for shard in shards], sizes)
    owner = np.repeat([numbers[shard.user] for shard in shards], sizes)
    return Source(
        pool, pieces, owner, is_test=is_test if is_test.any() else None, is_text=first.is_text
    )
