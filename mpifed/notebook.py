"""A run's results as a notebook shows them: last scores with a curve, plots, the report."""

from __future__ import annotations

import contextlib
import html
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mpifed.errors import InputError, closest
from mpifed.report.runs import measures_in
from mpifed.results import results
from mpifed.results.configurations import read_stored
from mpifed.results.results import DIGEST
from mpifed.training.callbacks import SHOWN

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# A result, or a run directory.
Run = str | os.PathLike[str]

# Columns of which the first that has values is drawn.
DRAWN = ("test_accuracy", "objective", "l2_uvp", "train_loss")

# The size of the curve, and the space around its line, in pixels.
WIDTH, HEIGHT, SPACE = 300, 72, 4


class Result(results.Result):
    """A run. Its files are read on first access.

    Attributes
    ----------
    directory : Path
        The run directory.
    status : str
        'finished', 'stopped_at', 'stopped', 'diverged', 'unfinished' or 'dry run'.
    """

    def plot(self, *columns: str | Sequence[str], ax: Axes | None = None) -> Axes:
        """Draw columns of ``metrics`` over the rounds.

        Parameters
        ----------
        *columns : str or sequence of str
            Columns; by default the test accuracy, or what the method has in its place.
        ax : matplotlib.axes.Axes, optional
            Where it is drawn; a new figure by default.

        Returns
        -------
        matplotlib.axes.Axes
            ``ax.figure.savefig("curve.png")`` stores it.

        Raises
        ------
        InputError
            If the run has no such column.
        """
        return plot({"": self}, *columns, ax=ax)

    def report(self, output: str | os.PathLike[str] | None = None) -> Path:
        """Write the tables, pictures and the page of ``mpifed report`` for this run.

        Parameters
        ----------
        output : str or Path, optional
            The directory; ``report`` in the run directory by default.

        Returns
        -------
        Path
            The page, ``report.html``, which a browser opens.
        """
        from mpifed.report.__main__ import report  # which imports matplotlib

        folder = self.directory / "report" if output is None else Path(output)
        with contextlib.redirect_stdout(io.StringIO()):
            report([str(self.directory), "--output", str(folder)])
        return folder / "report.html"

    @property
    def _drawn(self) -> str | None:
        """The column of the curve; None before the first evaluation."""
        having = (name for name in DRAWN if np.isfinite(self.metrics.get(name, np.nan)).any())
        return next(having, None)

    @property
    def _scores(self) -> dict[str, str]:
        """What is shown of the last round: columns with their labels, those of ``SHOWN`` first."""
        chosen = measures_in(read_stored(self.directory / "config.yaml"))
        return {**SHOWN, **{column: column.replace("_", " ") for column in chosen}}

    def _repr_html_(self) -> str:
        """Return the last scores and a curve, for a notebook."""
        head = f"<b>{html.escape(self.status)}</b> <code>{html.escape(str(self.directory))}</code>"
        if not (self.directory / "metrics.csv").exists() or not len(self.metrics["round"]):
            return f"<div>{head}</div>"
        last = {"round": f"{self.metrics['round'][-1]:.0f}"}
        for column, label in self._scores.items():
            value = self.metrics.get(column, np.array([np.nan]))[-1]
            if np.isfinite(value):
                last[label] = f"{value:.4f}"
        names = "".join(f"<th>{html.escape(name)}</th>" for name in last)
        values = "".join(f"<td>{value}</td>" for value in last.values())
        table = f"<table><tr>{names}</tr><tr>{values}</tr></table>"
        return f"<div>{head}{table}{self._curve()}</div>"

    def _curve(self) -> str:
        """Return a small picture of one column, as SVG."""
        column = self._drawn
        if column is None:
            return ""
        rounds, values = self.metrics["round"], self.metrics[column]
        rounds, values = rounds[np.isfinite(values)], values[np.isfinite(values)]
        low, high = float(values.min()), float(values.max())
        x = SPACE + (WIDTH - 2 * SPACE) * (rounds - rounds[0]) / max(1.0, rounds[-1] - rounds[0])
        share = (values - low) / ((high - low) or 1.0)
        y = HEIGHT - SPACE - (HEIGHT - 2 * SPACE) * share
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
        label = f"{column.replace('_', ' ')}, {low:.4g} to {high:.4g}"
        span = f"rounds {rounds[0]:.0f} to {rounds[-1]:.0f}"
        return (
            f'<figure style="margin:0"><svg role="img" aria-label="{label}" width="{WIDTH}" '
            f'height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"><polyline fill="none" '
            f'stroke="currentColor" stroke-width="1.5" points="{points}"/></svg>'
            f"<figcaption>{label}, {span}</figcaption></figure>"
        )


def read(run: str | os.PathLike[str]) -> Result:
    """Return the results of a run from its directory, also while it goes on.

    Parameters
    ----------
    run : str, Path or Result
        The run directory.

    Returns
    -------
    Result
        The run directory and its content.

    Raises
    ------
    InputError
        If the directory holds no run.
    """
    recorded = results.read(run)
    return Result(recorded.directory, recorded.status)


def plot(
    runs: Run | Sequence[Run] | Mapping[str, Run],
    *columns: str | Sequence[str],
    ax: Axes | None = None,
) -> Axes:
    """Draw columns of runs over the rounds, all in one picture.

    Parameters
    ----------
    runs : str, Path or Result, or several
        Results or run directories: one, a list, or a mapping of their labels to them.
    *columns : str or sequence of str
        Columns of metrics.csv; by default the test accuracy, or what the methods have in its place.
    ax : matplotlib.axes.Axes, optional
        Where they are drawn; a new figure by default.

    Returns
    -------
    matplotlib.axes.Axes
        ``ax.figure.savefig("curves.png")`` stores it.

    Raises
    ------
    InputError
        If a directory holds no run, or a run has no such column.
    """
    several = [runs] if isinstance(runs, (str, os.PathLike)) else runs
    if not isinstance(several, Mapping):
        several = {Path(os.fspath(run)).name: run for run in several}
    results = {label: read(run) for label, run in several.items()}
    named = [name for each in columns for name in ([each] if isinstance(each, str) else each)]
    for name in named:
        for result in results.values():
            if name not in result.metrics or name == DIGEST:
                raise InputError(
                    f"column is {name!r}, which the run does not have; "
                    f"{closest(name, {*result.metrics} - {DIGEST})}"
                )
    if ax is None:
        import matplotlib.pyplot as plt  # which takes long

        _, ax = plt.subplots()
    drawn = named or [next((each._drawn for each in results.values() if each._drawn), DRAWN[0])]
    for label, result in results.items():
        for name in drawn:
            parts = [label, name.replace("_", " ") if len(drawn) > 1 or not label else ""]
            metrics = result.metrics
            ax.plot(metrics["round"], metrics[name], label=", ".join(filter(None, parts)))
    ax.set_xlabel("round")
    if len(drawn) == 1:
        ax.set_ylabel(drawn[0].replace("_", " "))
    if len(drawn) > 1 or len(results) > 1:
        ax.legend()
    return ax
