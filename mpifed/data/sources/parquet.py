"""Data sets of the Hugging Face hub as parquet files: one directory, a column of clients."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from mpifed.data.images import decoded
from mpifed.data.sources.shakespeare import UNKNOWN, VOCABULARIES, Vocabulary, codes
from mpifed.data.tables import Columns, OwnDataset
from mpifed.errors import InputError, closest, one_line
from mpifed.io.memory import check_memory
from mpifed.mpi.communicator import Communicator
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
        n_clients: int,
        run_seed: int,
        communicator: Communicator,
        *,
        raw: str,
        features: str = "image",
        label: str | None = "label",
        client: str | None = None,
        vocabulary: Vocabulary = "printable",
        **options: Any,
    ) -> None:
        def find() -> tuple[str, str, Columns]:
            place = Path(raw).expanduser()
            columns = read(place, features, label, client, VOCABULARIES[vocabulary])
            return f"data.raw is '{place}', where", place.name, columns

        super().__init__(n_clients, run_seed, communicator, find, **options)


def read(
    place: Path, features: str, label: str | None, client: str | None, vocabulary: str
) -> Columns:
    """Return the samples in all parquet files of a directory and its directories."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            "data.name is 'parquet', which needs the package pyarrow: pip install 'mpifed[parquet]'"
        ) from None
    files = sorted(place.rglob("*.parquet")) if os.path.isdir(place) else []
    if not files:
        raise InputError(f"data.raw is '{place}', but there is no directory with .parquet files")
    wanted = {"features": features, "label": label, "client": client}
    parts: dict[str, list[np.ndarray]] = {option: [] for option, name in wanted.items() if name}
    is_test: list[np.ndarray] = []
    names: tuple[str, ...] = ()
    divisor: int | None = None
    for path in sorted(files, key=_is_test):
        try:
            check_regular(path)
            with parquet.ParquetFile(path, memory_map=False) as file:
                names = names or _class_names(file.schema_arrow.metadata, label)
                _check(path, file, wanted)
                columns = [name for name in wanted.values() if name]
                divisor = _divisor(file.schema_arrow.field(features).type)
                for batch in file.iter_batches(ROWS, columns=columns, use_threads=False):
                    for option in parts:
                        own = batch.column(batch.schema.get_field_index(wanted[option]))
                        parts[option].append(_converted(path, own, option, vocabulary))
                    is_test.append(np.full(batch.num_rows, _is_test(path)))
        except InputError:
            raise
        except Exception as error:  # of the system, of pyarrow, and of names that are not UTF-8
            reason = one_line(str(error), 120)
            raise InputError(f"'{path}' cannot be read as parquet: {reason}") from None
    found = {option: _joined(place, option, own) for option, own in parts.items()}
    tested = np.concatenate(is_test)
    return Columns(
        found["features"],
        found.get("label"),
        found.get("client"),
        tested if tested.any() and not tested.all() else None,
        class_names=names,
        divisor=divisor,
    )


def _divisor(kind: Any) -> int | None:
    """What the inputs of a column are divided by: pictures by 255, places of characters by 1."""
    from pyarrow import types

    if types.is_string(kind) or types.is_large_string(kind):
        return 1
    return 255 if types.is_struct(kind) else None


def _is_test(path: Path) -> bool:
    """As in `data/test-00000-of-00001.parquet`, or `default/test/0000.parquet`."""
    return re.match("test", path.name) is not None or path.parent.name == "test"


def _class_names(metadata: dict[bytes, bytes] | None, label: str | None) -> tuple[str, ...]:
    """Names of the labels as the hub's writer leaves them in a file; empty without them."""
    try:
        about = json.loads((metadata or {})[b"huggingface"])
        names = about["info"]["features"][label]["names"]
        return tuple(map(str, names)) if isinstance(names, list) else ()
    except (KeyError, TypeError, ValueError, RecursionError):
        return ()


def _check(path: Path, file: Any, wanted: dict[str, str | None]) -> None:
    columns = file.schema_arrow.names
    for option, name in wanted.items():
        if name and name not in columns:
            raise InputError(
                f"data.{option} is '{name}', but '{path}' has no such column; "
                f"{closest(name, columns)}"
            )
    size = sum(
        file.metadata.row_group(number).total_byte_size
        for number in range(file.metadata.num_row_groups)
    )
    check_memory(2.0 * size, f"'{path}' cannot be read: it")


def _converted(path: Path, column: Any, option: str, vocabulary: str) -> np.ndarray:
    """One column of some rows: numbers, texts, or for inputs (rows, ...)."""
    if column.null_count:
        raise InputError(f"'{path}' has an empty value in column data.{option}")
    numbers = _numbers(column)
    if numbers is not None:
        return numbers.reshape(-1, 1) if numbers.ndim == 1 and option == "features" else numbers
    values = column.to_pylist()
    first = values[0] if values else None
    if option != "features":
        return _stacked(path, option, values)
    if isinstance(first, dict) and isinstance(first.get("bytes"), bytes):
        return _stacked(
            path, option, [decoded(each["bytes"], f"a picture in '{path}'") for each in values]
        )
    if isinstance(first, str):
        return _windows(path, values, vocabulary)
    return _stacked(path, option, values)


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


def _stacked(path: Path, option: str, values: Iterable[Any]) -> np.ndarray:
    try:
        found = np.array(list(values))
    except ValueError:
        found = np.array(None)
    if found.dtype.kind not in "biufU":
        raise InputError(
            f"'{path}' has values in column data.{option} that are not numbers, or of different "
            "shapes"
        )
    return found


def _windows(path: Path, texts: list[str], vocabulary: str) -> np.ndarray:
    if len({len(text) for text in texts}) > 1:
        raise InputError(f"'{path}' has texts of different lengths in column data.features")
    found = codes("".join(texts), vocabulary)
    if (found == UNKNOWN).any():
        raise InputError(f"'{path}' has a character that the vocabulary lacks (data.vocabulary)")
    return found.reshape(len(texts), -1)


def _joined(place: Path, option: str, parts: list[np.ndarray]) -> np.ndarray:
    if len({part.shape[1:] for part in parts}) != 1:
        raise InputError(
            f"data.raw is '{place}', where values of column data.{option} have different shapes"
        )
    return np.concatenate(parts)
