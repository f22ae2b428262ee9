"""A user's own samples in files: CSV, `.npz`, and parquet as on the Hugging Face hub."""

from __future__ import annotations

import codecs
import contextlib
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
    Preprocessing,
    archives,
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
MISSING, NUMBERS = preprocessing.MISSING, preprocessing.NUMBERS

# Faults that one message names, texts of a column that become columns, and rows of which different
# values look like an id.
MOST_FAULTS, MOST_TEXTS, FEWEST_IDS = 20, 1000, 20

# Rows of a parquet file that are converted at once.
ROWS = 4096


class Csv(PooledDataset, tables.OwnSamples):
    """Your own samples in a CSV file: a row of names, then one sample a row.

    A column holds numbers where each of its texts is one, else texts. A column of texts among the
    inputs becomes, behind the numbers, a column of 0 and 1 for each of its texts in their order
    (one-hot).

    Parameters
    ----------
    partition : str, optional
        How samples are dealt to the clients. None is natural where each sample has a client, else
        iid.
    split : {'60_20_20', 'in_order', 'published'}, optional
        How a client's samples become training, validation and test samples: 60/20/20 at random, the
        same in the order of the source, or tested on those that are marked. None is published where
        an option marks test samples, else 60_20_20.
    path : str
        The file, plain or with .gz, .xz or .bz2, or its name in ``$MPIFED_DATA/csv``.
    label : str, optional
        Name of the column of targets: numbers or texts. None is for unlabelled data.
    client : str, optional
        Name of the column that says whose each sample is, as it is spelt: 007 is not 7.
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
        missing: Literal["refuse", "drop", "mean"] = "refuse",
        delimiter: str | None = None,
        decimal: Literal["point", "comma"] = "point",
        **options: Any,
    ) -> None:
        named = {"path": path, "label": label, "client": client, "test": test}
        inputs = {"features": features, "drop": drop, "categories": categories, "missing": missing}
        marks = {"delimiter": delimiter, "decimal": decimal}
        file_options = {**named, **inputs, **marks}
        source = tables.reader(self.read, file_options, task, divisor, standardise)
        options["partition"], options["split"] = partition or "iid", split
        super().__init__(source, {"choose": choose}, *run, **options)

    @staticmethod
    def read(options: Mapping[str, Any]) -> tuple[str, str, tables.Columns]:
        """Return the samples in the file."""
        path = archives.located(options["path"], "csv")
        name = re.sub(r"\.csv$", "", archives.bare_name(path), flags=re.IGNORECASE)
        return f"data.path is '{path}', where", name, read_csv(path, options)

    complete_options = staticmethod(tables.with_partition)

    @classmethod
    def count_clients(cls, options: Mapping[str, Any], run_seed: int) -> int:
        """Return how many sources have enough samples, or a number that does for others."""
        return tables.count_sources(cls.read, options, run_seed)


def read_csv(path: Path, options: Mapping[str, Any]) -> tables.Columns:
    """Return the samples in a CSV file; one ``InputError`` with all that is wrong with it."""
    import pandas

    content = _content(path)
    first = io.BytesIO(content).readline().decode("utf-8-sig")
    delimiter = preprocessing.delimiter_of(first, options["delimiter"])
    header = preprocessing.names_in(first, delimiter)
    if not header or len(set(header)) != len(header):
        empty = " (it is empty)" if not content.strip() else ""
        _refuse(path, [f"its first line must name each column, all differently{empty}"])
    lists = {key: options[key] or [] for key in ("features", "drop", "categories")}
    named = {key: options[key] for key in ("label", "client", "test") if options[key]}
    named_columns = [
        *named.items(),
        *((key, name) for key, names in lists.items() for name in names),
    ]
    tables.check_columns(path, header, named_columns)
    others = [name for name in header if name not in (*named.values(), *lists["drop"])]
    inputs, decimal = lists["features"] or others, options["decimal"]
    as_texts = list(dict.fromkeys([*named.values(), *lists["categories"]]))
    n_rows = content.count(b"\n")
    n_cells = n_rows + content.count(delimiter.encode())
    size = 2 * len(content) + CELL * n_cells + (ROW + TEXT * len(as_texts)) * n_rows
    check_memory(size, f"'{path}' cannot be read: it")
    with archives.reading(path):
        frame, faults = _table(content, header, as_texts, delimiter, decimal)
    words = frame[list(dict.fromkeys(named.values()))]
    frame = frame[list(dict.fromkeys(inputs))].copy()
    texts, wrong = _texts(frame, inputs, lists["categories"], decimal)
    gaps = pandas.concat([frame.isna(), words.isin(MISSING)], axis=1)
    gaps = gaps.loc[:, ~gaps.columns.duplicated()]
    numbers = tuple(name for name in inputs if name not in texts)
    columns = {name: frame[name].dropna() for name in numbers}
    present = {key: words[name][~words[name].isin(MISSING)] for key, name in named.items()}
    typed = {key: _typed(cells.tolist(), decimal) for key, cells in present.items()}
    remarks = []
    if "client" in typed:
        typed["client"] = _spelt(present["client"].tolist(), typed["client"])
    if "label" in typed and typed["label"].dtype.kind == "f":
        columns[named["label"]] = pandas.Series(typed["label"], present["label"].index)
    elif "label" in typed and typed["label"].dtype.kind == "O":
        remarks = _other_decimals(named["label"], present["label"], decimal)
    _refuse(path, faults + wrong + _infinite(columns) + _gaps(gaps, options["missing"]))
    complete = ~gaps[gaps.columns if options["missing"] == "drop" else words.columns].any(axis=1)
    if not complete.all():
        remarks.append(_left_out(complete, options["missing"], words.get(options["client"])))
    if not complete.any():
        _refuse(path, remarks)
    typed = {key: values[complete[present[key].index]] for key, values in typed.items()}
    x, input_remarks = _inputs(frame[complete][inputs], numbers, texts)
    return tables.Columns(
        *(x, typed.get("label"), typed.get("client"), typed.get("test")),
        preprocessing=Preprocessing(
            tuple(dict.fromkeys(inputs)),
            {name: tuple(sorted(set(frame[complete][name].dropna()))) for name in texts},
            *(options["missing"], options["delimiter"], decimal),
        ),
        remarks=(*input_remarks, *remarks),
    )


def _content(path: Path) -> bytes:
    """The bytes of a CSV file, which are text in UTF-8."""
    with archives.opened(path, HELD) as stream:
        content: bytes = stream.read()
    try:
        content.decode("utf-8")
        at = content.find(b"\0")
    except UnicodeDecodeError as error:
        at = error.start
    if at >= 0:
        is_wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in content
        coding, line = "UTF-16" if is_wide else "CP1252", content.count(b"\n", 0, at) + 1
        rewritten = f"it may be {coding}, which iconv -f {coding} -t UTF-8 rewrites"
        _refuse(path, [f"line {line} is not text in UTF-8 ({rewritten})"])
    return content


def _refuse(path: Path, faults: Sequence[str]) -> None:
    """Raise ``InputError`` with the faults of a file, if there are any."""
    if faults:
        others = f"; and {len(faults) - MOST_FAULTS} more" if len(faults) > MOST_FAULTS else ""
        listed = "; ".join(one_line(fault) for fault in faults[:MOST_FAULTS])
        raise InputError(f"data.path is '{path}', which cannot be read: {listed}{others}")


def _table(
    content: bytes, header: list[str], as_texts: list[str], delimiter: str, decimal: str
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
            na_values={name: MISSING for name in header if name not in as_texts},
            decimal={"point": ".", "comma": ","}[decimal],
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
    frame.index = np.setdiff1d(lines, [line for line, *_ in ragged])
    for name in as_texts:
        frame[name] = frame[name].fillna("").str.strip()
    is_blank = frame.drop(columns=as_texts).isna().all(axis=1) & (frame[as_texts] == "").all(axis=1)
    return frame[~is_blank], faults


def _texts(
    frame: Any, inputs: Sequence[str], categories: Sequence[str], decimal: str
) -> tuple[list[str], list[str]]:
    """Return which columns of inputs are texts, which are stripped, and what is wrong with them."""
    import pandas

    texts, faults = [], []
    for name in inputs:
        if pandas.api.types.is_numeric_dtype(frame[name]):
            continue
        cells = frame[name].dropna().map(lambda cell: str(cell).strip())
        cells = cells[~cells.isin(MISSING)]
        values = _typed(cells.tolist(), decimal)
        if name not in categories and values.dtype.kind != "O":  # of more than 64 bits
            frame[name] = pandas.Series(values, cells.index, np.float64)
            continue
        texts.append(name)
        frame[name] = cells
        odd = _odd(cells, decimal)
        wrong = _other_decimals(name, cells, decimal) if name not in categories else []
        if wrong:
            faults += wrong
        elif name not in categories and len(odd) < len(cells):
            faults.append(
                f"column '{name}' has numbers, but '{odd.iloc[0]}' on line {odd.index[0]}"
                f"{_and_more(len(odd))} (data.categories reads all as texts)"
            )
        elif cells.nunique() > MOST_TEXTS:
            faults.append(
                f"column '{name}' has {cells.nunique()} different texts, and at most {MOST_TEXTS} "
                "become columns (data.drop leaves it out, data.name=labelled_texts reads texts)"
            )
    return texts, faults


def _odd(cells: Any, decimal: str) -> Any:
    """The cells that are no numbers."""
    return cells[[NUMBERS[decimal].fullmatch(cell) is None for cell in cells]]


def _other_decimals(name: str, cells: Any, decimal: str) -> list[str]:
    """What is wrong with a column whose texts would all be numbers with the other mark."""
    odd, other = _odd(cells, decimal), "comma" if decimal == "point" else "point"
    if not len(odd) or len(_odd(odd, other)):
        return []
    return [
        f"column '{name}' has decimal {other}s (data.decimal={other} reads them), as "
        f"'{odd.iloc[0]}' on line {odd.index[0]}{_and_more(len(odd))}"
    ]


def _infinite(columns: Mapping[str, Any]) -> list[str]:
    """What is wrong with columns of numbers."""
    faults = []
    for name, cells in columns.items():
        infinite = cells.index[np.isinf(cells.to_numpy(np.float64))]
        if len(infinite):
            faults.append(
                f"column '{name}' has a value that is not finite on line {infinite[0]}"
                f"{_and_more(len(infinite))}"
            )
    return faults


def _left_out(complete: Any, missing: str, whose: Any) -> str:
    """Say how many rows are left out, and which clients have no other."""
    gone = [] if whose is None else sorted(set(whose) - set(whose[complete]))
    clients = one_line(", ".join(f"'{each}'" for each in gone), 100)
    which = "client" if len(gone) == 1 else "clients"
    return (
        f"{(~complete).sum()} of {len(complete)} rows lack a value and are left out "
        f"(data.missing={missing})" + (f", with all rows of the {which} {clients}" if gone else "")
    )


def _gaps(gaps: Any, missing: str) -> list[str]:
    """What is wrong with cells that have no value; ``gaps`` says which."""
    faults = [] if len(gaps) else ["it has no line of values"]
    for name, count in gaps.sum().items():
        if count == len(gaps) > 0:
            faults.append(f"column '{name}' is empty (data.drop leaves it out)")
        elif count and missing == "refuse":
            faults.append(
                f"column '{name}' has no value on line {gaps[name].idxmax()}{_and_more(count)} "
                "(data.missing may be mean or drop)"
            )
    return faults


def _and_more(count: int) -> str:
    return f" and {count - 1} more" if count > 1 else ""


def _inputs(
    frame: Any, numbers: Sequence[str], texts: Sequence[str]
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return x (samples, columns), and remarks on it."""
    import pandas

    remarks = [
        f"column '{name}' has another value in each row, as an id has: data.drop=[{name}] leaves "
        "it out"
        for name in frame
        if len(frame) >= FEWEST_IDS and frame[name].is_unique and frame[name].dtype.kind != "f"
    ]
    x = frame[[*numbers]].to_numpy(np.float64)
    if texts:
        remarks.append(f"columns of 0 and 1 stand for the texts of {', '.join(texts)}")
        ones = pandas.get_dummies(frame[[*texts]], dtype=float).to_numpy()
        x = np.concatenate([x, ones], axis=1)
    return np.ascontiguousarray(x), tuple(remarks)


def _typed(texts: list[str], decimal: str) -> np.ndarray:
    """Whole numbers, else numbers, where every text is one; else the texts."""
    if all(map(NUMBERS[decimal].fullmatch, texts)):
        for kind in (np.int64, np.float64):
            with contextlib.suppress(ValueError, OverflowError):
                return np.array([text.replace(",", ".") for text in texts], kind)
    return np.array(texts, object)


def _spelt(texts: list[str], values: np.ndarray) -> np.ndarray:
    """Ids as numbers where these are spelt alike, else as texts: 007 is not 7."""
    return values if list(map(str, values.tolist())) == texts else np.array(texts, object)


class Npz(PooledDataset, tables.OwnSamples):
    """Your own arrays in one `.npz` file, as `numpy.savez` writes it.

    Parameters
    ----------
    partition : str, optional
        How samples are dealt to the clients. None is natural where each sample has a client, else
        iid.
    split : {'60_20_20', 'in_order', 'published'}, optional
        How a client's samples become training, validation and test samples: 60/20/20 at random, the
        same in the order of the source, or tested on those that are marked. None is published where
        an option marks test samples, else 60_20_20.
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
        source = tables.reader(self.read, {"path": path, **columns}, task, divisor, standardise)
        options["partition"], options["split"] = partition or "iid", split
        super().__init__(source, {"choose": choose}, *run, **options)

    @staticmethod
    def read(options: Mapping[str, Any]) -> tuple[str, str, tables.Columns]:
        """Return the samples in the file."""
        path = archives.located(options["path"], "npz")
        names = {key: options[key] for key in ("features", "label", "client", "test")}
        with archives.opened_npz(path) as file:
            tables.check_columns(path, file, names.items())
            arrays: list[Any] = [file[name] if name else None for name in names.values()]
        return f"data.path is '{path}', where", path.stem, tables.Columns(*arrays)

    complete_options = staticmethod(tables.with_partition)

    @classmethod
    def count_clients(cls, options: Mapping[str, Any], run_seed: int) -> int:
        """Return how many sources have enough samples, or a number that does for others."""
        return tables.count_sources(cls.read, options, run_seed)


class Parquet(PooledDataset, tables.OwnSamples):
    """A data set of the Hugging Face hub, downloaded as parquet files, with a column of
    clients.

    Parameters
    ----------
    partition : str, optional
        How samples are dealt to the clients. None is natural where each sample has a client, else
        iid.
    split : {'60_20_20', 'in_order', 'published'}, optional
        How a client's samples become training, validation and test samples: 60/20/20 at random, the
        same in the order of the source, or tested on those that are marked. None is published where
        an option marks test samples, else 60_20_20.
    raw : str
        A file, or a directory of files, of which those whose name begins with ``test`` are the
        published test part.
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
        partition: partitions.GroupedName | None = None,
        split: partitions.Parts | None = None,
        choose: partitions.Choose = "random",
        task: tables.OwnTask = "auto",
        divisor: tables.Divisor | None = None,
        standardise: bool = False,
        raw: str,
        features: str = "image",
        label: str | None = "label",
        client: str | None = None,
        vocabulary: Vocabulary = "printable",
        **options: Any,
    ) -> None:
        columns = {"raw": raw, "features": features, "label": label, "client": client}
        file_options = {**columns, "vocabulary": vocabulary}
        source = tables.reader(self.read, file_options, task, divisor, standardise)
        options["partition"], options["split"] = partition or "iid", split
        super().__init__(source, {"choose": choose}, *run, **options)

    @staticmethod
    def read(options: Mapping[str, Any]) -> tuple[str, str, tables.Columns]:
        """Return the samples in the files."""
        directory = Path(options["raw"]).expanduser()
        names = {key: options[key] for key in ("features", "label", "client")}
        columns = read_parquet(directory, names, VOCABULARIES[options["vocabulary"]])
        return f"data.raw is '{directory}', where", directory.name, columns

    complete_options = staticmethod(tables.with_partition)

    @classmethod
    def count_clients(cls, options: Mapping[str, Any], run_seed: int) -> int:
        """Return how many sources have enough samples, or a number that does for others."""
        return tables.count_sources(cls.read, options, run_seed)


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
    return tables.Columns(
        arrays["features"], y, whose, mixed, class_names=class_names, divisor=divisor
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
