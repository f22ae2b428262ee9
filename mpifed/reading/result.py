"""The results of one run, as a program reads them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mpifed.errors import InputError, in_words
from mpifed.reading.results import DIGEST, Clients, read_clients, read_metrics, read_summary


@dataclass(frozen=True)
class Result:
    """A run. Its files are read on first access.

    Attributes
    ----------
    directory : Path
        The run directory.
    status : {'finished', 'stopped', 'diverged', 'unfinished', 'dry run'}
        How the run ended; 'unfinished' where it goes on, or has ended without a summary.
    """

    directory: Path
    status: str

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json."""
        return read_summary(self.directory / "summary.json")

    @cached_property
    def metrics(self) -> dict[str, np.ndarray]:
        """The columns of metrics.csv: float64, NaN where empty; ``state_digest`` as text."""
        path = self.directory / "metrics.csv"
        found = read_metrics(path, growing=self.status == "unfinished")
        return {
            name: np.array(found.texts(name)) if name == DIGEST else found.numbers(name)
            for name in found.columns
        }

    @cached_property
    def clients(self) -> dict[str, np.ndarray]:
        """The datasets of clients.h5 by name, each (clients, ...)."""
        return self._clients_file.results

    @cached_property
    def learnt(self) -> dict[str, np.ndarray]:
        """Results that belong to no client, by name: a dictionary, means, potentials.

        The group ``learnt`` of clients.h5; empty for methods whose models are in the checkpoint.
        """
        return self._clients_file.learnt

    def frame(self) -> Any:
        """Return ``metrics`` as a pandas DataFrame with a row for each recorded round.

        Returns
        -------
        pandas.DataFrame
            Its index is ``round``.

        Raises
        ------
        InputError
            If pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise InputError(
                f"frame() needs pandas, which cannot be imported: {in_words(error)}; install it "
                "with python -m pip install 'mpifed[pandas]', or use metrics, its columns as arrays"
            ) from None
        columns = {**self.metrics, "round": self.metrics["round"].astype(np.int64)}
        return pandas.DataFrame(columns).set_index("round")

    @cached_property
    def _clients_file(self) -> Clients:
        return read_clients(self.directory / "clients.h5")


def read(run: str | Path) -> Result:
    """Return the results of a run from its directory, also while it goes on.

    Parameters
    ----------
    run : str or Path
        The run directory.

    Raises
    ------
    InputError
        If the directory holds no run.

    Examples
    --------
    >>> import tempfile
    >>> import mpifed
    >>> options = {"clients": 3, "rounds": 2, "data.n_test": 20, "data.dimension": 10}
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     _ = mpifed.run("synthetic-fedem", output=f"{directory}/run", **options)
    ...     result = mpifed.read(f"{directory}/run")
    ...     print(result.status, result.metrics["round"])
    finished [0. 2.]
    """
    directory = Path(os.fspath(run))
    if not (directory / "config.yaml").is_file():
        raise InputError(f"run is '{directory}', which holds no run: there is no config.yaml in it")
    summary = directory / "summary.json"
    return Result(directory, read_summary(summary)["status"] if summary.exists() else "unfinished")
