"""Data sets of the Hugging Face hub as parquet files: one directory, a column of clients."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from mpifed.data.archives import reading
from mpifed.data.images import decoded
from mpifed.data.sources.shakespeare import VOCABULARIES, Vocabulary, windows_of
from mpifed.data.tables import Columns, OwnDataset, check_columns
from mpifed.errors import InputError
from mpifed.io.memory import check_memory
from topologies.inputs import check_regular

# Rows that are converted at once.
ROWS = 4096


class Parquet(OwnDataset):
    """A data set of the Hugging Face hub, downloaded as parquet files, with a column of
    clients.

    Parameters
    ----------
    raw : str
        Directory of the files; those whose name begins with ``test`` are the published test part.
    features : str
        Name of the column of inputs.
    label : str, optional
        Name of the column of targets. None is for unlabelled data.
    client : str, optional
        Name of the column that says whose each sample is, as ``writer_id``.
    vocabulary : {'printable', 'leaf'}
        Characters of texts.
    """

    def __init__(
        self,
        *run: Any,
        raw: str,
        features: str = "image",
        label: str | None = "label",
        client: str | None = None,
        vocabulary: Vocabulary = "printable",
        **options: Any,
    ) -> None:
        wanted = {"features": features, "label": label, "client": client}

        def find() -> tuple[str, str, Columns]:
            place = Path(raw).expanduser()
            columns = read(place, wanted, VOCABULARIES[vocabulary])
            return f"data.raw is '{place}', where", place.name, columns

        super().__init__(find, *run, **options)


def read(place: Path, wanted: dict[str, str | None], vocabulary: str) -> Columns:
    """Return the samples in all parquet files of a directory and its directories."""
    try:
        from pyarrow import parquet, types
    except ImportError:
        raise InputError(
            "data.name is 'parquet', which needs the package pyarrow: pip install 'mpifed[parquet]'"
        ) from None
    files = sorted(place.rglob("*.parquet")) if os.path.isdir(place) else []
    if not files:
        raise InputError(f"data.raw is '{place}', but there is no directory with .parquet files")
    parts: dict[str, list[np.ndarray]] = {option: [] for option, name in wanted.items() if name}
    is_test: list[np.ndarray] = []
    names: tuple[str, ...] = ()
    divisor: int | None = None
    for path in sorted(files, key=_is_test):
        with reading(path):
            check_regular(path)
            with parquet.ParquetFile(path, memory_map=False) as file:
                schema = file.schema_arrow
                check_columns(path, schema.names, wanted)
                groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
                size = sum(group.total_byte_size for group in groups)
                check_memory(2.0 * size, f"'{path}' cannot be read: it")
                names = names or _class_names(schema.metadata, wanted["label"])
                kind = schema.field(wanted["features"]).type
                # Pictures are divided by 255, and places of characters are not divided.
                is_text = types.is_string(kind) or types.is_large_string(kind)
                divisor = 255 if types.is_struct(kind) else 1 if is_text else None
                columns = [name for name in wanted.values() if name]
                for batch in file.iter_batches(ROWS, columns=columns, use_threads=False):
                    for option, own in parts.items():
                        column = batch.column(batch.schema.get_field_index(wanted[option]))
                        own.append(_converted(column, option, vocabulary))
                    is_test.append(np.full(batch.num_rows, _is_test(path)))
    for option, own in parts.items():
        if len({part.shape[1:] for part in own}) != 1:
            raise InputError(f"data.raw is '{place}', where data.{option} has different shapes")
    found = [np.concatenate(parts[option]) if name else None for option, name in wanted.items()]
    tested = np.concatenate(is_test)
    mixed = tested if tested.any() and not tested.all() else None
    x, y, client = found
    assert x is not None
    return Columns(x, y, client, mixed, class_names=names, divisor=divisor)


def _is_test(path: Path) -> bool:
    """As in `data/test-00000-of-00001.parquet`, or `default/test/0000.parquet`."""
    return path.name.startswith("test") or path.parent.name == "test"


def _class_names(metadata: dict[bytes, bytes] | None, label: str | None) -> tuple[str, ...]:
    """Names of the labels as the hub's writer leaves them in a file; empty without them."""
    try:
        about = json.loads((metadata or {})[b"huggingface"])
        names = about["info"]["features"][label]["names"]
        return tuple(map(str, names)) if isinstance(names, list) else ()
    except (KeyError, TypeError, ValueError, RecursionError):
        return ()


def _converted(column: Any, option: str, vocabulary: str) -> np.ndarray:
    """One column of some rows: numbers, texts, or for inputs (rows, ...)."""
    if column.null_count:
        raise ValueError(f"column data.{option} has an empty value")
    numbers = _numbers(column)
    if numbers is not None:
        return numbers.reshape(-1, 1) if numbers.ndim == 1 and option == "features" else numbers
    values = column.to_pylist()
    if option == "features" and isinstance(values[0], dict):
        values = [decoded(each["bytes"]) for each in values]
    elif option == "features" and isinstance(values[0], str):
        return windows_of(values, vocabulary)
    found = np.array(values)
    if found.dtype.kind not in "biufU":
        raise ValueError(f"column data.{option} has values that are not numbers or texts")
    return found


def _numbers(column: Any) -> np.ndarray | None:
    """Numbers, or lists of them of one shape, in the column's own type; None for what is else."""
    from pyarrow import compute, types

    kind = column.type
    if types.is_integer(kind) or types.is_floating(kind):
        return None if column.null_count else column.to_numpy(zero_copy_only=False)
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        return None
    within = None if column.null_count else _numbers(column.flatten())
    lengths = set(compute.list_value_length(column).to_pylist())
    if within is None or len(lengths) != 1 or 0 in lengths:
        return None
    return within.reshape(len(column), lengths.pop(), *within.shape[1:])
