"""A user's own arrays in one `.npz` file: inputs, targets and clients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mpifed.data.archives import located, reading
from mpifed.data.tables import Columns, OwnDataset, check_columns
from topologies.inputs import check_archive


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
                found = {name: np.asarray(file[name]) for name in wanted.values() if name}
            y, clients, is_test = (found.get(name or "") for name in (label, client, test))
            columns = Columns(found[features], y, clients, is_test)
            return f"data.path is '{place}', where", place.stem, columns

        super().__init__(find, *run, **options)


@contextlib.contextmanager
def opened_npz(path: Path) -> Iterator[Mapping[str, Any]]:
    """Open an `.npz` file, of which pickled objects are refused."""
    with reading(path):
        check_archive(path)
        with np.load(path, allow_pickle=False) as file:
            yield file
