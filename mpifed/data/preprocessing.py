"""What a user's samples go through before models see them, kept with a run for new samples."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mpifed.data.archives import opened, reading
from mpifed.data.tokens import Tokeniser, padded
from mpifed.errors import InputError, one_line

# Columns are told apart by one of these, and a cell without a value holds one of the others.
DELIMITERS = ",;\t|"
MISSING = ("", "?", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null")

# What pandas reads as a number, by what is before the decimals. Python's own int and float also
# take 1_11, which is 111 to them.
NUMBERS = {
    decimal: re.compile(
        rf"[+-]?((\d+{mark}?\d*|{mark}\d+)(e[+-]?\d+)?|inf(inity)?)", re.ASCII | re.IGNORECASE
    )
    for decimal, mark in (("point", r"\."), ("comma", ","))
}

# Bytes of memory for each byte of a table.
HELD = 14.0

# How the names of files end that hold tables.
TABLES = (".csv", ".csv.gz", ".csv.xz", ".csv.bz2", ".parquet")

# Fields of a ``Preprocessing`` that are arrays.
ARRAYS = ("filling", "mean", "deviation")


@dataclass(frozen=True, eq=False)
class Preprocessing:
    """How samples become inputs; without arguments they are inputs as they are.

    Attributes
    ----------
    columns : tuple of str
        Names of the columns that are inputs, in their order; empty for arrays.
    categories : mapping of str to tuple of str
        The texts of a column, in the order of the columns of 0 and 1 that stand for them, which
        follow the numbers.
    missing, missing_values : str and tuple of str
        What became of cells without a value, refuse, drop or mean; and texts that are no value.
    delimiter, decimal, encoding : str
        One character between columns of a CSV file, None for that of most columns in its first
        line; what is before the decimals of numbers in texts, point or comma; and how letters are
        held, as Python names it.
    divisor : int
        An array is divided by it.
    filling : ndarray, optional
        What stands for a number without a value, float64 (numbers,).
    mean, deviation : ndarray, optional
        Numbers have the one subtracted and are divided by the other, float64 (numbers,), or for
        arrays of the shape of a sample. None where they are not standardised.
    tokeniser : Tokeniser, optional
        What makes tokens of the texts in the only column, with ``padded``.
    """

    columns: tuple[str, ...] = ()
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    missing: Literal["refuse", "drop", "mean"] = "refuse"
    missing_values: tuple[str, ...] = MISSING
    delimiter: str | None = None
    decimal: Literal["point", "comma"] = "point"
    divisor: int = 1
    filling: np.ndarray | None = None
    mean: np.ndarray | None = None
    deviation: np.ndarray | None = None
    tokeniser: Tokeniser | None = None
    encoding: str = "utf-8"

    @property
    def n_tokens(self) -> int | None:
        """What tokens are below, padding included; None where inputs are no texts."""
        return None if self.tokeniser is None else 1 + self.tokeniser.size

    @property
    def numbers(self) -> tuple[str, ...]:
        """Names of the columns of numbers, which come first in an input."""
        return tuple(name for name in self.columns if name not in self.categories)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the columns of an input; empty where it has none."""
        if self.tokeniser is not None:
            return ()
        ones = (f"{name}_{text}" for name, texts in self.categories.items() for text in texts)
        return (*self.numbers, *ones)

    @cached_property
    def text(self) -> str:
        """All of it as JSON, from which ``preprocessing_from`` makes it again."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        arrays = {name: values[name].tolist() for name in ARRAYS if values[name] is not None}
        tokeniser = None if self.tokeniser is None else asdict(self.tokeniser)
        return json.dumps({**values, **arrays, "tokeniser": tokeniser})

    def scaled(self, numbers: np.ndarray) -> np.ndarray:
        """Return numbers (samples, ...) with values for missing ones (NaN), and standardised."""
        if self.filling is not None:
            numbers = np.where(np.isfinite(numbers), numbers, self.filling)
        if self.mean is not None and self.deviation is not None:
            numbers = (numbers - self.mean) / self.deviation
        return numbers

    def encodes_as(self, other: Preprocessing) -> bool:
        """Return whether inputs are on the scale of another one, with the same columns."""
        scales = ((self.mean, other.mean), (self.deviation, other.deviation))
        alike = all(
            np.array_equal(ours, theirs)
            if ours is not None and theirs is not None
            else ours is theirs
            for ours, theirs in scales
        )
        return alike and self.columns == other.columns and self.categories == other.categories

    def encode(self, samples: Any, input_shape: tuple[int, ...]) -> np.ndarray:
        """Return new samples as inputs of the run's model.

        Parameters
        ----------
        samples : path, pandas.DataFrame, mapping or array_like
            A CSV or parquet file, a table, or one sample, with the columns of inputs in any order;
            or an array of them in their order, as a list of texts.
        input_shape : tuple of int
            The shape of one input.

        Returns
        -------
        ndarray
            float64 (samples, *input_shape).

        Raises
        ------
        InputError
            If a column lacks, or a cell has no value or one that the run cannot use.
        """
        if self.tokeniser is not None:
            return self._tokens(self._texts(samples), input_shape)
        if self.columns:
            return self._of_columns(*self._with_columns(samples))
        if isinstance(samples, (str, os.PathLike)):
            raise InputError(
                f"samples are '{samples}', but the run was trained on arrays: pass an array "
                f"{_shape_of(input_shape)}"
            )
        x = _array(samples)
        if x.dtype.kind not in "biuf" or x.shape[1:] != input_shape or x.ndim == 0:
            raise InputError(
                f"samples are {one_line(str(x.dtype), 40)} of shape {x.shape}; the run takes "
                f"numbers {_shape_of(input_shape)}"
            )
        return self.scaled(x.astype(np.float64) / self.divisor)

    def _texts(self, samples: Any) -> list[str]:
        """Return the texts among new samples."""
        import pandas

        if isinstance(samples, pandas.Series):
            return texts_in(samples)
        if isinstance(samples, np.ndarray) and samples.ndim == 1:
            samples = samples.tolist()
        if isinstance(samples, (list, tuple)) and all(isinstance(each, str) for each in samples):
            return list(samples)
        if isinstance(samples, str) and not os.path.exists(os.path.expanduser(samples)):
            raise InputError(
                f"samples are '{one_line(samples, 60)}', but there is no such file; texts are "
                "passed in a list"
            )
        return texts_in(self._with_columns(samples)[0][self.columns[0]])

    def with_targets(
        self, samples: Any, label: str | None, input_shape: tuple[int, ...]
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return new rows of a table as inputs, and their targets.

        Those without a target, or a value that the run needs, are left out where it left out such.

        Parameters
        ----------
        samples : path, pandas.DataFrame, mapping or array_like
            As for ``encode``; a directory has its files together.
        label : str or None
            Name of the column of targets; None is for unlabelled data.
        input_shape : tuple of int
            The shape of one input.
        """
        frame, *where = self._with_columns(samples, *([] if label is None else [label]))
        targets = None
        if label is not None:
            prefix, row = where
            cells = _texts(frame[label], ())
            gaps = np.isin(cells, ("", *self.missing_values))
            if self.missing == "refuse" and gaps.any():
                raise InputError(f"{prefix} {self._gap(gaps, frame, label, row)[0]}")
            if self.missing == "drop":
                inputs = frame[[*self.columns]]
                gaps |= (inputs.isna() | inputs.isin(self.missing_values)).any(axis=1).to_numpy()
            frame, targets = frame[~gaps], typed(cells[~gaps].tolist(), self.decimal)
        if self.tokeniser is not None:
            return self._tokens(texts_in(frame[self.columns[0]]), input_shape), targets
        return self._of_columns(frame, *where), targets

    def _tokens(self, texts: Sequence[str], input_shape: tuple[int, ...]) -> np.ndarray:
        """Return texts as the tokens of one length."""
        assert self.tokeniser is not None
        encoded = [self.tokeniser.encode(text) for text in texts]
        return padded(encoded, *input_shape).astype(np.float64)

    def _with_columns(self, samples: Any, *others: str) -> tuple[Any, str, str]:
        """Return what ``_frame`` does, of which no column of inputs lacks, and none of others."""
        frame, prefix, row = self._frame(samples, others)
        lacking = [name for name in (*self.columns, *others) if name not in frame]
        if lacking:
            raise InputError(
                f"{prefix} no column {', '.join(map(repr, lacking))}; the run's inputs are "
                f"{one_line(', '.join(self.columns), 400)}"
            )
        return frame, prefix, row

    def _of_columns(self, frame: Any, prefix: str, row: str) -> np.ndarray:
        """Return the rows of a table as inputs: numbers, scaled, and columns of 0 and 1."""
        faults: list[str] = []
        numbers = np.zeros((len(frame), len(self.numbers)))
        for number, name in enumerate(self.numbers):
            numbers[:, number], fault = _numbers(frame[name], self.decimal, self.missing_values)
            faults += _first(fault, frame, name, row, "which is no finite number")
            if self.missing != "mean":
                faults += self._gap(np.isnan(numbers[:, number]) & ~fault, frame, name, row)
        ones = []
        for name, texts in self.categories.items():
            cells = _texts(frame[name], texts)
            ones.append(cells[:, None] == np.array([*texts], object))
            gaps = np.isin(cells, self.missing_values)
            allowed = f"and the run has {one_line(', '.join(texts), 200)}"
            faults += _first(~(ones[-1].any(axis=1) | gaps), frame, name, row, allowed)
            if self.missing != "mean":
                faults += self._gap(gaps, frame, name, row)
        if faults:
            raise InputError(f"{prefix} {'; '.join(map(one_line, faults))}")
        return np.concatenate([self.scaled(numbers), *ones], axis=1)

    def _gap(self, gaps: np.ndarray, frame: Any, name: str, row: str) -> list[str]:
        at = np.flatnonzero(gaps)
        where = f"no value in column '{name}' on {row} {frame.index[at[0]]}" if len(at) else ""
        return [f"{where}, and the run's data.missing is '{self.missing}'"] if len(at) else []

    def _frame(self, samples: Any, as_texts: Sequence[str] = ()) -> tuple[Any, str, str]:
        """Return samples as a DataFrame, the beginning of messages, and what its index counts.

        Cells of the columns ``as_texts`` of a file are texts too.
        """
        import pandas

        if isinstance(samples, (str, os.PathLike)):
            path = Path(os.path.expanduser(samples))
            with reading(path):
                as_texts = *as_texts, *(self.columns if self.tokeniser else self.categories)
                marks = self.delimiter, self.decimal, self.missing_values, self.encoding
                frame = read_tables(path, as_texts, *marks)
            return frame, f"'{path}' has", "line"
        if isinstance(samples, pandas.Series):
            samples = samples.to_dict()
        if isinstance(samples, Mapping):
            has_columns = any(np.ndim(values) for values in samples.values())
            samples = pandas.DataFrame(samples if has_columns else [samples])
        elif isinstance(samples, (list, tuple)) and all(isinstance(s, Mapping) for s in samples):
            samples = pandas.DataFrame(samples)
        elif not isinstance(samples, pandas.DataFrame):
            array = _array(samples)
            if array.shape[1:] != (len(self.columns),):
                names = one_line(", ".join(self.columns), 400)
                raise InputError(
                    f"samples have the shape {array.shape}; the run takes "
                    f"{_shape_of((len(self.columns),))}: {names}"
                )
            samples = pandas.DataFrame(array, columns=list(self.columns))
        frame = samples.reset_index(drop=True)
        frame.columns = [str(name).strip() for name in frame.columns]
        return frame, "samples have", "row"


def preprocessing_from(text: str) -> Preprocessing:
    """Return the preprocessing of which ``text`` is the JSON."""
    values = json.loads(text)
    arrays = {n: np.array(values[n], np.float64) for n in ARRAYS if values[n] is not None}
    categories = {name: tuple(texts) for name, texts in values["categories"].items()}
    lists = {name: tuple(values[name]) for name in ("columns", "missing_values")}
    values |= {**lists, "categories": categories}
    if values.get("tokeniser") is not None:
        values["tokeniser"] = Tokeniser(**values["tokeniser"])
    return Preprocessing(**{**values, **arrays})


def read_tables(path: Path, as_texts: Collection[str], *marks: Any) -> Any:
    """Return a file as ``read_table`` does, or all files of a directory and its directories."""
    import pandas

    if not path.is_dir():
        return read_table(path, as_texts, *marks)
    files = [file for file in sorted(path.rglob("*")) if file.name.lower().endswith(TABLES)]
    files = [file for file in files if file.is_file() and not file.name.startswith(".")]
    if not files:
        raise InputError(f"'{path}' holds no file that ends in {', '.join(TABLES)}")
    frames = [read_table(file, as_texts, *marks) for file in files]
    return pandas.concat(
        [
            frame.set_axis([f"{line} of '{file.relative_to(path)}'" for line in frame.index])
            for file, frame in zip(files, frames, strict=True)
        ]
    )


def read_table(
    path: Path,
    as_texts: Collection[str],
    delimiter: str | None = None,
    decimal: str = "point",
    missing_values: Collection[str] = MISSING,
    encoding: str = "utf-8",
) -> Any:
    """Return a CSV or parquet file as a DataFrame, whose index is the line of each row.

    Cells of the columns ``as_texts`` are texts; in others, ``missing_values`` are none.
    """
    import pandas

    if path.suffix.lower() == ".parquet":
        return pandas.read_parquet(path)
    with opened(path, HELD) as stream:
        content = stream.read()
    content = content.decode(encoding).encode()
    first = io.BytesIO(content).readline().decode("utf-8-sig")
    delimiter = delimiter_of(first, delimiter)
    header = names_in(first, delimiter)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        frame = pandas.read_csv(
            io.BytesIO(content),
            sep=delimiter,
            header=0,
            names=header,
            index_col=False,
            encoding="utf-8-sig",
            dtype=dict.fromkeys([name for name in header if name in as_texts], str),
            keep_default_na=False,
            na_values={n: [*missing_values] for n in header if n not in as_texts},
            decimal={"point": ".", "comma": ","}[decimal],
            skip_blank_lines=False,
            low_memory=False,
            float_precision="round_trip",  # which pandas 3 always has
        )
    frame.index = np.arange(len(frame)) + 2
    return frame[~(frame.isna() | (frame == "")).all(axis=1)]


def typed(texts: list[str], decimal: str) -> np.ndarray:
    """Return whole numbers, else numbers, where every text is one; else the texts."""
    if all(map(NUMBERS[decimal].fullmatch, texts)):
        for kind in (np.int64, np.float64):
            with contextlib.suppress(ValueError, OverflowError):
                return np.array([text.replace(",", ".") for text in texts], kind)
    return np.array(texts, object)


def texts_in(cells: Any) -> list[str]:
    """Return the texts of a column, empty ones where there are none."""
    return [cell if isinstance(cell, str) else "" for cell in cells.tolist()]


def delimiter_of(line: str, delimiter: str | None) -> str:
    """Return what is between columns, where the first line of a file is ``line``."""
    if delimiter == "tab":
        return "\t"
    return delimiter or max(DELIMITERS, key=lambda mark: len(names_in(line, mark)))


def names_in(line: str, delimiter: str) -> list[str]:
    """Return the names in the first line of a CSV file."""
    names = next(csv.reader([line], delimiter=delimiter), [])
    return [name.strip() or f"column {number}" for number, name in enumerate(names, 1)]


def _array(samples: Any) -> np.ndarray:
    """Samples as an array, also where they are a tensor."""
    try:
        return np.asarray(samples.detach().cpu() if hasattr(samples, "detach") else samples)
    except (TypeError, ValueError, RuntimeError) as error:  # of numpy, or of torch
        reason = one_line(str(error), 200)
        raise InputError(f"samples are no table and no array: {reason}") from None


def _shape_of(sample: tuple[int, ...]) -> str:
    return f"({', '.join(['samples', *map(str, sample)])})"


def _numbers(
    cells: Any, decimal: str, missing_values: Collection[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers in a column, NaN where there are none, and which cells are something
    else.
    """
    import pandas

    if pandas.api.types.is_numeric_dtype(cells):
        values = cells.to_numpy(np.float64, na_value=np.nan)
        return values, np.isinf(values)
    values, wrong = np.full(len(cells), np.nan), np.zeros(len(cells), bool)
    for at, cell in enumerate(cells.tolist()):
        text = "" if cell is None or cell is pandas.NA else str(cell).strip()
        if isinstance(cell, bool | int | float):
            values[at] = cell
        elif NUMBERS[decimal].fullmatch(text):
            values[at] = float(text.replace(",", "."))
        else:
            wrong[at] = text not in missing_values
    return values, wrong | np.isinf(values)


def _texts(cells: Any, texts: Sequence[str]) -> np.ndarray:
    """The cells of a column as stripped texts, empty where they have no value."""
    import pandas

    spelt = []
    for cell in cells.tolist():
        text = "" if pandas.isna(cell) else str(cell).strip()
        # Whole numbers beside empty cells are floats to pandas.
        is_whole = isinstance(cell, float) and cell.is_integer() and text not in texts
        spelt.append(str(int(cell)) if is_whole else text)
    return np.array(spelt, object)


def _first(wrong: np.ndarray, frame: Any, name: str, row: str, why: str) -> list[str]:
    """The first of the cells that are wrong, in words; nothing where none is."""
    at = np.flatnonzero(wrong)
    if not len(at):
        return []
    cell = one_line(str(frame[name].iloc[at[0]]), 60)
    others = f" and {len(at) - 1} more" if len(at) > 1 else ""
    return [f"'{cell}' in column '{name}' on {row} {frame.index[at[0]]}{others}, {why}"]
