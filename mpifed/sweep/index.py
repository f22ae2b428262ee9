"""Names of the run directories of a sweep, and the file that says which has which values."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from mpifed.config.filenames import safe
from mpifed.reading.yaml_files import as_text
from mpifed.replacing import replacing

SHORT = 64
"""Characters of a name with whole keys and values; longer ones are abbreviated."""

INDEX = "index.csv"


class Indexed(Protocol):
    """A run of a sweep, in the directory ``directory`` with the values ``chosen``."""

    @property
    def directory(self) -> Path: ...
    @property
    def chosen(self) -> Mapping[str, Any]: ...


def directory_names(axes: Mapping[str, Sequence[Any]], output: Path) -> list[str]:
    """Return the names of the run directories, the last list varying fastest.

    Where one would be longer than ``SHORT``, keys are written without their sections, and
    components without their options, as far as they still differ.

    Parameters
    ----------
    axes : mapping
        The values of each key that is swept over.
    output : Path
        The directory of the sweep. Names that are in use there are kept.

    Examples
    --------
    >>> directory_names({"local.lr": [0.1, 1], "seed": [0]}, Path("nowhere"))
    ['local.lr=0.1,seed=0', 'local.lr=1,seed=0']
    """
    if not axes:
        return ["run"]
    whole = _names(axes, {key: key for key in axes}, _brief)
    if max(map(len, whole)) <= SHORT or any((output / safe(name)).exists() for name in whole):
        return [safe(name) for name in whole]
    last = [key.rpartition(".")[2] for key in axes]
    keys = {key: key if last.count(end) > 1 else end for key, end in zip(axes, last, strict=True)}
    return [safe(name) for name in _names(axes, keys, _briefer)]


def write_index(runs: Sequence[Indexed]) -> None:
    """Write ``index.csv`` beside the run directories: a row for each run.

    Its columns are ``directory`` and the keys that are swept over; runs of an earlier command in
    the same directory are not in it.

    Parameters
    ----------
    runs : sequence of Planned
        The runs.
    """
    place = runs[0].directory.parent
    # Private as the run directories in it, unless the user made it before.
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    keys = list(runs[0].chosen)
    rows = ([run.directory.name, *(as_text(run.chosen[key]) for key in keys)] for run in runs)
    with replacing(place / INDEX) as new, new.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([["directory", *keys], *rows])


def _names(axes: Mapping[str, Sequence[Any]], keys: Mapping[str, str], brief: Any) -> list[str]:
    parts = [[f"{keys[key]}={text}" for text in brief(values)] for key, values in axes.items()]
    return [",".join(chosen) for chosen in itertools.product(*parts)]


def _brief(values: Sequence[Any]) -> list[str]:
    """Return values for a file name: a component with options is ``erdos_renyi,p=0.1``."""
    return [_of_component(value) if _is_component(value) else as_text(value) for value in values]


def _briefer(values: Sequence[Any]) -> list[str]:
    """Return values without options, where the names alone differ."""
    names = [value["name"] if _is_component(value) else as_text(value) for value in values]
    whole = _brief(values)
    return [a if names.count(a) == 1 else b for a, b in zip(names, whole, strict=True)]


def _is_component(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), str)


def _of_component(value: Mapping[str, Any]) -> str:
    options = (f"{key}={as_text(option)}" for key, option in value.items() if key != "name")
    return ",".join([value["name"], *options])
