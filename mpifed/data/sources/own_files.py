"""A user's own samples in files: CSV, `.npz`, and parquet as on the Hugging Face hub."""

from __future__ import annotations

import codecs
import io
import json
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mpifed.data.sources.shakespeare import VOCABULARIES, Vocabulary, windows_of
from mpifed.dataset import (
    PooledDataset,
    archives,
    cells,
    check_memory,
    decoded,
    partitions,
    preprocessing,
    raise_if_stop_requested,
    tables,
)
from mpifed.errors import InputError, one_line

# Bytes of memory for each byte of a CSV file: itself twice, and a number of two digits' bytes held
# three times.
HELD = 14.0

# Bytes of memory for each of its cells, each row, and each cell of a column that is read as texts,
# which are more where cells are short.
CELL, ROW, TEXT = 32.0, 64.0, 64.0

RAGGED = re.compile(r"line (\d+): expected (\d+) fields, saw (\d+)")  # of pandas


# How parquet files begin that are parts of one data set.
PART = re.compile(r"train|test|validation|part|\d")

# Rows of a parquet file that are converted at once.
ROWS = 4096

CSV_ENDINGS = (".csv", ".csv.gz", ".csv.xz", ".csv.bz2")


class Csv(tables.OwnSamples, PooledDataset):
    """Your own samples in a CSV file, or in one for each client.

    A row of names comes first, then one sample a row. A column holds numbers where each of its
    texts is one, else texts. A column of texts among the inputs becomes, behind the numbers, a
    column of 0 and 1 for each of its texts in their order (one-hot).

    Parameters
    ----------
    path : str
        The file, plain or with .gz, .xz or .bz2, or its name in ``$MPIFED_DATA/csv``; or a
        directory with a file for each client.
    label : str, optional
        Name of the column of targets: numbers or texts. None is for unlabelled data.
    client : str, optional
        Name of the column that says whose each sample is, as it is spelt: 007 is not 7. None in a
        directory is the name of the file.
    test : str, optional
        Name of a column that is 1 for the samples that ``split: published`` tests on, else 0.
    features : list of str, optional
        Names of the columns of inputs. None takes all others.
    drop : list of str, optional
        Names of columns that are no inputs, such as ids.
    categories : list of str, optional
        Names of columns of inputs whose numbers are read as texts, such as codes.
    missing : {'refuse', 'drop', 'mean'}
        What becomes of cells without a value: empty, ?, NA, N/A, NaN or NULL. They are refused, or
        their rows are left out. Or a number becomes the mean of its column over the training
        samples, a text 0 in all its columns, and rows without label, client or mark are left out.
    missing_values : list of str, optional
        Texts that are read as no value, beside the empty one. [] keeps a client that is called NA.
        None is ?, NA, N/A, NaN and NULL.
    encoding : str
        How the file holds its letters, as Python names it: utf-8, cp1252, utf-16, ...
    delimiter : str, optional
        One character between columns; ``tab`` is one too. None takes the one of comma, semicolon,
        tab and ``|`` that makes most columns of the first line.
    decimal : {'point', 'comma'}
        What is before the decimals of numbers, targets included.
    """

    def __init__(
        self,
        *run: Any,
        partition: partitions.GroupedName | None = None,
        split: partitions.Parts | None = None,
        choose: partitions.Choose = "random",
        task: tables.OwnTask = "auto",
        divisor: tables.Divisor | None = None,
        standardise: bool = True,
        path: str,
        label: str | None = "label",
        client: str | None = None,
        test: str | None = None,
        features: list[str] | None = None,
        drop: list[str] | None = None,
        categories: list[str] | None = None,
        missing: cells.Missing = "refuse",
        missing_values: list[str] | None = None,
        encoding: str = "utf-8",
        delimiter: str | None = None,
        decimal: Literal["point", "comma"] = "point",
        **options: Any,
    ) -> None:
        named = {"path": path, "label": label, "client": client, "test": test}
        inputs = {"features": features, "drop": drop, "categories": categories, "missing": missing}
        marks = {"delimiter": delimiter, "decimal": decimal, "encoding": encoding}
        reading = {**named, **inputs, **marks, "missing_values": missing_values}
        source = self.source(reading, task, divisor, standardise)
        options["partition"], options["split"] = partition or "iid", split
        super().__init__(source, {"choose": choose}, *run, **options)

    @staticmethod
    def read(options: Mapping[str, Any]) -> tuple[str, str, tables.Columns]:
        """Return the samples in the file, or in those of a directory."""
        directory = Path(os.path.expanduser(options["path"]))
        if directory.is_dir():
            return (
                f"data.path is '{directory}', where",
                directory.name,
                read_csvs(directory, options),
            )
        path = archives.located(options["path"], "csv")
        name = re.sub(r"\.csv$", "", archives.bare_name(path), flags=re.IGNORECASE)
        return f"data.path is '{path}', where", name, read_csv(path, options)


def read_csv(path: Path, options: Mapping[str, Any]) -> tables.Columns:
    """Return the samples in a CSV file; one ``InputError`` with all that is wrong with it."""
    return cells.columns_of(f"data.path is '{path}', which", *_cells(path, options), options)


def read_csvs(directory: Path, options: Mapping[str, Any]) -> tables.Columns:
    """Return the samples in the CSV files of a directory, each of which is a client."""
    files = archives.files_by_client(directory, CSV_ENDINGS)
    read = [_cells(file.path, options) for file in files]
    faults = [
        f"{fault} of '{file.path}'"
        for file, (_, some) in zip(files, read, strict=True)
        for fault in some
    ]
    frames = [frame for frame, _ in read]
    where = f"data.path is '{directory}', where the files"
    return cells.columns_of(where, *cells.joined(files, frames, options, faults))


def _cells(path: Path, options: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """Return the cells of a CSV file as ``_table`` does, and what is wrong with its lines."""
    content = _content(path, options["encoding"])
    first = io.BytesIO(content).readline().decode("utf-8-sig")
    delimiter = preprocessing.delimiter_of(first, options["delimiter"])
    header = preprocessing.names_in(first, delimiter)
    if not header or len(set(header)) != len(header):
        empty = " (it is empty)" if not content.strip() else ""
        fault = f"its first line must name each column, all differently{empty}"
        cells.refuse(f"data.path is '{path}', which", [fault])
    as_texts = cells.columns_of_texts(path, header, options)
    n_rows = content.count(b"\n")
    n_cells = n_rows + content.count(delimiter.encode())
    size = 2 * len(content) + CELL * n_cells + (ROW + TEXT * len(as_texts)) * n_rows
    check_memory(size, f"'{path}' cannot be read: it")
    with archives.reading(path):
        return _table(content, header, as_texts, delimiter, options)


def _content(path: Path, encoding: str) -> bytes:
    """The bytes of a CSV file in UTF-8."""
    try:
        is_utf_8 = codecs.lookup(encoding).name == "utf-8"
    except LookupError:
        raise InputError(
            f"data.encoding is '{one_line(encoding, 60)}', which Python does not know; allowed: "
            "utf-8, cp1252, latin-1, utf-16, ..."
        ) from None
    with archives.opened(path, HELD) as stream:
        content: bytes = stream.read()
    try:
        text = content.decode(encoding)
        at = len(text.partition("\0")[0].encode(encoding)) if "\0" in text else -1
    except UnicodeError as error:
        at = getattr(error, "start", 0)
    if at < 0:
        return content if is_utf_8 else text.encode()
    is_wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in content
    other, line = "utf-16" if is_wide else "cp1252", content.count(b"\n", 0, at) + 1
    remedy = f"it may be data.encoding={other}" if other != encoding else "data.encoding is wrong"
    cells.refuse(
        f"data.path is '{path}', which", [f"line {line} is not text in {encoding} ({remedy})"]
    )
    return b""


def _table(
    content: bytes,
    header: list[str],
    as_texts: list[str],
    delimiter: str,
    options: Mapping[str, Any],
) -> tuple[Any, list[str]]:
    """Return the cells as a DataFrame whose index is the line of each row, and ragged lines.

    Cells of the columns ``as_texts`` are stripped texts, empty ones included.
    """
    import pandas

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        frame = pandas.read_csv(
            io.BytesIO(content),
            sep=delimiter,
            header=0,
            names=header,
            index_col=False,
            encoding="utf-8-sig",
            dtype=dict.fromkeys(as_texts, str),
            keep_default_na=False,
            na_values={
                name: cells.texts_without_value(options) for name in header if name not in as_texts
            },
            decimal={"point": ".", "comma": ","}[options["decimal"]],
            skip_blank_lines=False,
            on_bad_lines="warn",
            low_memory=False,
            float_precision="round_trip",  # which pandas 3 always has
        )
    messages = [
        str(each.message) for each in caught if each.category is pandas.errors.ParserWarning
    ]
    ragged = [tuple(map(int, match)) for text in messages for match in RAGGED.findall(text)]
    faults = [
        f"line {line} has {n} columns, but the first {n_first}" for line, n_first, n in ragged
    ]
    if any("Length of header" in text for text in messages):
        faults.append("line 2 and others have more columns than the first")
    lines = np.arange(len(frame) + len(ragged)) + 2
    lines = np.setdiff1d(lines, [line for line, *_ in ragged])
    frame.index = pandas.Index(lines, name="line")
    for name in as_texts:
        frame[name] = frame[name].fillna("").str.strip()
    is_blank = frame.drop(columns=as_texts).isna().all(axis=1) & (frame[as_texts] == "").all(axis=1)
    return frame[~is_blank], faults


class Npz(tables.OwnSamples, PooledDataset):
    """Your own arrays in an `.npz` file, as `numpy.savez` writes it, or in one for each client.

    Parameters
    ----------
    path : str
        The file, or its name in ``$MPIFED_DATA/npz``; or a directory with a file for each client.
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
        partition: partitions.GroupedName | None = None,
        split: partitions.Parts | None = None,
        choose: partitions.Choose = "random",
        task: tables.OwnTask = "auto",
        divisor: tables.Divisor | None = None,
        standardise: bool = False,
        path: str,
        features: str = "x",
        label: str | None = "y",
        client: str | None = None,
        test: str | None = None,
        **options: Any,
    ) -> None:
        columns = {"features": features, "label": label, "client": client, "test": test}
        reading = {"path": path, **columns}
        source = self.source(reading, task, divisor, standardise)
        options["partition"], options["split"] = partition or "iid", split
        super().__init__(source, {"choose": choose}, *run, **options)

    @staticmethod
    def read(options: Mapping[str, Any]) -> tuple[str, str, tables.Columns]:
        """Return the samples in the file, or in those of a directory."""
        directory = Path(os.path.expanduser(options["path"]))
        if directory.is_dir():
            return (
                f"data.path is '{directory}', where",
                directory.name,
                read_npzs(directory, options),
            )
        path = archives.located(options["path"], "npz")
        return f"data.path is '{path}', where", path.stem, read_npz(path, options)


def read_npz(path: Path, options: Mapping[str, Any]) -> tables.Columns:
    """Return the samples in an `.npz` file."""
    names = {key: options[key] for key in ("features", "label", "client", "test")}
    with archives.opened_npz(path) as file:
        tables.check_columns(path, file, names.items())
        arrays: list[Any] = [file[name] if name else None for name in names.values()]
    return tables.Columns(*arrays)


def read_npzs(directory: Path, options: Mapping[str, Any]) -> tables.Columns:
    """Return the samples in the `.npz` files of a directory, each of which is a client."""
    files = archives.files_by_client(directory, (".npz",))
    parts = [read_npz(file.path, options) for file in files]
    with archives.reading(directory):
        arrays: dict[str, Any] = {
            what: np.concatenate([getattr(part, what) for part in parts])
            for what in ("x", "y", "client", "is_test")
            if getattr(parts[0], what) is not None
        }
    sizes = [len(part.x) for part in parts]
    marks = np.repeat([file.is_test for file in files], sizes)
    arrays.setdefault("client", np.repeat([file.client for file in files], sizes))
    if marks.any():
        arrays.setdefault("is_test", marks)
    return tables.Columns(**arrays)


class Parquet(tables.OwnSamples, PooledDataset):
    """Your own table in parquet files: one, one for each client, or those of the Hugging Face hub.

    A column of pictures, lists or texts of one length is an input of its own. Without it the file
    is a table, and its columns are read as those of ``csv``.

    Parameters
    ----------
    raw : str
        A file, or a directory of files, of which those whose name begins with ``test`` are the
        published test part. Where none is named as on the hub (``train``, ``test``, ``part``, a
        number), each file is a client.
    features : str or list of str, optional
        Name of the column of inputs, or names of several of a table. None is ``image``, or the only
        column of pictures or lists, or else all columns of a table that are not named otherwise.
    label : str, optional
        Name of the column of targets. None is for unlabelled data.
    client : str, optional
        Name of the column that says whose each sample is, as ``writer_id``.
    test : str, optional
        Name of a column that is true or 1 for the samples that ``split: published`` tests on.
    drop : list of str, optional
        Names of columns of a table that are no inputs, such as ids.
    categories : list of str, optional
        Names of columns of inputs whose numbers are read as texts, such as codes.
    missing : {'refuse', 'drop', 'mean'}
        What becomes of cells of a table without a value, as in ``csv``.
    missing_values : list of str, optional
        Texts of a table that are read as no value, beside the empty one. None is no other.
    vocabulary : {'printable', 'leaf'}
        Characters of texts.
    """

    def __init__(
        self,
        *run: Any,
        partition: partitions.GroupedName | None = None,
        split: partitions.Parts | None = None,
        choose: partitions.Choose = "random",
        task: tables.OwnTask = "auto",
        divisor: tables.Divisor | None = None,
        standardise: bool | None = None,
        raw: str,
        features: str | list[str] | None = None,
        label: str | None = "label",
        client: str | None = None,
        test: str | None = None,
        drop: list[str] | None = None,
        categories: list[str] | None = None,
        missing: cells.Missing = "refuse",
        missing_values: list[str] | None = None,
        vocabulary: Vocabulary = "printable",
        **options: Any,
    ) -> None:
        columns = {"raw": raw, "features": features, "label": label, "client": client, "test": test}
        inputs = {"drop": drop, "categories": categories, "missing": missing}
        table = {**inputs, "missing_values": missing_values}
        reading = {**columns, **table, "vocabulary": vocabulary}
        if standardise is None:
            standardise = not isinstance(features, str)
        source = self.source(reading, task, divisor, standardise)
        options["partition"], options["split"] = partition or "iid", split
        super().__init__(source, {"choose": choose}, *run, **options)

    @staticmethod
    def read(options: Mapping[str, Any]) -> tuple[str, str, tables.Columns]:
        """Return the samples in the files."""
        directory = Path(os.path.expanduser(options["raw"]))
        where = f"data.raw is '{directory}', where", directory.name.removesuffix(".parquet")
        if not isinstance(options["features"], str):
            return *where, read_parquet_tables(directory, options)
        names = {key: options[key] for key in ("features", "label", "client", "test")}
        return *where, read_parquet(directory, names, VOCABULARIES[options["vocabulary"]])

    @staticmethod
    def complete_options(options: dict[str, Any], n_training: int) -> dict[str, Any]:
        """Fill in inputs, partition and split, by what the files hold, where they are here."""
        if not Path(os.path.expanduser(options["raw"])).exists():
            return tables.with_partition(options, n_training)
        files = parquet_paths(Path(os.path.expanduser(options["raw"])), "parquet")
        if options["features"] is None:
            options = {**options, "features": column_of_arrays(files[0], options)}
        is_table = not isinstance(options["features"], str)
        if options["standardise"] is None:
            options = {**options, "standardise": is_table}
        if is_table:
            by_client = all(file.client for file in owners_of(files))
            by_client = by_client and options["client"] is None
            marked = len({is_test_file(path) for path in files}) > 1
            partition = options["partition"] or ("natural" if by_client else None)
            split = options["split"] or ("published" if marked else None)
            options = {**options, "partition": partition, "split": split}
        return tables.with_partition(options, n_training)


def column_of_arrays(path: Path, options: Mapping[str, Any]) -> str | None:
    """Return the column ``image``, or the only one of pictures or lists; None for a table."""
    from pyarrow import parquet, types

    with archives.reading(path), parquet.ParquetFile(path, memory_map=False) as file:
        schema = file.schema_arrow
        named = (options["label"], options["client"], options["test"], *(options["drop"] or ()))
        kinds = {name: schema.field(name).type for name in schema.names if name not in named}
    if "image" in kinds:
        return "image"
    are_arrays = (types.is_struct, types.is_list, types.is_large_list, types.is_fixed_size_list)
    names = [name for name, kind in kinds.items() if any(each(kind) for each in are_arrays)]
    return names[0] if len(names) == 1 else None


def owners_of(files: Sequence[Path]) -> list[archives.FileOfClient]:
    """Return parquet files as those of clients, if none is named as a part on the hub."""
    folders = ("train", "test", "validation", "default")
    are_parts = len(files) < 2 or any(
        PART.match(path.name) or path.parent.name in folders for path in files
    )
    return [
        archives.FileOfClient(path, "" if are_parts else path.stem, is_test_file(path))
        for path in files
    ]


def read_parquet_tables(directory: Path, options: Mapping[str, Any]) -> tables.Columns:
    """Return the samples in a table in a parquet file, or in all of a directory."""
    files = parquet_paths(directory, "parquet")
    from pyarrow import parquet

    where = f"data.raw is '{directory}', which"
    frames = []
    for path in files:
        with archives.reading(path), parquet.ParquetFile(path, memory_map=False) as file:
            check_parquet(path, file, {"label": options["label"], "client": options["client"]})
            raise_if_stop_requested()
            frame = file.read(use_threads=False).to_pandas()
        frames.append(frame)
    return cells.columns_of_frames(where, owners_of(files), frames, options)


def read_parquet(
    directory: Path, names: Mapping[str, str | None], vocabulary: str
) -> tables.Columns:
    """Return the samples in a parquet file, or in all of a directory and its directories."""
    files = parquet_paths(directory, "parquet")
    from pyarrow import parquet, types

    parts: dict[str, list[np.ndarray]] = {option: [] for option, name in names.items() if name}
    is_test: list[np.ndarray] = []
    for path in files:
        with archives.reading(path), parquet.ParquetFile(path, memory_map=False) as file:
            check_parquet(path, file, names)
            class_names = _class_names(file.schema_arrow.metadata, names["label"])
            kind = file.schema_arrow.field(names["features"]).type
            columns = [name for name in names.values() if name]
            for batch in file.iter_batches(ROWS, columns=columns, use_threads=False):
                raise_if_stop_requested()
                if not batch.num_rows:
                    continue
                for option, part in parts.items():
                    part.append(_converted(batch.column(names[option]), option, vocabulary))
                is_test.append(np.full(batch.num_rows, is_test_file(path)))
    if not sum(map(len, is_test)):
        raise InputError(f"data.raw is '{directory}', where no .parquet file has a row")
    with archives.reading(directory):
        arrays = {option: np.concatenate(part) for option, part in parts.items()}
        tested = np.concatenate(is_test)
    # Pictures are divided by 255, and places of characters are not divided.
    is_text = types.is_string(kind) or types.is_large_string(kind)
    divisor = 255 if types.is_struct(kind) else 1 if is_text else None
    mixed = tested if tested.any() and not tested.all() else None
    y, whose = arrays.get("label"), arrays.get("client")
    marks = arrays.get("test", mixed)
    return tables.Columns(
        arrays["features"], y, whose, marks, class_names=class_names, divisor=divisor
    )


def parquet_paths(directory: Path, data: str) -> list[Path]:
    """Return a parquet file, or those of a directory and its directories, for testing last."""
    if find_spec("pyarrow") is None:
        raise InputError(
            f"data.name is '{data}', which needs the package pyarrow: pip install 'mpifed[parquet]'"
        )
    if directory.suffix.lower() == ".parquet" and os.path.isfile(directory):
        return [directory]
    files = sorted(directory.rglob("*.parquet")) if os.path.isdir(directory) else []
    if not files:
        raise InputError(
            f"data.raw is '{directory}', but there is no .parquet file, or directory of such files"
        )
    return sorted(files, key=is_test_file)


def check_parquet(path: Path, file: Any, names: Mapping[str, str | None]) -> None:
    """Raise ``InputError`` where an open file lacks a column, or memory cannot hold it."""
    tables.check_columns(path, file.schema_arrow.names, names.items())
    groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
    size = sum(group.total_byte_size for group in groups)
    check_memory(2.0 * size, f"'{path}' cannot be read: it")


def is_test_file(path: Path) -> bool:
    """As in `data/test-00000-of-00001.parquet`, or `default/test/0000.parquet`."""
    return path.name.startswith("test") or path.parent.name == "test"


def _class_names(metadata: dict[bytes, bytes] | None, label: str | None) -> tuple[str, ...]:
    """Names of the labels as the hub's writer leaves them in a file; empty without them."""
    try:
        card = json.loads((metadata or {})[b"huggingface"])
        return tuple(map(str, card["info"]["features"][label]["names"]))
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
