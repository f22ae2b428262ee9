"""LEAF's data sets from their JSON files: FEMNIST by writer, Shakespeare by role, and others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mpifed.data.characters import VOCABULARIES, Vocabulary
from mpifed.data.dealt import Parts, Source
from mpifed.data.emnist import CHARACTERS
from mpifed.data.grouped import GroupedDataset
from mpifed.data.leaf_format import Shard, read
from mpifed.data.pooled import PIECE, Pool
from mpifed.errors import InputError
from mpifed.mpi.communicator import Communicator

BRIGHTEST = 255


class Leaf(GroupedDataset):
    """A data set of LEAF (Caldas et al. 2018): JSON files of users; every user a client.

    Texts, as Shakespeare's windows of 80 characters, become places in the vocabulary, and the
    character that follows the label.

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
    """FEMNIST: EMNIST's characters (28, 28) by writer, 62 labels, as LEAF's JSON files.

    Pixels are 1 where the paper is empty, as in the files. Marfoq et al. 2021 take 539 writers.

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
