"""Shakespeare's plays as plain text: every role a client, whose next character is to be told."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Le

from mpifed.data.base import Dataset, Shards, Split
from mpifed.data.characters import UNKNOWN, VOCABULARIES, Vocabulary, codes
from mpifed.data.compressed import bare_name, located, opened
from mpifed.data.dealing import FEWEST, Fraction, MinSamples, share_of
from mpifed.data.delivery import agreed
from mpifed.data.natural import Choose, chosen
from mpifed.data.plays import speeches, texts_of_roles
from mpifed.data.pooled import PIECE, Pool, describe, load_pooled
from mpifed.data.splits import Consecutive
from mpifed.errors import InputError
from mpifed.mpi.communicator import Communicator
from mpifed.random import stream

HELD = 24.0
"""Bytes of memory for each byte of the text: its lines, speeches and roles."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Windows:
    """Samples cut out of one text.

    Attributes
    ----------
    characters : ndarray
        The text, uint8.
    starts : ndarray
        Where the input of each sample begins, int64 (samples,); its target follows the input.
    length : int
        Characters of an input.
    """

    characters: np.ndarray
    starts: np.ndarray
    length: int

    def targets(self) -> np.ndarray:
        """Return the character after each input, uint8 (samples,)."""
        return self.characters[self.starts + self.length]

    def count_targets(self, trained: np.ndarray, every: bool, n_classes: int) -> np.ndarray:
        """Return how often each character is a target of the samples ``trained``, int64."""
        first = 1 if every else self.length
        begins = self.starts[trained]
        size = len(self.characters) + 1
        times = np.bincount(begins + first, minlength=size)
        times -= np.bincount(begins + self.length + 1, minlength=size)
        covered = np.cumsum(times)[:-1]
        counts = np.bincount(self.characters, covered, n_classes)
        return counts.astype(np.int64)

    def pieces(self) -> Iterator[np.ndarray]:
        """Yield the inputs, ``PIECE`` at a time, uint8 (k, length)."""
        within = np.arange(self.length)
        for start in range(0, len(self.starts), PIECE):
            yield self.characters[self.starts[start : start + PIECE, None] + within]


class Shakespeare(Dataset):
    """Shakespeare by speaking role: 80 characters, whose next ones are to be predicted.

    What a role says in a play is one text, whose lines are joined by spaces. Its first 60 % are for
    training, the next 20 % for validation, the rest for testing (McMahan et al. 2017 and Marfoq et
    al. 2021 cut in this order too); windows do not reach from one part into the other. A sample is
    the characters' places in the vocabulary, (sequence_length,); its label is that of the
    character which follows, or of the one which follows each of them. ``class_names`` of the
    description are the characters and ``label_counts`` how often each is a training label, from
    which a loss can weigh them (Marfoq et al. 2021, App. I.1.4).

    Parameters
    ----------
    path : str, optional
        The text, plain or with .gz, .xz or .bz2, or the name of one in the directory ``raw``. None
        is the only file there.
    raw : str, optional
        Directory of the text. None is ``$MPIFED_DATA/shakespeare``.
    layout : {'auto', 'headed', 'indented'}
        How speeches are set: ``ROLE:`` on a line above them, or ``  ROLE. text`` as in Project
        Gutenberg's edition. ``auto`` takes the layout in which more speeches are found.
    vocabulary : {'printable', 'leaf'}
        The 100 printable ASCII characters, as in the published code of Marfoq et al. 2021, or the
        80 of LEAF, as in their paper. Other characters are left out of the text.
    sequence_length : int
        Characters of an input: 80 in the published code, 200 in the paper.
    stride : int
        Characters from the beginning of one sample to that of the next.
    targets : {'next', 'every'}
        What is predicted: the character after the whole input (task ``classification``), as in the
        paper and LEAF, or the one after each position (task ``sequence``), as in the published
        code.
    fraction : float
        Share of all samples that is used, drawn by the seed.
    min_samples : int
        Fewest samples of a role that is taken; each part must have one.
    choose : {'random', 'first', 'largest'}
        Which roles are taken where there are more than clients.
    seed : int, optional
        Seed of the data set. None is the run's.
    """

    is_uint8 = True

    def __init__(
        self,
        n_clients: int,
        run_seed: int,
        communicator: Communicator,
        *,
        path: str | None = None,
        raw: str | None = None,
        layout: Literal["auto", "headed", "indented"] = "auto",
        vocabulary: Vocabulary = "printable",
        sequence_length: Annotated[int, Ge(1), Le(100_000)] = 80,
        stride: Annotated[int, Ge(1)] = 1,
        targets: Literal["next", "every"] = "next",
        fraction: Fraction = 1.0,
        min_samples: MinSamples = FEWEST,
        choose: Choose = "random",
        seed: Annotated[int, Ge(0)] | None = None,
    ) -> None:
        self.seed: int = run_seed if seed is None else seed
        self._communicator = communicator
        self._windows: Windows | None = None
        every = targets == "every"

        def read() -> tuple[Pool, Consecutive, np.ndarray]:
            place = located(path, "shakespeare", raw)
            found = speeches(_text(place), None if layout == "auto" else layout)
            texts = list(texts_of_roles(found).values())
            tokens = _encoded(place, texts, VOCABULARIES[vocabulary])
            parts = np.array([_parts(len(own), sequence_length, stride) for own in tokens])
            kept = _kept(parts[:, :, 1].reshape(-1), fraction, self.seed)
            sizes = np.array([len(own) for own in kept]).reshape(-1, 3)
            usable = np.where(sizes.min(axis=1, initial=1 << 62) > 0, sizes.sum(axis=1), 0)
            rng = stream(self.seed, "partition")
            roles = chosen(usable, n_clients, rng, min_samples, choose)
            texts_taken = [tokens[role] for role in roles]
            places = [kept[3 * role + part] for role in roles for part in range(3)]
            self._windows = _windows(texts_taken, parts[roles], places, sequence_length, stride)
            name = f"shakespeare-{bare_name(place).removesuffix('.txt')}"
            labels = self._windows.targets()
            characters = tuple(VOCABULARIES[vocabulary])
            pool = Pool(
                name, labels, len(characters), (sequence_length,), "uint8", class_names=characters
            )
            dealt = Consecutive(sizes[roles])
            trained = np.repeat(np.tile([True, False, False], n_clients), dealt.sizes.reshape(-1))
            return pool, dealt, self._windows.count_targets(trained, every, len(characters))

        self._pool, self._dealt, counts = agreed(communicator, read)
        about = replace(describe(self._pool, self._dealt), label_counts=counts)
        self.description = replace(about, task="sequence") if every else about

    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """Return the shards of ``client_ids``. Collective."""
        shards = load_pooled(
            self._pool, self._dealt, self._pieces, client_ids, dtype, self._communicator
        )
        if self.description.task == "classification":
            return shards
        train, val, test = map(_at_every_position, (shards.train, shards.val, shards.test))
        return replace(shards, train=train, val=val, test=test)

    def _pieces(self) -> Iterator[np.ndarray]:
        assert self._windows is not None
        yield from self._windows.pieces()


def _at_every_position(split: Split) -> Split:
    """The character after each of an input's, int64 (samples, length)."""
    y = torch.cat([split.x[:, 1:].to(torch.int64), split.y[:, None]], dim=1)
    return replace(split, y=y)


def _text(place: Path) -> str:
    with opened(place, held=HELD) as file:
        content = file.read()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"data.path is '{place}', which is not text in UTF-8 (byte {error.start})"
        ) from None


def _encoded(place: Path, texts: list[str], vocabulary: str) -> list[np.ndarray]:
    """The characters of each role's text, uint8, without those that the vocabulary lacks."""
    if not texts:
        raise InputError(
            f"data.path is '{place}', in which no role speaks; speeches begin with 'ROLE:' on a "
            "line after an empty one, or with '  ROLE. ' after two spaces (data.layout)"
        )
    tokens = [codes(text, vocabulary) for text in texts]
    lacking = sum(int((own == UNKNOWN).sum()) for own in tokens)
    if lacking:
        log.warning("'%s': %d characters beyond the vocabulary are left out", place, lacking)
    return [own[own != UNKNOWN] for own in tokens]


def _parts(n: int, length: int, stride: int) -> list[tuple[int, int]]:
    """First character and number of samples of the training, validation and test part."""
    ends = [0, 3 * n // 5, 4 * n // 5, n]
    return [
        (start, max(0, (end - start - length - 1) // stride + 1)) for start, end in pairwise(ends)
    ]


def _kept(sizes: np.ndarray, fraction: float, seed: int) -> list[np.ndarray]:
    """The numbers of those samples of each part that are used, ascending; ``sizes`` (parts,)."""
    if fraction == 1:
        return [np.arange(size) for size in sizes]
    ends = np.cumsum(sizes)
    kept = share_of(int(sizes.sum()), fraction, seed)
    of_parts = np.split(kept, np.searchsorted(kept, ends[:-1]))
    return [own - first for own, first in zip(of_parts, ends - sizes, strict=True)]


def _windows(
    tokens: list[np.ndarray], parts: np.ndarray, kept: list[np.ndarray], length: int, stride: int
) -> Windows:
    """Samples of these texts, whose ``parts`` (texts, 3, 2) ``_parts`` gives, those ``kept``."""
    first = np.repeat(np.cumsum([0, *map(len, tokens)])[:-1], 3) + parts[:, :, 0].reshape(-1)
    starts = [begin + stride * own for begin, own in zip(first, kept, strict=True)]
    return Windows(np.concatenate(tokens), np.concatenate(starts), length)
