"""LEAF's data sets from their JSON files: FEMNIST by writer, Shakespeare by role, and others.
LEAF's JSON files (Caldas et al. 2018): users, and the samples of each.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from mpifed.data.archives import contents, names, places
from mpifed.data.partitioned import PIECE, GroupedDataset, Parts, Pool, Source
from mpifed.data.sources.mnist import CHARACTERS
from mpifed.data.sources.shakespeare import UNKNOWN, VOCABULARIES, Vocabulary, codes
from mpifed.errors import InputError, one_line
from mpifed.mpi.communicator import Communicator

# Bytes of memory for each byte of a file: `1.0, ` becomes an object of 24 bytes and its place.
HELD = 10.0

JSON = (".json", ".json.gz", ".json.xz", ".json.bz2")


@dataclass(frozen=True)
class Shard:
    """Samples of one user in one file."""

    user: str
    x: np.ndarray
    y: np.ndarray
    is_text: bool
    is_test: bool


def read(raw: str | None, folder: str, vocabulary: str) -> Iterator[Shard]:
    """Yield the samples of every user in every file, in the order of the files."""
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


BRIGHTEST = 255


class Leaf(GroupedDataset):
    """A data set of LEAF (Caldas et al. 2018): JSON files of users; every user a client.

    Parameters
    ----------
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
        n_clients: int,
        run_seed: int,
        communicator: Communicator,
        *,
        raw: str | None = None,
        vocabulary: Vocabulary = "printable",
        split: Parts | None = None,
        **options: Any,
    ) -> None:
        options["split"] = split

        def find() -> Source:
            shards = list(read(raw, "leaf", VOCABULARIES[vocabulary]))
            return _source("leaf", shards, tuple(VOCABULARIES[vocabulary]))

        super().__init__(n_clients, run_seed, communicator, find, **options)


class Femnist(GroupedDataset):
    """FEMNIST: EMNIST's characters (28, 28) by writer, 62 labels, as LEAF's JSON files. Marfoq et
    al. 2021 take 539 writers.

    Parameters
    ----------
    raw : str, optional
        Directory or archive with ``all_data``, or with ``train`` and ``test``, or with the JSON
        files themselves, plain or with .gz, .xz or .bz2. None is ``$MPIFED_DATA/femnist``.
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
        super().__init__(
            n_clients,
            run_seed,
            communicator,
            lambda: _femnist(list(read(raw, "femnist", "a"))),
            **options,
        )


def _femnist(shards: list[Shard]) -> Source:
    for shard in shards:
        if shard.is_text or shard.x.shape[1:] != (784,):
            raise InputError(
                f"data.name is 'femnist', but user '{shard.user}' has samples of shape "
                f"{shard.x.shape[1:]}, not 784 pixels; other data of LEAF are data.name=leaf"
            )
        if shard.y.max() >= 62:
            raise InputError(
                f"data.name is 'femnist', but user '{shard.user}' has the label {shard.y.max()}; "
                "allowed: 0 .. 61"
            )
    return _source("femnist", shards, tuple(CHARACTERS["byclass"]), (28, 28))


def _source(
    name: str,
    shards: list[Shard],
    class_names: tuple[str, ...],
    shape: tuple[int, ...] | None = None,
) -> Source:
    """All samples, user after user in the order of the files, training files first."""
    shards = sorted(shards, key=lambda shard: shard.is_test)
    users = {user: number for number, user in enumerate(dict.fromkeys(s.user for s in shards))}
    first = shards[0]
    for shard in shards:
        if shard.x.shape[1:] != first.x.shape[1:] or shard.is_text != first.is_text:
            raise InputError(
                f"data.name is '{name}', but samples of user '{shard.user}' have the shape "
                f"{shard.x.shape[1:]}, those of '{first.user}' {first.x.shape[1:]}"
            )
    labels = np.concatenate([shard.y for shard in shards])
    named = class_names if first.is_text or shape is not None else ()
    n_classes = len(named) or int(labels.max()) + 1
    whole = all(shard.x.dtype == np.uint8 for shard in shards)
    divisor = BRIGHTEST if whole and not first.is_text else 1
    pool = Pool(
        name,
        labels,
        n_classes,
        shape or first.x.shape[1:],
        "uint8" if whole else "float64",
        divisor,
        class_names=named,
    )
    sizes = [len(shard.y) for shard in shards]
    is_test = np.repeat([shard.is_test for shard in shards], sizes)
    return Source(
        pool,
        lambda: _pieces(shards, pool),
        owner=np.repeat([users[shard.user] for shard in shards], sizes),
        is_test=is_test if is_test.any() else None,
        is_text=first.is_text,
    )


def _pieces(shards: list[Shard], pool: Pool) -> Iterator[np.ndarray]:
    waiting: list[np.ndarray] = []
    held = 0
    for shard in shards:
        waiting.append(_stored(shard.x, pool))
        held += len(shard.x)
        if held >= PIECE:
            ready = np.concatenate(waiting)
            whole = held - held % PIECE
            yield from np.split(ready[:whole], range(PIECE, whole, PIECE))
            waiting, held = [ready[whole:]], held - whole
    if held:
        yield np.concatenate(waiting)


def _stored(x: np.ndarray, pool: Pool) -> np.ndarray:
    """Samples as ``pool`` stores them: bytes, or fractions where some user's are no bytes."""
    if x.dtype == np.uint8 and pool.stored != "uint8":
        x = x / BRIGHTEST
    return x.reshape(-1, *pool.input_shape)
