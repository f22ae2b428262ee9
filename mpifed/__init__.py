"""mpifed: federated learning simulated over MPI, the same numbers on any number of ranks."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:  # ``typing`` would cost every guard 5 ms
    from typing import Any

# Read by MKL at its first call, so it must be set before torch computes anything. Without it, MKL's
# matrix products depend on where in memory an operand starts, hence on which clients share a rank.
# STRICT also fixes the order for unaligned operands.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

# Read by torch before its first allocation: samples are gathered from all over a shard, and with
# pages of 2 MiB that costs a fifth less of a round (docs/evidence/benchmarks.md).
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

__version__ = "1.0.0rc1"

__all__ = ["__version__", "arrays", "frame", "load", "read", "run"]


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold SIGINT back until the end of the block: half an import of torch cannot be repeated."""
    import threading  # here, since every guard would import it

    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or handler is None:
        yield  # another thread is not interrupted, and a handler of C cannot be put back
        return
    held: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: held.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if held:
            signal.raise_signal(signal.SIGINT)


def run(experiment: str | None = None, **overrides: Any) -> Any:
    """Run an experiment from Python; see ``mpifed.api.run``.

    Parameters
    ----------
    experiment : str, optional
        A shipped experiment or the path of a YAML file.
    **overrides
        Keys of the configuration, and the keyword arguments of ``mpifed.api.run``.

    Returns
    -------
    mpifed.api.Result
        The run directory and its content.
    """
    with _interrupts_held():
        from mpifed.api import run as run_experiment

    return run_experiment(experiment, **overrides)


def load(run: str, round: int | None = None) -> Any:
    """Load what a run has trained; see ``mpifed.api.load``.

    Parameters
    ----------
    run : str or Path
        The run directory.
    round : int, optional
        The round whose checkpoint is loaded; the newest intact one by default.

    Returns
    -------
    mpifed.api.Trained
        The shared models, and every client's predictor, as torch modules.
    """
    with _interrupts_held():
        from mpifed.api import load as load_run

    return load_run(run, round)


def read(run: str) -> Any:
    """Return the results of a run from its directory; see ``mpifed.api.read``.

    Parameters
    ----------
    run : str or Path
        The run directory.

    Returns
    -------
    mpifed.api.Result
        The run directory and its content.
    """
    with _interrupts_held():
        from mpifed.api import read as read_run

    return read_run(run)


def arrays(x: Any, y: Any = None, **options: Any) -> dict[str, Any]:
    """Return samples as the ``data`` of a run; see ``mpifed.data.from_python``.

    Parameters
    ----------
    x : array_like, torch.utils.data.Dataset, datasets.Dataset, mapping or list
        Inputs, numbers (samples, ...); or a data set; or a mapping of names, or a list, of the data
        sets or pairs of arrays of clients.
    y : array_like, optional
        Targets.
    **options
        ``clients``, ``is_test``, ``test``, ``features``, ``label``, ``client``, and the options of
        the data set ``arrays``.

    Returns
    -------
    dict
        For ``mpifed.run(..., data=...)``.
    """
    with _interrupts_held():
        from mpifed.data.from_python import arrays as hold

    return hold(x, y, **options)


def frame(
    table: Any, label: str | None = "label", client: str | None = None, **options: Any
) -> Any:
    """Return a table of pandas as the ``data`` of a run; see ``mpifed.data.frames``.

    Parameters
    ----------
    table : pandas.DataFrame, mapping or list
        Samples, one a row; or a mapping of names, or a list, of the tables of clients.
    label : str, optional
        Name of the column of targets. None is for unlabelled data.
    client : str, optional
        Name of the column that says whose each sample is.
    **options
        ``test``, ``features``, ``drop``, ``categories``, ``missing``, ``missing_values`` and
        ``standardise`` as of the data set ``csv``, and the options of the data set ``arrays``.

    Returns
    -------
    dict
        For ``mpifed.run(..., data=...)``.
    """
    with _interrupts_held():
        from mpifed.data.frames import frame as hold

    return hold(table, label, client, **options)
