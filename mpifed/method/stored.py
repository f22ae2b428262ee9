"""What a method may take from another run's directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mpifed.checkpoint import files
from mpifed.checkpoint.integrity import Damaged
from mpifed.errors import InputError
from mpifed.results.configurations import read_stored


def stored_configuration(directory: str) -> dict[str, Any] | None:
    """Return the ``config.yaml`` of a run as plain mappings; None where it has none."""
    path = Path(directory) / "config.yaml"
    return read_stored(path) if path.is_file() else None


def stored_state(
    directory: str, option: str, template: Any, hosted: np.ndarray, gossip: bool = True
) -> Any:
    """Return ``template`` with the values of the newest intact checkpoint of a run.

    Parameters
    ----------
    directory : str
        The run's directory.
    option : str
        The option that names it, for messages.
    template : Any
        A state whose fields are read by their names and have these types.
    hosted : numpy.ndarray
        Which clients' rows are read, int64.
    gossip : bool
        Whether the run may be one under gossip, each of whose clients has values of its own.

    Raises
    ------
    InputError
        Where there is no intact checkpoint, or it has other values.
    """
    newest, _ = files.newest(Path(directory))
    if newest is None:
        raise InputError(
            f"{option} is '{directory}', which holds no intact checkpoint; it must be the "
            "directory of a run"
        )
    path, meta = newest
    if not gossip and meta.configuration["exchange"]["name"] == "gossip":
        raise InputError(
            f"{option} is '{directory}', a run under gossip, each of whose clients has an "
            "x of its own; it must be a run under a server"
        )
    try:
        return files.read_state(path, template, False, hosted)
    except Damaged as error:
        raise InputError(f"{option} is '{directory}', but {error}") from None
