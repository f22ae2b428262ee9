"""A user's own samples in files: CSV, `.npz`, and parquet as on the Hugging Face hub."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from mpifed.data.archives import bare_name, located, opened, reading
from mpifed.data.images import decoded
from mpifed.data.sources.shakespeare import VOCABULARIES, Vocabulary, windows_of
from mpifed.data.tables import Columns, OwnDataset, check_columns
from mpifed.errors import InputError
from mpifed.io.memory import check_memory
from topologies.inputs import check_archive

# Bytes of memory for each byte of a CSV file: a digit and its comma become eight, held twice.
HELD = 9.0

# Rows of a parquet file that are converted at once.
ROWS = 4096


class Csv(OwnDataset):
    """Your own samples in a CSV file: a row of names, then one sample a row.

    Parameters
    ----------
    path : str
        The file, plain or with .gz, .xz or .bz2, or its name in ``$MPIFED_DATA/csv``.
    label : str, optional
        Name of the column of targets: numbers or texts. None is for unlabelled data.
    client : str, optional
        Name of the column that says whose each sample is.
    test : str, optional
        Name of a column that is 1 for the samples that ``split: published`` tests on, else 0.
    features : list of str, optional
        Names of the columns of inputs, which are numbers. None takes all others.
    delimiter : str
        One character between columns; ``tab`` is one too.
    """

    def __init__(
        self,
        *run: Any,
        path: str,
        label: str | None = "label",
        client: str | None = None,
        test: str | None = None,
        features: list[str] | None = None,
        delimiter: str = ",",
        **options: Any,
    ) -> None:
        named = {"label": label, "client": client, "test": test}
        mark = "\t" if delimiter == "tab" else delimiter

        def find() -> tuple[str, str, Columns]:
            place = located(path, "csv")
            name = bare_name(place).removesuffix(".csv")
            return f"data.path is '{place}', where", name, read_csv(place, named, features, mark)

        super().__init__(find, *run, **options)


def read_csv(
    path: Path, named: Mapping[str, str | None], features: Sequence[str] | None, delimiter: str
) -> Columns:
    """Return the samples in a CSV file; ``named`` has the columns of other options than inputs."""
    with opened(path, HELD) as stream:
        lines = csv.reader(io.TextIOWrapper(stream, "utf-8-sig", newline=""), delimiter=delimiter)
        header = [name.strip() for name in next(lines, [])]
        if len(set(header)) != len(header):
            raise ValueError("its first line must name each column, all differently")
        for wanted in (named, *({"features": name} for name in features or ())):
            check_columns(path, header, wanted)
        inputs = features or [name for name in header if name not in named.values()]
        places = [header.index(name) for name in inputs]
        # Texts of targets, clients and marks.
        texts: dict[str, list[str]] = {name: [] for name in named.values() if name}
        x = array("d")
        for row in filter(None, lines):
            try:
                if len(row) != len(header):
                    raise ValueError(f"it has {len(row)} columns, but the first {len(header)}")
                x.extend([float(row[place]) for place in places])
            except ValueError as error:
                raise ValueError(
                    f"line {lines.line_num}: {error} (inputs are all columns but those of "
                    "data.label, data.client and data.test, unless data.features names them)"
                ) from None
            for name, own in texts.items():
                own.append(row[header.index(name)].strip())
    typed = {name: _typed(own) for name, own in texts.items()}
    label, client, test = (typed.get(named.get(o) or "") for o in ("label", "client", "test"))
    return Columns(np.array(x).reshape(-1, len(places)), label, client, test)


def _typed(texts: list[str]) -> np.ndarray:
    """Whole numbers, else numbers, else texts."""
    for kind in (np.int64, np.float64):
        with contextlib.suppress(ValueError, OverflowError):
            return np.array(texts, kind)
    return np.array(texts, object)


class Npz(OwnDataset):
    """Your own arrays in one `.npz` file, as `numpy.savez` writes it.

    Parameters
    ----------
    path : str
        The file, or its name in ``$MPIFED_DATA/npz``.
    features : str
        Name of the array of inputs, numbers (samples, ...).
    label : str, optional
        Name of the array of targets, (samples,) or (samples, targets). None is for unlabelled data.
    client : str, optional
        Name of the array that says whose each sample is, whole numbers or texts (samples,).
    test : str, optional
        Name of an array that is true, or 1, for the samples that ``split: published`` tests on.
    """

    def __init__(
        self,
        *run: Any,
        path: str,
        features: str = "x",
        label: str | None = "y",
        client: str | None = None,
        test: str | None = None,
        **options: Any,
    ) -> None:
        wanted = {"features": features, "label": label, "client": client, "test": test}

        def find() -> tuple[str, str, Columns]:
            place = located(path, "npz")
            with opened_npz(place) as file:
                check_columns(place, file, wanted)
                found: list[Any] = [file[name] if name else None for name in wanted.values()]
            return f"data.path is '{place}', where", place.stem, Columns(*found)

        super().__init__(find, *run, **options)


@contextlib.contextmanager
def opened_npz(path: Path) -> Iterator[Mapping[str, Any]]:
    """Open an `.npz` file, of which pickled objects are refused."""
    with reading(path):
        check_archive(path)
        with np.load(path, allow_pickle=False) as file:
            yield file


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
            columns = read_parquet(place, wanted, VOCABULARIES[vocabulary])
            return f"data.raw is '{place}', where", place.name, columns

        super().__init__(find, *run, **options)


def read_parquet(place: Path, wanted: Mapping[str, str | None], vocabulary: str) -> Columns:
    """Return the samples in all parquet files of a directory and its directories."""
    files = parquet_paths(place, "parquet")
    from pyarrow import parquet, types

    parts: dict[str, list[np.ndarray]] = {option: [] for option, name in wanted.items() if name}
    is_test: list[np.ndarray] = []
    for path in files:
        with reading(path), parquet.ParquetFile(path, memory_map=False) as file:
            check_parquet(path, file, wanted)
            names = _class_names(file.schema_arrow.metadata, wanted["label"])
            kind = file.schema_arrow.field(wanted["features"]).type
            columns = [name for name in wanted.values() if name]
            for batch in file.iter_batches(ROWS, columns=columns, use_threads=False):
                for option, own in parts.items():
                    own.append(_converted(batch.column(wanted[option]), option, vocabulary))
                is_test.append(np.full(batch.num_rows, is_test_file(path)))
    with reading(place):
        found = {option: np.concatenate(own) for option, own in parts.items()}
        tested = np.concatenate(is_test)
    # Pictures are divided by 255, and places of characters are not divided.
    is_text = types.is_string(kind) or types.is_large_string(kind)
    divisor = 255 if types.is_struct(kind) else 1 if is_text else None
    mixed = tested if tested.any() and not tested.all() else None
    y, whose = found.get("label"), found.get("client")
    return Columns(found["features"], y, whose, mixed, class_names=names, divisor=divisor)


def parquet_paths(place: Path, data: str) -> list[Path]:
    """Return the parquet files of a directory and its directories, those for testing last."""
    if find_spec("pyarrow") is None:
        raise InputError(
            f"data.name is '{data}', which needs the package pyarrow: pip install 'mpifed[parquet]'"
        )
    files = sorted(place.rglob("*.parquet")) if os.path.isdir(place) else []
    if not files:
        raise InputError(f"data.raw is '{place}', but there is no directory with .parquet files")
    return sorted(files, key=is_test_file)


def check_parquet(path: Path, file: Any, wanted: Mapping[str, str | None]) -> None:
    """Raise ``InputError`` where an open file lacks a column, or memory cannot hold it."""
    check_columns(path, file.schema_arrow.names, wanted)
    groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
    size = sum(group.total_byte_size for group in groups)
    check_memory(2.0 * size, f"'{path}' cannot be read: it")


def is_test_file(path: Path) -> bool:
    """As in `data/test-00000-of-00001.parquet`, or `default/test/0000.parquet`."""
    return path.name.startswith("test") or path.parent.name == "test"


def _class_names(metadata: dict[bytes, bytes] | None, label: str | None) -> tuple[str, ...]:
    """Names of the labels as the hub's writer leaves them in a file; empty without them."""
    try:
        about = json.loads((metadata or {})[b"huggingface"])
        return tuple(map(str, about["info"]["features"][label]["names"]))
    except (KeyError, TypeError, ValueError):
        return ()


def _converted(column: Any, option: str, vocabulary: str) -> np.ndarray:
    """One column of some rows: numbers, texts, or for inputs (rows, ...)."""
    if column.null_count:
        raise ValueError(f"column data.{option} has an empty value")
    values, shape = column.to_numpy(zero_copy_only=False), [len(column)]
    while len(values) and isinstance(values[0], np.ndarray):
        lengths = set(map(len, values))
        if len(lengths) != 1:
            raise ValueError(f"column data.{option} has lists of different lengths")
        shape.append(lengths.pop())
        values = np.concatenate(values)
    values = values.reshape(shape)
    if option != "features":
        return values
    if isinstance(values[0], dict):
        return np.stack([decoded(each["bytes"]) for each in values])
    if isinstance(values[0], str):
        return windows_of(values.tolist(), vocabulary)
    return values.reshape(-1, 1) if values.ndim == 1 else values
