"""The benchmarks by name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge

from mpifed.transport.benchmark import Benchmark
from mpifed.transport.gaussian_benchmarks import plane_gaussians, random_gaussians
from mpifed.transport.icnn_benchmarks import PUBLISHED, mix3_to_mix10, random_icnn_benchmark
from mpifed.transport.potentials import FOLDER

Name = Literal["auto", "gaussian", "random_icnn", "mix3tomix10"]


def find_benchmark(
    seed: int,
    *,
    benchmark: Name = "auto",
    dimension: Annotated[int, Ge(1)] = 16,
    raw: str | None = None,
) -> Benchmark:
    """Return a transport problem by name.

    ``auto`` is mix3tomix10 where ``raw`` or MPIFED_DATA names its potentials and the dimension was
    published, otherwise random_icnn. ``gaussian`` in two dimensions is a fixed pair with a closed
    form, in other dimensions a random one.

    Parameters
    ----------
    seed : int
        The seed of all draws.
    benchmark : Name, default 'auto'
        The name.
    dimension : int, default 16
        The number of coordinates.
    raw : str, optional
        The directory or archive with the potentials of mix3tomix10.

    Returns
    -------
    Benchmark
        The benchmark; its ``name`` says which ``auto`` took.

    Raises
    ------
    InputError
        If mix3tomix10 cannot be read or has no such dimension.
    """
    if benchmark == "gaussian":
        return plane_gaussians() if dimension == 2 else random_gaussians(dimension, seed)
    if benchmark == "auto":
        benchmark = automatic(dimension, raw)
    if benchmark == "random_icnn":
        return random_icnn_benchmark(dimension, seed)
    return mix3_to_mix10(dimension, seed, raw)


def automatic(dimension: int, raw: str | None) -> Name:
    """Return the benchmark that ``auto`` means in this environment; see ``find_benchmark``.

    Parameters
    ----------
    dimension : int
        The number of coordinates.
    raw : str | None
        The directory or archive with the potentials, if it is given.

    Returns
    -------
    str
        "mix3tomix10" or "random_icnn".
    """
    home = os.environ.get("MPIFED_DATA")
    there = raw is not None or (home is not None and (Path(home) / FOLDER).is_dir())
    return "mix3tomix10" if there and dimension in PUBLISHED else "random_icnn"
