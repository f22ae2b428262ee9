"""What a run of FLIX takes from an earlier one: its x, or its clients' optima."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mpifed import state
from mpifed.checkpoint import files as checkpoint
from mpifed.checkpoint.integrity import Damaged
from mpifed.components.registry import plain
from mpifed.components.schema import shown
from mpifed.errors import InputError
from mpifed.reading.configurations import read_stored

PROBLEM = ("clients", "seed", "dtype", "data", "model")
"""Parts of a configuration that change a client's optimum."""

OPTIMUM = (
    "l2",
    "regulariser",
    "local_solver",
    "local_start",
    "local_tolerance",
    "local_iterations",
)
"""Options of the algorithm that change it."""


@dataclass(frozen=True)
class StoredModel:
    """The x of a run under a server, (1, P)."""

    model: Tensor = state.server()


@dataclass(frozen=True)
class StoredOptima:
    """x_i (clients, P) and ||grad f_i(x_i)|| (clients,)."""

    optima: Tensor = state.client()
    gradient_norm: Tensor = state.client()


def refuse_other_problem(configuration: Any) -> str | None:
    """Why the optima of the run ``algorithm.optima_from`` are not those of this run.

    Returns
    -------
    str or None
        None where they are, and where there is no such run: a resumed run does not need it.
    """
    own = configuration.algorithm.options
    place = own["optima_from"]
    path = Path(place) / "config.yaml"
    if not path.is_file():
        return None
    other = read_stored(path)
    pairs = [(key, other.get(key), plain(getattr(configuration, key))) for key in PROBLEM]
    options = other["algorithm"]
    held_out = other["evaluation"].get("validation_fraction", 0.0)
    here = configuration.evaluation.validation_fraction
    pairs.append(("evaluation.validation_fraction", held_out, here))
    pairs += [(f"algorithm.{k}", options.get(k), own[k]) for k in OPTIMUM]
    differing = [f"{key} is {shown(a)} there, {shown(b)} here" for key, a, b in pairs if a != b]
    if not differing:
        return None
    return f"algorithm.optima_from is '{place}', a run of another problem: {differing[0]}"


def stored_model(place: str, like: Tensor) -> Tensor:
    """The x of the newest intact checkpoint of a run.

    Parameters
    ----------
    place : str
        The run's directory.
    like : Tensor
        Shape and dtype of what is wanted, (1, P).

    Raises
    ------
    InputError
        Where the directory holds no such x.
    """
    return _read(place, "start_from", StoredModel(torch.zeros_like(like)), np.arange(0)).model


def stored_optima(place: str, like: Tensor, ids: np.ndarray) -> tuple[Tensor, Tensor]:
    """The clients' optima in the newest intact checkpoint of a run.

    Parameters
    ----------
    place : str
        The run's directory.
    like : Tensor
        Shape and dtype of what is wanted, (clients, P).
    ids : ndarray
        Client numbers, int64 (clients,).

    Returns
    -------
    tuple of Tensor
        x_i, (clients, P), and ||grad f_i(x_i)||, float64 (clients,).

    Raises
    ------
    InputError
        Where the directory holds no such optima.
    """
    wanted = StoredOptima(like, torch.zeros(len(ids), dtype=torch.float64))
    found = _read(place, "optima_from", wanted, ids)
    return found.optima, found.gradient_norm


def _read(place: str, option: str, wanted: Any, hosted: np.ndarray) -> Any:
    """``wanted`` from the newest intact checkpoint of ``place``, rows of the clients ``hosted``."""
    newest, _ = checkpoint.newest(Path(place))
    if newest is None:
        raise InputError(
            f"algorithm.{option} is '{place}', which holds no intact checkpoint; it must be the "
            "directory of a run"
        )
    path, meta = newest
    if option == "start_from" and meta.configuration["exchange"]["name"] == "gossip":
        raise InputError(
            f"algorithm.start_from is '{place}', a run under gossip, each of whose clients has an "
            "x of its own; it must be a run under a server"
        )
    try:
        return checkpoint.read_state(path, wanted, False, hosted)
    except Damaged as error:
        raise InputError(f"algorithm.{option} is '{place}', but {error}") from None
