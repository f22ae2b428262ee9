"""A user's own arrays in one `.npz` file: inputs, targets and clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mpifed.data.archives import located
from mpifed.data.tables import Columns, OwnDataset
from mpifed.errors import InputError, closest, one_line
from mpifed.mpi.communicator import Communicator
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
        n_clients: int,
        run_seed: int,
        communicator: Communicator,
        *,
        path: str,
        features: str = "x",
        label: str | None = "y",
        client: str | None = None,
        test: str | None = None,
        **options: Any,
    ) -> None:
        names = {"features": features, "label": label, "client": client, "test": test}

        def find() -> tuple[str, str, Columns]:
            place = located(path, "npz")
            found = read(place, names)
            columns = Columns(
                found["features"], found.get("label"), found.get("client"), found.get("test")
            )
            return f"data.path is '{place}', where", place.stem, columns

        super().__init__(n_clients, run_seed, communicator, find, **options)


def read(path: Path, names: dict[str, str | None]) -> dict[str, np.ndarray]:
    """Return the arrays of a file that options name, by option."""
    try:
        check_archive(path)
        with np.load(path, allow_pickle=False) as file:
            for option, name in names.items():
                if name is not None and name not in file.files:
                    raise InputError(
                        f"data.{option} is '{name}', but '{path}' has no such array; "
                        f"{closest(name, file.files)}"
                    )
            return {option: file[name] for option, name in names.items() if name is not None}
    except InputError:
        raise
    except Exception as error:  # zipfile, its decompressors, tokenize and numpy each have their own
        reason = one_line(getattr(error, "strerror", None) or str(error), 120)
        raise InputError(
            f"data.path is '{path}', which cannot be read as an .npz file ({reason})"
        ) from error
