"""Samples of a Python program as the section ``data``: tables, and whatever a run is passed."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from mpifed.data.archives import FileOfClient
from mpifed.data.cells import Missing, columns_of_frames
from mpifed.data.central import PASSED, Passed
from mpifed.data.containers import (
    TARGETS,
    are_two_arrays,
    array_of,
    check_lengths,
    is_by_client,
    is_dataset,
    is_pair,
    is_split,
    is_table,
)
from mpifed.data.from_python import ArraysSection, arrays, check_keywords, digest_of, hold
from mpifed.data.tables import Columns
from mpifed.errors import InputError
from topologies.parameters import options_of

WHERE = "the table of mpifed.frame(...)"

# Options of files that are keywords here: they say what columns are.
MEANINGS = (
    *("label", "client", "test", "features", "drop", "categories"),
    *("missing", "missing_values"),
)
KEYWORDS = re.compile(rf"\bdata\.(?=({'|'.join(MEANINGS)})\b)")

# Arguments of ``mpifed.arrays`` that a mapping may hold by name.
ARGUMENTS = {"x", "y", "clients", "is_test", "test"}


def frame(
    table: Any,
    label: str | None = "label",
    client: str | None = None,
    *,
    test: Any = None,
    features: str | list[str] | None = None,
    drop: str | list[str] | None = None,
    categories: str | list[str] | None = None,
    missing: Missing = "refuse",
    missing_values: str | list[str] | None = None,
    standardise: bool = True,
    **options: Any,
) -> ArraysSection:
    """Return a table as the section ``data`` of a run, read as a CSV file is.

    Parameters
    ----------
    table : pandas.DataFrame, mapping or list
        Samples, one a row, also what has ``to_pandas``, as tables of polars and data sets of
        Hugging Face; or a mapping of names, or a list, of the tables of clients; or a mapping with
        ``train`` and ``test``. Columns of texts and categories become a column of 0 and 1 for each
        text, behind the numbers.
    label : str, optional
        Name of the column of targets: numbers or texts. None is for unlabelled data.
    client : str, optional
        Name of the column that says whose each sample is. Without it samples are dealt.
    test : str or pandas.DataFrame, optional
        Name of a column that is true or 1 for the samples that clients test on; or these samples.
    features : str or list of str, optional
        Names of the columns of inputs. None takes all others.
    drop : str or list of str, optional
        Names of columns that are no inputs, such as ids.
    categories : str or list of str, optional
        Names of columns of inputs whose numbers are read as texts, such as codes.
    missing : {'refuse', 'drop', 'mean'}
        What becomes of cells without a value (NaN, None, NaT, an empty text), as in ``csv``.
    missing_values : str or list of str, optional
        Texts that are no value either. None is no other.
    standardise : bool
        Whether numbers get mean 0 and standard deviation 1 over all training samples.
    **options
        Further options of the data set ``arrays``, as ``partition`` or ``task``.

    Returns
    -------
    dict
        For ``mpifed.run(..., data=...)``. The samples live as long as this does.

    Raises
    ------
    InputError
        With all that is wrong with the table.

    Examples
    --------
    >>> import pandas
    >>> table = pandas.DataFrame({"age": [30, 40], "sex": ["f", "m"], "ill": ["no", "yes"]})
    >>> frame(table, label="ill").columns.x
    array([[30.,  1.,  0.],
           [40.,  0.,  1.]])
    """
    reading: dict[str, Any] = {
        **{"label": label, "client": client, "test": test if isinstance(test, str) else None},
        **{"features": features, "drop": drop, "categories": categories, "missing": missing},
        "missing_values": missing_values,
    }
    for name in ("features", "drop", "categories", "missing_values"):
        if isinstance(reading[name], str):
            reading[name] = [reading[name]]
    arguments = ("label", "client", *options_of(frame))
    check_keywords(options, arguments, "data is mpifed.frame(...), where")
    for name, value in (("label", label), ("client", client)):
        if value is not None and not isinstance(value, str):
            raise InputError(
                f"data is mpifed.frame(...), where {name} is a {type(value).__name__}; it must be "
                "the name of a column"
            )
    tables = _tables(table)
    if test is not None and not isinstance(test, str):
        tables += _tables(test, is_test=True)
    if not tables:
        raise InputError(f"{WHERE} is empty")
    try:
        frames, files = zip(*tables, strict=True)
        columns = columns_of_frames(WHERE, files, frames, reading)
    except InputError as error:
        raise InputError(KEYWORDS.sub("", str(error))) from None
    remarks = tuple(KEYWORDS.sub("", remark) for remark in columns.remarks)
    columns = replace(columns, remarks=remarks)
    section = hold(columns, {"standardise": standardise, **options}, arguments)
    section.tables = frames
    return section


def _tables(table: Any, client: str = "", is_test: bool = False) -> list[tuple[Any, FileOfClient]]:
    """The tables of pandas, and whose they are, as if each was a file."""
    if is_split(table):
        return [
            each for name, part in table.items() for each in _tables(part, client, name == "test")
        ]
    if isinstance(table, (Mapping, list, tuple)) and not client:
        items = table.items() if isinstance(table, Mapping) else enumerate(table)
        return [each for name, part in items for each in _tables(part, str(name), is_test)]
    converted = table.to_pandas() if hasattr(table, "to_pandas") else table
    if not is_table(converted):
        raise InputError(
            f"{WHERE} is a {type(table).__name__}; allowed: a pandas.DataFrame, or a mapping or a "
            "list of those of clients"
        )
    path = Path("test" if is_test else "train", client.replace("/", " "))
    return [(converted, FileOfClient(path, client, is_test))]


def with_samples(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run is passed, with its samples as what a configuration holds of them.

    Parameters
    ----------
    overrides : mapping
        Keys of the configuration, of which ``data`` may be samples, see ``section_of``, and
        ``evaluation.central`` others. Where ``data`` is a table, those that say what its columns
        are, as ``data.label``, are keywords of ``mpifed.frame``.

    Returns
    -------
    dict
        Keys of the configuration.

    Raises
    ------
    InputError
        Where samples do not say what they are.
    """
    changed = dict(overrides)
    named = {key: name for name in MEANINGS for key in (name, f"data.{name}") if key in changed}
    keywords = {name: changed[key] for key, name in named.items()}
    section = section_of(changed.get("data"), keywords)
    if isinstance(section, ArraysSection):
        changed = {key: value for key, value in changed.items() if key not in named}
    if "data" in changed:
        changed["data"] = section
    if isinstance(changed.get("evaluation"), Mapping):
        central = {f"evaluation.{key}": value for key, value in changed["evaluation"].items()}
        if not isinstance(central.get("evaluation.central"), str | None):
            del changed["evaluation"]
            changed = {**central, **changed}
    for key in ("central", "evaluation.central"):
        if not isinstance(changed.get(key), str | os.PathLike | None):
            changed[key] = passed(changed[key])
    return changed


def passed(samples: Any) -> Passed:
    """Return samples of a program that a run is passed as ``evaluation.central``.

    Parameters
    ----------
    samples : object
        What ``data`` may be; clients are ignored.
    """
    label, targets = None, None
    if isinstance(samples, tuple) and len(samples) == 2 and not is_by_client(samples):
        samples, targets = samples[0], array_of(samples[1], "y of evaluation.central")
    elif not is_table(samples):
        section = section_of(samples)
        if not isinstance(section, ArraysSection):
            raise InputError(
                f"evaluation.central is a {type(samples).__name__}; allowed: a file, holdout, a "
                "pandas.DataFrame, mpifed.frame(...), a pair of arrays (x, y) or a data set"
            )
        columns = section.columns
        samples, targets = columns.x, columns.y
        if section.tables:
            import pandas

            samples, targets, label = pandas.concat(section.tables), None, columns.label
    content, x = "", np.zeros(0)
    if is_table(samples):
        content = samples.to_csv(index=False)
    else:
        mixes = isinstance(samples, np.ndarray) and samples.dtype.kind == "O"
        samples = x = samples if mixes else array_of(samples, "x of evaluation.central")
    content = f"{label};{content};{digest_of(Columns(x, targets))}"
    name = f"{PASSED}{hashlib.sha256(content.encode()).hexdigest()}"
    return Passed(name, samples, targets, label)


def section_of(data: Any, keywords: Mapping[str, Any] | None = None) -> Any:
    """Return what a run is passed as ``data``, samples as the section that holds them.

    Parameters
    ----------
    data : object
        A section, or samples: a table, a data set, a pair of arrays, or a mapping or a list of
        those of clients.
    keywords : mapping, optional
        What columns of samples mean, as ``label``.

    Returns
    -------
    object
        A section.

    Raises
    ------
    InputError
        Where it holds arrays or loaders that do not say what they are.
    """
    keywords = keywords or {}
    if isinstance(data, ArraysSection) and keywords:
        name = next(iter(keywords))
        raise InputError(
            f"data.{name} is given beside samples that say so themselves; allowed: "
            f"mpifed.frame(table, {name}=...), or the table as data"
        )
    if isinstance(data, ArraysSection) or data is None:
        return data
    parts = list(data.values()) if isinstance(data, Mapping) else data
    if is_table(data) or _are_tables(parts):
        named = keywords if "label" in keywords else {"label": _label(data), **keywords}
        return frame(data, **named)
    if is_dataset(data) and _is_tabular(data):
        return section_of(data.to_pandas(), keywords)
    if isinstance(data, Mapping) and "x" in data and set(data) <= ARGUMENTS:
        return arrays(**data, **keywords)
    if is_pair(data):
        return arrays(*data, **keywords)
    if is_dataset(data) or is_by_client(data) or is_split(data):
        return arrays(data, **keywords)
    if isinstance(data, tuple) and are_two_arrays(data):
        check_lengths(data, "data")
    parts = parts if isinstance(parts, (list, tuple)) else [parts]
    parts = [each for part in parts for each in (part if isinstance(part, tuple) else [part])]
    if any(isinstance(each, (Dataset, DataLoader)) or getattr(each, "ndim", 0) for each in parts):
        raise InputError("samples from Python are passed as data=mpifed.arrays(x, y)")
    return data


def _are_tables(parts: Any) -> bool:
    return isinstance(parts, (list, tuple)) and bool(parts) and all(map(is_table, parts))


def _is_tabular(dataset: Any) -> bool:
    """Whether samples of a data set of Hugging Face are numbers and texts alone."""
    if not hasattr(dataset, "to_pandas") or not len(dataset):
        return False
    return all(np.ndim(value) == 0 for value in dataset[0].values())


def _label(table: Any) -> str:
    """The column of targets by its usual name."""
    while not is_table(table):
        table = next(iter(table.values() if isinstance(table, Mapping) else table))
    label = next((name for name in TARGETS if name in table.columns), None)
    if label is None:
        raise InputError(
            f"data is a table without a column {', '.join(TARGETS)}: data.label=NAME, or "
            "mpifed.frame(table, label=NAME), says which are its targets"
        )
    return label
