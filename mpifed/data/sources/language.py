"""Texts of clients as tokens, of which the next is to be told at every position."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le

from mpifed.data.sources.leaf import read as read_leaf
from mpifed.data.sources.own_files import ROWS, check_parquet, is_test_file, parquet_paths
from mpifed.data.sources.shakespeare import HELD, VOCABULARIES, speeches, texts_of_roles
from mpifed.dataset import (
    Pool,
    PooledDataset,
    Source,
    archives,
    partitions,
    raise_if_stop_requested,
    tokens,
)
from mpifed.errors import InputError

Layout = Literal["auto", "files", "roles", "leaf", "parquet"]

CHARACTERS = VOCABULARIES["printable"]


class Text(PooledDataset):
    """Texts of clients as tokens (task ``sequence``): the label of a position is the next token.

    A client's texts follow each other, parted by a line's end, and are cut into samples of
    ``sequence_length`` tokens without overlap; tokens that are left over at the end are not used.

    Parameters
    ----------
    partition : str
        How samples are dealt to the clients: each gets all samples of one source (``natural``), or
        they are dealt whoever they come from.
    choose : {'random', 'first', 'largest'}
        Which sources are taken in the partition ``natural`` where there are more than clients.
    path : str, optional
        A file, plain or with .gz, .xz or .bz2, or the name of one in the directory ``raw``.
    raw : str, optional
        Directory or archive of files, where ``path`` is not given. None is ``$MPIFED_DATA/text``,
        or of roles the directory of ``shakespeare``.
    layout : {'auto', 'files', 'roles', 'leaf', 'parquet'}
        What a client is: a file; a role of the plays in one file, as for ``shakespeare``; a user in
        LEAF's JSON files; or what the column ``client`` says in parquet files. ``auto`` goes by the
        names of the files, and never takes roles.
    tokenizer : str
        ``bytes`` are those of UTF-8, 256 tokens; ``words`` are the most frequent ones in lower
        case, and signs; ``bpe`` learns byte-level pairs (Sennrich et al. 2016, arXiv:1508.07909);
        both from all texts, except published test parts; else a file tokenizer.json of the
        package tokenizers, which reads it.
    vocabulary : int
        Tokens that ``words`` and ``bpe`` learn, at most.
    sequence_length : int
        Tokens of a sample.
    features : str
        The column of texts in parquet files.
    client : str, optional
        The column of clients in parquet files. None makes a client of each row.
    split : {'60_20_20', 'in_order', 'published'}, optional
        How a client's samples become training, validation and test samples. None is 60/20/20 in
        their order; ``published`` tests on files named test, or in a directory of that name.
    """

    def __init__(
        self,
        *run: Any,
        partition: partitions.GroupedName = "natural",
        choose: partitions.Choose = "random",
        path: str | None = None,
        raw: str | None = None,
        layout: Layout = "auto",
        tokenizer: str = "bytes",
        vocabulary: Annotated[int, Ge(tokens.BYTES), Le(1 << 24)] = 1024,
        sequence_length: Annotated[int, Ge(1), Le(100_000)] = 64,
        features: str = "text",
        client: str | None = None,
        split: partitions.Parts | None = None,
        **options: Any,
    ) -> None:
        options["partition"], options["split"] = partition, split

        def find() -> Source:
            if layout == "roles":
                root = archives.located(path, "shakespeare", raw)
            else:
                named = path is not None
                root = archives.located(path, "text", raw) if named else archives.home(raw, "text")
            if path is not None and layout in ("leaf", "parquet"):
                raise InputError(
                    f"data.layout is '{layout}', but data.path is a file, '{path}'; data.raw must "
                    "name the directory"
                )
            texts = list(_texts(root, layout, {"features": features, "client": client}))
            learnt_from = (text.text for text in texts if not text.is_test)
            tokeniser = tokens.tokeniser_named(tokenizer, vocabulary, learnt_from)
            return windows(archives.bare_name(root), texts, tokeniser, sequence_length)

        super().__init__(find, {"choose": choose}, *run, **options)


@dataclass(frozen=True)
class Written:
    """What somebody wrote, or says."""

    owner: str
    text: str
    is_test: bool = False


def windows(
    name: str, passages: Sequence[Written], tokeniser: tokens.Tokeniser, length: int
) -> Source:
    """Return the samples of all texts, owner after owner, in the smallest type that has them."""
    by_owner: dict[tuple[str, bool], list[str]] = {}
    for text in passages:
        by_owner.setdefault((text.owner, text.is_test), []).append(text.text)
    numbers = {owner: number for number, owner in enumerate(dict.fromkeys(o for o, _ in by_owner))}
    size = tokeniser.size
    stored = np.min_scalar_type(size - 1)
    x, y, owners, tested = [], [], [], []
    for (owner, is_test), texts in by_owner.items():
        codes = tokeniser.encode("\n".join(texts)).astype(stored)
        n = max(0, (len(codes) - 1) // length)
        x.append(codes[: n * length].reshape(n, length))
        y.append(codes[1 : n * length + 1].reshape(n, length))
        owners.append(np.full(n, numbers[owner]))
        tested.append(np.full(n, is_test))
    if not sum(map(len, x)):
        raise InputError(
            f"'{name}' has no text of {length + 1} tokens by one client; "
            "data.sequence_length may be smaller"
        )
    inputs, whose, marks = (np.concatenate(parts) for parts in (x, owners, tested))
    pool = Pool(
        name, np.concatenate(y), size, (length,), stored.name, task="sequence", is_text=True
    )
    published = marks if marks.any() else None
    return Source(pool, lambda: [inputs], whose, is_test=published)


def _texts(root: Path, layout: Layout, columns: Mapping[str, str | None]) -> Iterator[Written]:
    if root.is_file() and not archives.is_archive(root):
        with archives.opened(root, HELD) as file:
            text = file.read().decode("utf-8-sig", "replace")
        if layout != "roles":
            yield Written(archives.bare_name(root), text)
            return
        for (play, role), words in texts_of_roles(speeches(text)).items():
            yield Written(f"{play} {role}", words)
        return
    if layout == "auto":
        endings = {PurePosixPath(name).suffix for name in archives.names(root)}
        layout = "parquet" if ".parquet" in endings else "files"
        layout = "leaf" if ".json" in endings else layout
    if layout == "parquet":
        yield from _of_parquet(root, columns)
    elif layout == "leaf":
        yield from _of_leaf(root)
    else:
        for name, content in archives.contents(root, lambda name: True, HELD):
            # The same writer in the folders of the two parts.
            owner = name.removeprefix("train/").removeprefix("test/")
            text = content.decode("utf-8-sig", "replace")
            yield Written(owner, text, is_test_file(Path(name)))


def _of_parquet(root: Path, columns: Mapping[str, str | None]) -> Iterator[Written]:
    named = {option: name for option, name in columns.items() if name}
    paths = parquet_paths(root, "text")
    from pyarrow import parquet

    for path in paths:
        rows: list[Written] = []
        with archives.reading(path), parquet.ParquetFile(path, memory_map=False) as file:
            check_parquet(path, file, named)
            for batch in file.iter_batches(ROWS, columns=[*named.values()], use_threads=False):
                raise_if_stop_requested()
                texts = batch.column(named["features"]).to_pylist()
                if not all(isinstance(text, str) for text in texts):
                    raise ValueError("column data.features has a value that is no text")
                whose = [f"{path} {len(rows) + row}" for row in range(len(texts))]
                if "client" in named:
                    whose = [str(each) for each in batch.column(named["client"]).to_pylist()]
                test = is_test_file(path)
                rows += [Written(o, t, test) for o, t in zip(whose, texts, strict=True)]
        yield from rows


def _of_leaf(root: Path) -> Iterator[Written]:
    """Texts of which LEAF made windows: each one character later than the one before."""
    table = np.frombuffer(CHARACTERS.encode("ascii"), np.uint8)
    for user in read_leaf(str(root), "text", CHARACTERS):
        if not user.is_text:
            raise InputError(f"data.raw is '{root}', where user '{user.name}' has no texts")
        x, y = user.x, user.y
        goes_on = (x[1:, :-1] == x[:-1, 1:]).all(1) & (x[1:, -1] == y[:-1])
        starts = [0, *(np.flatnonzero(~goes_on) + 1).tolist()]
        for begin, end in zip(starts, [*starts[1:], len(x)], strict=True):
            characters = table[np.concatenate([x[begin], y[begin:end]])]
            yield Written(user.name, characters.tobytes().decode("ascii"), user.is_test)
