"""A user's own texts with labels, in a CSV or parquet file: reviews, notes, messages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le

from mpifed.dataset import (
    PooledDataset,
    Preprocessing,
    archives,
    partitions,
    preprocessing,
    tables,
    tokens,
)
from mpifed.errors import InputError, one_line

# Tokens of a sample where none is said and texts are longer.
LONGEST = 256


class LabelledTexts(tables.OwnSamples, PooledDataset):
    """Your own texts with labels, a row of a CSV or parquet file each, as tokens of one length.

    Token 0 is padding behind shorter texts, which ``gru`` and ``bag_of_words`` leave out; longer
    texts are cut.

    Parameters
    ----------
    task : {'auto', 'classification', 'regression'}
        What is to be learnt. ``auto`` is classification for texts and for whole numbers of which at
        most 1000 are different, else regression.
    path : str
        The file, or its name in ``$MPIFED_DATA/labelled_texts``.
    features : str
        Name of the column of texts.
    label : str
        Name of the column of targets.
    client : str, optional
        Name of the column that says whose each sample is.
    test : str, optional
        Name of a column that is 1 for the samples that ``split: published`` tests on, else 0.
    tokenizer : str
        ``words`` in lower case and signs, ``bytes`` of UTF-8, ``bpe`` (byte pairs), or a file
        tokenizer.json, which the package tokenizers reads. ``words`` and ``bpe`` are learnt from
        all texts but those marked for tests.
    vocabulary : int
        Tokens that ``words`` and ``bpe`` learn, at most; of words the most frequent.
    sequence_length : int, optional
        Tokens of a sample. None is those of the longest text, at most 256.
    """

    def __init__(
        self,
        *run: Any,
        partition: partitions.GroupedName | None = None,
        split: partitions.Parts | None = None,
        choose: partitions.Choose = "random",
        task: Literal["auto", "classification", "regression"] = "auto",
        path: str,
        features: str = "text",
        label: str = "label",
        client: str | None = None,
        test: str | None = None,
        tokenizer: str = "words",
        vocabulary: Annotated[int, Ge(tokens.BYTES), Le(1 << 20)] = 4096,
        sequence_length: Annotated[int, Ge(1), Le(100_000)] | None = None,
        **options: Any,
    ) -> None:
        named = {"features": features, "label": label, "client": client, "test": test}
        learnt = {"tokenizer": tokenizer, "vocabulary": vocabulary}
        reading = {"path": path, **named, **learnt, "sequence_length": sequence_length}
        source = self.source(reading, task, None, False)
        options["partition"], options["split"] = partition or "iid", split
        super().__init__(source, {"choose": choose}, *run, **options)

    @staticmethod
    def read(options: Mapping[str, Any]) -> tuple[str, str, tables.Columns]:
        """Return the texts in the file as tokens, with their labels and clients."""
        path = archives.located(options["path"], "labelled_texts")
        name = archives.bare_name(path)
        return f"data.path is '{path}', where", name, read_texts(path, options)


def read_texts(path: Path, options: Mapping[str, Any]) -> tables.Columns:
    """Return the rows of a file of texts."""
    named = {key: options[key] for key in ("features", "label", "client", "test") if options[key]}
    with archives.reading(path):
        frame = preprocessing.read_table(
            path, [named[k] for k in ("features", "client") if k in named]
        )
    tables.check_columns(path, frame.columns, named.items())
    columns = {key: frame[name] for key, name in named.items()}
    texts = preprocessing.texts_in(columns.pop("features"))
    if not texts:
        raise InputError(f"data.path is '{path}', which has no row")
    for key, cells in columns.items():
        empty = np.flatnonzero(cells.isna() | cells.isin(preprocessing.MISSING))
        if len(empty):
            where = f"column '{one_line(named[key], 60)}' has no value in row {empty[0] + 1}"
            raise InputError(f"data.path is '{path}', where {where}")
    is_test = columns["test"].to_numpy() if "test" in columns else None
    marked = np.zeros(len(texts), bool) if is_test is None else is_test == 1
    learnt_from = [text for text, tested in zip(texts, marked, strict=True) if not tested]
    tokeniser = tokens.tokeniser_named(options["tokenizer"], options["vocabulary"], learnt_from)
    encoded = [tokeniser.encode(text) for text in texts]
    lengths = np.array([*map(len, encoded)])
    length = options["sequence_length"] or int(np.clip(lengths.max(), 1, LONGEST))
    x = tokens.padded(encoded, length).astype(np.min_scalar_type(tokeniser.size))
    remark = (
        f"texts of column '{one_line(named['features'], 60)}' are {length} of {tokeniser.size:,} "
        f"tokens (data.tokenizer={one_line(options['tokenizer'], 60)}); "
        f"{int((lengths > length).sum())} of {len(texts)} are longer and cut (data.sequence_length)"
    )
    label, client = columns["label"], columns.get("client")
    return tables.Columns(
        *(x, label.to_numpy() if label.dtype.kind in "biuf" else label.to_numpy(object)),
        *(None if client is None else client.astype(str).to_numpy(object), is_test),
        preprocessing=Preprocessing((named["features"],), tokeniser=tokeniser),
        remarks=(remark,),
    )
