"""Shakespeare's plays as plain text: every role a client, whose next character is to be told."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Le

from mpifed.dataset import (
    Communicator,
    Pool,
    PooledDataset,
    Shards,
    Source,
    Split,
    archives,
    partitions,
    stream,
)
from mpifed.errors import InputError

Layout = Literal["auto", "headed", "indented"]

HEAD = re.compile(r"([A-Za-z][^:]{0,60}):\s*")
INDENTED = re.compile(r"  ([A-Za-z][A-Za-z' ]{0,60})\. (.*)")
FLUSH = re.compile(r"([A-Z][A-Z' ]{1,60})\. (.*)")
AUTHOR = "by William Shakespeare"
ACTS = ("ACT ", "SCENE ")
# What notes of the publisher begin with.
STAGE = "<"

Vocabulary = Literal["printable", "leaf"]

# ``printable``: 100 ASCII characters, in Python's order, as in the published code of Marfoq et al.
# 2021. ``leaf``: the 80 of LEAF's Shakespeare (Caldas et al. 2018) and of the paper.
VOCABULARIES: dict[str, str] = {
    "printable": string.printable,
    "leaf": f"\n !\"&'(),-.{string.digits}:;>?{string.ascii_uppercase}[]{string.ascii_lowercase}}}",
}

# Marks a character that a vocabulary does not have.
UNKNOWN = 255

# Samples that are cut out of the text at once.
PIECE = 4096

# Bytes of memory for each byte of the text: its lines, speeches and roles.
HELD = 24.0


@dataclass(frozen=True)
class Speech:
    """What one role says at once."""

    play: int
    role: str
    lines: tuple[str, ...]


def speeches(text: str, layout: Layout = "auto") -> list[Speech]:
    """Return the speeches in a text, in their order, by the layout that finds most."""
    readers = {"headed": _headed, "indented": _indented}
    chosen_readers = [*readers.values()] if layout == "auto" else [readers[layout]]
    return max((read(text.splitlines()) for read in chosen_readers), key=len)


def texts_of_roles(spoken: Iterable[Speech]) -> dict[tuple[int, str], str]:
    """Return all that each role of each play says, one line after the other, single spaces
    between.
    """
    lines: dict[tuple[int, str], list[str]] = {}
    for speech in spoken:
        lines.setdefault((speech.play, speech.role), []).extend(speech.lines)
    return {role: re.sub(" +", " ", " ".join(words)).strip() for role, words in lines.items()}


def _headed(lines: Sequence[str]) -> list[Speech]:
    spoken: list[Speech] = []
    words: list[str] = []
    role = before = ""
    for line in [*lines, ""]:
        head = HEAD.fullmatch(line)
        if head and not before.strip():
            role, words = head[1], []
        elif line.strip():
            words.append(line.strip())
        else:
            if role:
                spoken.append(Speech(0, role.upper(), tuple(words)))
            role, words = "", []
        before = line
    return spoken


def _indented(lines: Sequence[str]) -> list[Speech]:
    starts = [0, *(number for number, line in enumerate(lines) if AUTHOR in line), len(lines)]
    spoken = []
    for play, (start, end) in enumerate(pairwise(starts)):
        indented, flush = (list(_of_play(play, lines[start:end], way)) for way in (False, True))
        spoken += indented if len(indented) >= len(flush) else flush
    return spoken


def _of_play(play: int, lines: Iterable[str], flush: bool) -> Iterator[Speech]:
    """The speeches of one play, where it is indented or not (``flush``)."""
    pattern = FLUSH if flush else INDENTED
    role = ""
    words: list[str] = []
    for line in [*lines, ""]:
        begins = pattern.fullmatch(line.rstrip())
        continues = bool(line.strip()) and (flush or line.startswith("    "))
        if begins is None and role and continues and not line.startswith(STAGE):
            words.append(line.strip())
            continue
        if role:
            yield Speech(play, role.upper(), tuple(words))
        role, words = "", []
        if begins is not None and not begins[1].upper().startswith(ACTS):
            role, words = begins[1], [begins[2].strip()]


def codes(text: str, vocabulary: str) -> np.ndarray:
    """Return the place of each character of ``text`` in ``vocabulary``, uint8 (characters,)."""
    points_of = np.array([ord(character) for character in vocabulary], np.int64)
    table = np.full(points_of.max() + 2, UNKNOWN, np.uint8)
    table[points_of] = np.arange(len(points_of))
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4").astype(np.int64)
    return table[np.minimum(points, len(table) - 1)]


def windows_of(texts: Sequence[str], vocabulary: str) -> np.ndarray:
    """Return texts of one length as ``codes``, (texts, length); ``ValueError`` for others."""
    if len(set(map(len, texts))) != 1 or not texts[0]:
        raise ValueError("it has texts of different lengths")
    windows = codes("".join(texts), vocabulary)
    if (windows == UNKNOWN).any():
        lacking = "".join(texts)[int((windows == UNKNOWN).argmax())]
        raise ValueError(f"it has the character {lacking!r}, which data.vocabulary lacks")
    return windows.reshape(len(texts), -1)


class Shakespeare(PooledDataset):
    """Shakespeare by speaking role: 80 characters, whose next ones are to be predicted.
    ``class_names`` of the description are the characters and ``label_counts`` how often each is a
    training label, from which a loss can weigh them (Marfoq et al. 2021, App. I.1.4).

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

    def __init__(
        self,
        n_clients: int,
        run_seed: int,
        communicator: Communicator,
        *,
        path: str | None = None,
        raw: str | None = None,
        layout: Layout = "auto",
        vocabulary: Vocabulary = "printable",
        sequence_length: Annotated[int, Ge(1), Le(100_000)] = 80,
        stride: Annotated[int, Ge(1)] = 1,
        targets: Literal["next", "every"] = "next",
        fraction: partitions.Fraction = 1.0,
        min_samples: partitions.MinSamples = partitions.FEWEST,
        choose: partitions.Choose = "random",
        seed: Annotated[int, Ge(0)] | None = None,
    ) -> None:
        self.seed: int = run_seed if seed is None else seed
        every = targets == "every"
        characters = VOCABULARIES[vocabulary]

        def read() -> Source:
            file_path = archives.located(path, "shakespeare", raw)
            with archives.opened(file_path, HELD) as file:
                spoken = speeches(file.read().decode("utf-8-sig"), layout)
            tokens = _encoded(file_path, list(texts_of_roles(spoken).values()), characters)
            # Of each part of each role's text: its first character, and the samples that are used.
            parts = np.array(
                [_parts(len(text_of_role), sequence_length, stride) for text_of_role in tokens]
            )
            used = used_samples(parts[:, :, 1].reshape(-1), fraction, self.seed)
            sizes = np.array([len(part) for part in used]).reshape(-1, 3)
            usable = np.where(sizes.min(axis=1) > 0, sizes.sum(axis=1), 0)
            rng = stream(self.seed, "partition")
            roles = partitions.chosen(usable, n_clients, rng, min_samples, choose)
            text = np.concatenate([tokens[role] for role in roles])
            ends = np.cumsum([len(tokens[role]) for role in roles])
            starts = [
                ends[client] - len(tokens[role]) + begin + stride * used[3 * role + part]
                for client, role in enumerate(roles)
                for part, begin in enumerate(parts[role, :, 0])
            ]
            positions = np.concatenate(starts)
            pool = Pool(
                f"shakespeare-{archives.bare_name(file_path).removesuffix('.txt')}",
                *(text[positions + sequence_length], len(characters), (sequence_length,), "uint8"),
                class_names=tuple(characters),
            )
            bounds = pairwise(np.cumsum([0, *map(len, starts)]).tolist())
            ranges = [range(first, end) for first, end in bounds]
            shard_rows = [*zip(ranges[::3], ranges[1::3], ranges[2::3], strict=True)]
            trained = np.concatenate(starts[::3])
            counts = np.zeros(len(characters), np.int64)
            for at in range(1 if every else sequence_length, sequence_length + 1):
                counts += np.bincount(text[trained + at], minlength=len(counts))

            def pieces() -> Iterator[np.ndarray]:
                for first in range(0, len(positions), PIECE):
                    window = positions[first : first + PIECE, None] + np.arange(sequence_length)
                    yield text[window]

            return Source(replace(pool, label_counts=counts), pieces, shard_rows=shard_rows)

        super().__init__(read, {}, n_clients, run_seed, communicator, seed=seed)
        if every:
            self.description = replace(self.description, task="sequence")

    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """Return the shards of ``client_ids``. Collective."""
        shards = super().load(client_ids, dtype)
        if self.description.task == "classification":
            return shards
        train, val, test = map(_at_every_position, (shards.train, shards.val, shards.test))
        return replace(shards, train=train, val=val, test=test)


def _at_every_position(split: Split) -> Split:
    """The character after each of an input's, int64 (samples, length)."""
    y = torch.cat([split.x[:, 1:].to(torch.int64), split.y[:, None]], dim=1)
    return replace(split, y=y)


def _encoded(path: Path, texts: list[str], vocabulary: str) -> list[np.ndarray]:
    """The characters of each role's text, uint8, without those that the vocabulary lacks."""
    if not texts:
        raise InputError(
            f"data.path is '{path}', in which no role speaks; speeches begin with 'ROLE:' on a "
            "line after an empty one, or with '  ROLE. ' after two spaces (data.layout)"
        )
    return [tokens[tokens != UNKNOWN] for tokens in (codes(text, vocabulary) for text in texts)]


def _parts(n: int, length: int, stride: int) -> list[tuple[int, int]]:
    """First character and number of samples of the training, validation and test part."""
    ends = [0, 3 * n // 5, 4 * n // 5, n]
    return [
        (start, max(0, (end - start - length - 1) // stride + 1)) for start, end in pairwise(ends)
    ]


def used_samples(sizes: np.ndarray, fraction: float, seed: int) -> list[np.ndarray]:
    """The numbers of those samples of each part that are used, ascending; ``sizes`` (parts,)."""
    ends = np.cumsum(sizes)
    used = partitions.share_of(int(sizes.sum()), fraction, seed)
    of_parts = np.split(used, np.searchsorted(used, ends[:-1]))
    return [numbers - first for numbers, first in zip(of_parts, ends - sizes, strict=True)]
