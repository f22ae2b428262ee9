"""What the columns of a table are: numbers, texts, targets, clients, and cells without a value."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mpifed.data.archives import FileOfClient
from mpifed.data.preprocessing import MISSING, NUMBERS, Preprocessing, typed
from mpifed.data.tables import Columns, check_columns
from mpifed.errors import InputError, one_line

Missing = Literal["refuse", "drop", "mean"]

# What reads such texts as names.
KEEPS = "data.missing_values=[] keeps it as a text"

# Options that name columns which are not read as texts.
AS_THEY_ARE = ("features", "drop")

# Faults that one message names, texts of a column that become columns, those that are remarked
# upon, and rows of which different values look like an id.
MOST_FAULTS, MOST_TEXTS, MANY_TEXTS, FEWEST_IDS = 20, 1000, 50, 20

# A day, with or without the time, as 2026-03-01, 1/3/2026 and 01.03.26.
DATE = re.compile(r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3\d{2,4})([ T]\d.*)?")

# Cells that are no numbers or texts.
NESTED = (list, tuple, dict, set, np.ndarray)


def columns_of(
    where: str, frame: Any, faults: Sequence[str], options: Mapping[str, Any]
) -> Columns:
    """Return the samples in a table; one ``InputError`` with all that is wrong with it.

    Parameters
    ----------
    where : str
        The beginning of the message.
    frame : pandas.DataFrame
        The cells, as ``own_files`` returns them. The index says in messages where a row is.
    faults : sequence of str
        What is wrong with the table already.
    options : mapping
        Those of ``Csv`` that say what columns mean.
    """
    import pandas

    named = {key: options[key] for key in ("label", "client", "test") if options[key]}
    categories, decimal = options["categories"] or [], options["decimal"]
    without = (*named.values(), *(options["drop"] or ()))
    inputs = options["features"] or [name for name in frame if name not in without]
    missing_values = texts_without_value(options)
    words = frame[list(dict.fromkeys(named.values()))]
    frame = frame[list(dict.fromkeys(inputs))].copy()
    texts, wrong = _texts(frame, inputs, categories, decimal, missing_values)
    gaps = pandas.concat([frame.isna(), words.isin(missing_values)], axis=1)
    gaps = gaps.loc[:, ~gaps.columns.duplicated()]
    numbers = tuple(name for name in inputs if name not in texts)
    columns = {name: frame[name].dropna() for name in numbers}
    present = {key: words[name][~words[name].isin(missing_values)] for key, name in named.items()}
    if "test" in present:
        present["test"] = present["test"].replace({"True": "1", "False": "0"})
    values = {key: typed(cells.tolist(), decimal) for key, cells in present.items()}
    remarks = []
    if "client" in values:
        values["client"] = _spelt(present["client"].tolist(), values["client"])
    if "label" in values and values["label"].dtype.kind == "f":
        columns[named["label"]] = pandas.Series(values["label"], present["label"].index)
    elif "label" in values and values["label"].dtype.kind == "O":
        remarks = _other_decimals(named["label"], present["label"], decimal)
    missing = options["missing"]
    refuse(where, [*faults, *wrong, *_infinite(columns), *_gaps(gaps, words, missing)])
    complete = ~gaps[gaps.columns if missing == "drop" else words.columns].any(axis=1)
    if not complete.all():
        remarks.append(_left_out(complete, missing, words.get(options["client"]), missing_values))
    if not complete.any():
        refuse(where, remarks)
    values = {key: array[complete[present[key].index]] for key, array in values.items()}
    x, input_remarks = _inputs(frame[complete][inputs], numbers, texts)
    return Columns(
        *(x, values.get("label"), values.get("client"), values.get("test")),
        preprocessing=Preprocessing(
            tuple(dict.fromkeys(inputs)),
            {name: tuple(sorted(set(frame[complete][name].dropna()))) for name in texts},
            *(missing, missing_values, options.get("delimiter"), decimal),
            encoding=options.get("encoding", "utf-8"),
        ),
        remarks=(*input_remarks, *remarks),
        label=options["label"],
    )


def cells_of(
    frame: Any, options: Mapping[str, Any], name: str = "DataFrame"
) -> tuple[Any, list[str], list[str]]:
    """Return the cells of a DataFrame as ``own_files`` does, the columns of texts among the inputs,
    and what is wrong with the cells.
    """
    import pandas
    from pandas.api import types

    frame = frame.set_axis([str(each) for each in frame.columns], axis=1)
    frame = frame.set_axis(pandas.RangeIndex(len(frame), name="row"))
    if frame.columns.has_duplicates:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise InputError(f"{name} has several columns '{one_line(twice, 60)}'; allowed: one")
    as_texts = columns_of_texts(Path(name), list(frame), options)
    inputs = options["features"] or [n for n in frame if n not in (options["drop"] or ())]
    columns, texts, faults = {}, list(options["categories"] or ()), []
    for column in dict.fromkeys([*as_texts, *inputs]):
        cells = frame[column]
        present = cells[cells.notna()]
        if present.map(lambda cell: isinstance(cell, NESTED)).any():
            faults.append(f"column '{column}' holds lists (data.drop=[{column}] leaves it out)")
        elif column not in as_texts and types.is_numeric_dtype(cells):
            gaps = len(present) < len(cells) or types.is_float_dtype(cells)
            columns[column] = pandas.Series(
                cells.to_numpy(np.float64, na_value=np.nan) if gaps else cells.to_numpy(),
                frame.index,
            )
        else:
            if types.is_float_dtype(cells) and (present % 1 == 0).all():  # whole, with gaps
                present = present.astype(np.int64)
            words = present.map(lambda cell: str(cell).strip()).astype(object)
            columns[column] = words.reindex(frame.index)
            if column in as_texts and column not in texts:
                columns[column] = columns[column].fillna("")
            elif all(isinstance(cell, str) for cell in present):
                texts.append(column)
    order = [each for each in frame if each in columns]
    table = pandas.DataFrame(columns, index=frame.index)[order]
    return table, [each for each in texts if each in inputs], faults


def columns_of_frames(
    where: str, files: Sequence[FileOfClient], frames: Sequence[Any], options: Mapping[str, Any]
) -> Columns:
    """Return the samples in DataFrames together, which are those of ``files``; see ``columns_of``.

    Beside NaN and None only the empty text and ``missing_values`` are no values.
    """
    missing_values = options["missing_values"] or []
    options = {**options, "missing_values": missing_values, "decimal": "point"}
    tables = [cells_of(frame, options) for frame in frames]
    faults = [fault for *_, some in tables for fault in some]
    categories = sorted({name for _, texts, _ in tables for name in texts})
    options = {**options, "categories": categories}
    if len(files) == 1 and not files[0].client:
        return columns_of(where, tables[0][0], faults, options)
    return columns_of(where, *joined(files, [each for each, *_ in tables], options, faults))


def joined(
    files: Sequence[FileOfClient],
    frames: Sequence[Any],
    options: Mapping[str, Any],
    faults: Sequence[str],
) -> tuple[Any, list[str], dict[str, Any]]:
    """Return the tables of clients as one, what is wrong with them, and the options with the names
    of the columns that say whose a row is, and whether it is for tests.
    """
    import pandas

    first, faults, changed = frames[0], list(faults), dict(options)
    folder = os.path.commonpath([file.path.parent for file in files]) or os.curdir
    names = [os.path.relpath(file.path, folder) for file in files]
    labelled = []
    for name, frame in zip(names, frames, strict=True):
        if set(frame) != set(first):
            odd = sorted({*map(str, frame)} ^ {*map(str, first)})
            faults.append(f"'{name}' and '{names[0]}' differ in the column '{odd[0]}'")
        where = [f"{line} of '{name}'" for line in frame.index]
        labelled.append(frame.set_axis(pandas.Index(where, name=frame.index.name)))
    if faults:
        return first, faults, changed
    sizes = [len(frame) for frame in frames]
    table = pandas.concat([frame[list(first)] for frame in labelled])
    marks = np.repeat([str(int(file.is_test)) for file in files], sizes)
    whose = np.repeat([file.client for file in files], sizes)
    of_files = {
        "client": whose if all(whose) else None,
        "test": marks if len(set(marks)) > 1 else None,
    }
    for option, texts in of_files.items():
        if options[option] is None and texts is not None:
            changed[option] = next(n for n in (option, f"{option} of file") if n not in table)
            table[changed[option]] = texts.astype(object)
    return table, faults, changed


def columns_of_texts(path: Path, header: Sequence[str], options: Mapping[str, Any]) -> list[str]:
    """Return the columns that options read as texts; ``InputError`` where a named one lacks."""
    named = [(key, options[key]) for key in ("label", "client", "test") if options[key]]
    listed = [
        (key, name) for key in ("features", "drop", "categories") for name in options[key] or ()
    ]
    check_columns(path, header, named + listed)
    return list(dict.fromkeys(name for key, name in named + listed if key not in AS_THEY_ARE))


def texts_without_value(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The texts that are read as no value."""
    values = options["missing_values"]
    return MISSING if values is None else ("", *values)


def refuse(where: str, faults: Sequence[str]) -> None:
    """Raise ``InputError`` with the faults of a table, if there are any."""
    if faults:
        others = f"; and {len(faults) - MOST_FAULTS} more" if len(faults) > MOST_FAULTS else ""
        listed = "; ".join(one_line(fault) for fault in faults[:MOST_FAULTS])
        raise InputError(f"{where} cannot be read: {listed}{others}")


def _texts(
    frame: Any,
    inputs: Sequence[str],
    categories: Sequence[str],
    decimal: str,
    missing_values: Sequence[str],
) -> tuple[list[str], list[str]]:
    """Return which columns of inputs are texts, which are stripped, and what is wrong with them."""
    import pandas

    texts, faults = [], []
    for name in inputs:
        if pandas.api.types.is_numeric_dtype(frame[name]):
            continue
        cells = frame[name].dropna().map(lambda cell: str(cell).strip())
        cells = cells[~cells.isin(missing_values)]
        values = typed(cells.tolist(), decimal)
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
            first = f"'{odd.iloc[0]}' on {odd.index.name} {odd.index[0]}{_and_more(len(odd))}"
            faults.append(
                f"column '{name}' has numbers, but {first} (data.categories reads all as texts)"
            )
        elif cells.nunique() > MOST_TEXTS:
            faults.append(
                f"column '{name}' has {cells.nunique()} different texts, and at most {MOST_TEXTS} "
                f"become columns (data.drop=[{name}] leaves it out, data.name=labelled_texts reads "
                "texts)"
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
        f"'{odd.iloc[0]}' on {odd.index.name} {odd.index[0]}{_and_more(len(odd))}"
    ]


def _infinite(columns: Mapping[str, Any]) -> list[str]:
    """What is wrong with columns of numbers."""
    faults = []
    for name, cells in columns.items():
        infinite = cells.index[np.isinf(cells.to_numpy(np.float64))]
        if len(infinite):
            faults.append(
                f"column '{name}' has a value that is not finite on {infinite.name} {infinite[0]}"
                f"{_and_more(len(infinite))}"
            )
    return faults


def _left_out(complete: Any, missing: str, whose: Any, missing_values: Sequence[str]) -> str:
    """Say how many rows are left out, and which clients have no other."""
    gone = [] if whose is None else sorted(set(whose) - set(whose[complete]))
    clients = one_line(", ".join(f"'{each}'" for each in gone), 100)
    which = "client" if len(gone) == 1 else "clients"
    remedy = any(name and name in missing_values for name in gone)
    return (
        f"{(~complete).sum()} of {len(complete)} rows lack a value and are left out "
        f"(data.missing={missing})"
        + (f", with all rows of the {which} {clients}" if gone else "")
        + (f" ({KEEPS})" if remedy else "")
    )


def _gaps(gaps: Any, words: Any, missing: str) -> list[str]:
    """What is wrong with cells that have no value; ``gaps`` says which, ``words`` are texts of the
    columns that options name.
    """
    faults = [] if len(gaps) else ["it has no line of values"]
    for name, count in gaps.sum().items():
        if count == len(gaps) > 0:
            faults.append(f"column '{name}' is empty (data.drop=[{name}] leaves it out)")
        elif count and missing == "refuse":
            first = gaps[name].idxmax()
            text = words[name][first] if name in words else ""
            read = f", since '{text}' is read as none and {KEEPS}" if text else ""
            faults.append(
                f"column '{name}' has no value on {gaps.index.name} {first}{_and_more(count)} "
                f"(data.missing may be mean or drop{read})"
            )
    return faults


def _and_more(count: int) -> str:
    return f" and {count - 1} more" if count > 1 else ""


def _inputs(
    frame: Any, numbers: Sequence[str], texts: Sequence[str]
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return x (samples, columns), and remarks on it."""
    import pandas

    ids = [
        name
        for name in frame
        if len(frame) >= FEWEST_IDS and frame[name].is_unique and frame[name].dtype.kind != "f"
    ]
    remarks = [
        f"column '{name}' has another value in each row, as an id has: data.drop=[{name}] leaves "
        "it out"
        for name in ids
    ]
    remarks += [_many(name, frame[name].dropna()) for name in texts if name not in ids]
    remarks = list(filter(None, remarks))
    x = frame[[*numbers]].to_numpy(np.float64)
    if texts:
        remarks.append(f"columns of 0 and 1 stand for the texts of {', '.join(texts)}")
        ones = pandas.get_dummies(frame[[*texts]], dtype=float).to_numpy()
        x = np.concatenate([x, ones], axis=1)
    return np.ascontiguousarray(x), tuple(remarks)


def _many(name: str, cells: Any) -> str:
    """Say that a column of texts has dates, or many of them; empty where it has not."""
    distinct = cells.unique()
    are_dates = bool(len(distinct)) and all(map(DATE.fullmatch, distinct))
    if len(distinct) <= MANY_TEXTS and not are_dates:
        return ""
    return (
        f"column '{name}' has {len(distinct)} different {'dates' if are_dates else 'texts'}, each "
        f"of which becomes a column of 0 and 1: data.drop=[{name}] leaves it out"
    )


def _spelt(texts: list[str], values: np.ndarray) -> np.ndarray:
    """Ids as numbers where these are spelt alike, else as texts: 007 is not 7."""
    return values if list(map(str, values.tolist())) == texts else np.array(texts, object)
