"""Plots of runs: accuracy and loss against rounds, bits and simulated seconds, a file each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mpifed.config.filenames import safe
from mpifed.report.columns import MEASURES, Measure
from mpifed.report.consensus import DISTANCE, numbers
from mpifed.report.groups import Curve, Group
from mpifed.report.lines import GREY, STYLE, Line, Look, draw_lines, look, new_axes
from mpifed.report.measures import measured
from mpifed.report.paired import minus, partner
from mpifed.report.tables import ACCURACY
from mpifed.report.units import bit_prefix

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# file name: (column of metrics.csv, title, factor)
CURVES = {
    "test-accuracy": ("test_accuracy", "Test accuracy, average over clients (%)", 100.0),
    "bottom-decile": ("test_accuracy_p10", "Test accuracy, bottom decile of clients (%)", 100.0),
    "train-loss": ("train_loss", "Training loss, average over clients", 1.0),
}
CLOCK = "simulated_seconds"
WIDE = 10.0  # from this ratio of most to fewest bits on, their axis is logarithmic


def draw(groups: Sequence[Group], output: Path, against: str | None = None) -> list[Path]:
    """Draw every figure for which the runs have numbers.

    Parameters
    ----------
    groups : Sequence[Group]
        The groups of runs.
    output : Path
        The directory of the files.
    against : str, optional
        A method from which the others' accuracies are subtracted, seed by seed.

    Returns
    -------
    list of Path
        The files.
    """
    import matplotlib

    matplotlib.use("Agg")
    datas = list(dict.fromkeys(group.data for group in groups))
    methods = list(dict.fromkeys(group.method for group in groups))
    looks = {method: look(index) for index, method in enumerate(methods)}
    files = []
    with matplotlib.rc_context(STYLE):
        for data in datas:
            chosen = [group for group in groups if group.data == data]
            prefix = f"{safe(data.replace(' ', ''))}-" if len(datas) > 1 else ""
            figures = _figures(chosen, looks, data)
            other = None if against is None else partner(groups, data, against)
            if other is not None:
                figures |= _differences(chosen, other, looks, data)
            for name, figure in figures.items():
                files.append(output / f"{prefix}{name}.png")
                figure.savefig(files[-1])
    return files


def _figures(groups: Sequence[Group], looks: dict[str, Look], data: str) -> dict[str, Figure]:
    figures = {}
    for name, (column, title, factor) in CURVES.items():
        curves = [(group, group.curve(column, factor)) for group in groups]
        drawn = [(group, curve) for group, curve in curves if np.isfinite(curve.mean).any()]
        counted = [(group, curve) for group, curve in drawn if np.isfinite(curve.bits).all()]
        if drawn:
            figures[f"{name}-rounds"] = _against_rounds(drawn, looks, title, data)
        if any(curve.bits[-1] > 0 for _, curve in counted):
            figures[f"{name}-bits"] = _against_bits(counted, looks, title, data)
        clocks = [(*one, one[0].curve(CLOCK).mean) for one in drawn]
        clocks = [one for one in clocks if np.isfinite(one[2]).all()]
        if clocks:
            figures[f"{name}-simulated-seconds"] = _against_seconds(clocks, looks, title, data)
    scored = [
        (group, accuracies)
        for group in groups
        if (accuracies := group.client_accuracies()) is not None
    ]
    if scored:
        figures["clients"] = _over_clients(scored, looks, data)
    apart = [(g, curve) for g in groups if ((curve := g.curve(DISTANCE)).mean > 0).any()]
    for column in measured(groups):
        curves = [(group, group.curve(column)) for group in groups]
        drawn = [(group, curve) for group, curve in curves if np.isfinite(curve.mean).any()]
        name = f"{column.replace('_', '-')}-rounds"
        figures[name] = _measure(drawn, looks, MEASURES[column], data)
    if apart:
        figures["consensus-distance-rounds"] = _consensus(apart, looks, data)
    return figures


def _differences(
    groups: Sequence[Group], other: Group, looks: dict[str, Look], data: str
) -> dict[str, Figure]:
    """Accuracy minus that of ``other`` with the same seed; no figure where no seed is shared."""
    title = f"Test accuracy minus that of {other.method} (points)"
    curves = [(g, minus(g, other, ACCURACY, 100)) for g in groups if g is not other]
    drawn = [(group, curve) for group, curve in curves if np.isfinite(curve.mean).any()]
    return {"difference-rounds": _against_rounds(drawn, looks, title, data)} if drawn else {}


def _against_rounds(
    drawn: Sequence[tuple[Group, Curve]], looks: dict[str, Look], title: str, data: str
) -> Figure:
    figure, axes = new_axes(title, data, "communication round")
    draw_lines(axes, [_line(curve.rounds, group, curve, looks) for group, curve in drawn])
    return figure


def _against_bits(
    drawn: Sequence[tuple[Group, Curve]], looks: dict[str, Look], title: str, data: str
) -> Figure:
    """Draw curves against the bits sent. A method that sends nothing has only its last value."""
    from matplotlib.ticker import LogLocator

    last = [curve.bits[-1] for _, curve in drawn if curve.bits[-1] > 0]
    wide = max(last) >= WIDE * min(last)
    unit, prefix = bit_prefix(max(last))
    figure, axes = new_axes(title, data, f"sent by all clients, up and down ({prefix}bit)")
    lines = [_line(curve.bits / unit, group, curve, looks) for group, curve in drawn]
    if wide:
        axes.set_xscale("log", subs=())
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        lines = [line if line.x[-1] == 0 else _part(line, line.x > 0) for line in lines]
    start = min(line.x[0] for line in lines if line.x[-1] > 0)
    draw_lines(axes, [line if line.x[-1] > 0 else _last_value(line, start) for line in lines])
    return figure


def _against_seconds(
    drawn: Sequence[tuple[Group, Curve, np.ndarray]],
    looks: dict[str, Look],
    title: str,
    data: str,
) -> Figure:
    """Draw curves against the clock of the simulated federation, the mean of the seeds' clocks."""
    figure, axes = new_axes(title, data, "seconds of the simulated federation")
    draw_lines(axes, [_line(seconds, group, curve, looks) for group, curve, seconds in drawn])
    return figure


def _consensus(drawn: Sequence[tuple[Group, Curve]], looks: dict[str, Look], data: str) -> Figure:
    """Draw the squared distance from consensus; thin, the predicted one from its start."""
    subtitle = f"{data}; dashed: what averaging alone is predicted to leave"
    figure, axes = new_axes("Distance from consensus", subtitle, "communication round")
    axes.set_yscale("log")
    lines = [_line(curve.rounds, group, curve, looks) for group, curve in drawn]
    lines = [_part(line, line.y > 0) for line in lines]
    lines = [replace(line, band=np.minimum(line.band, 0.9 * line.y)) for line in lines]
    floor = min(float(line.y.min()) for line in lines) / 2
    for (group, _), line in zip(drawn, lines, strict=True):
        left = numbers(group)[0]
        if 0 < left < 1:
            last = line.x[0] + np.log(floor / line.y[0]) / np.log(left)
            x = np.linspace(line.x[0], min(last, max(float(one.x[-1]) for one in lines)), 50)
            axes.plot(x, line.y[0] * left ** (x - line.x[0]), color=line.look.colour, linewidth=1,
                      linestyle=(0, (4, 3)))  # fmt: skip
    draw_lines(axes, lines)
    return figure


def _measure(
    drawn: Sequence[tuple[Group, Curve]], looks: dict[str, Look], measure: Measure, data: str
) -> Figure:
    """Draw a measure of an algorithm; the band is one standard deviation over seeds."""
    figure, axes = new_axes(measure.title, data, "communication round")
    lines = [_line(curve.rounds, group, curve, looks) for group, curve in drawn]
    if measure.log and all((line.y >= 0).all() for line in lines):
        axes.set_yscale("log")
        lines = [line for line in (_part(line, line.y > 0) for line in lines) if len(line.x)]
        lines = [replace(line, band=np.minimum(line.band, 0.9 * line.y)) for line in lines]
    if lines:
        draw_lines(axes, lines)
    return figure


def _over_clients(
    scored: Sequence[tuple[Group, np.ndarray]], looks: dict[str, Look], data: str
) -> Figure:
    """Each method's clients from the least to the most accurate one."""
    title, x_label = "Test accuracy of each client (%)", "clients, least accurate first (%)"
    figure, axes = new_axes(title, data, x_label)
    lines = []
    for group, accuracies in scored:
        share = 100 * np.arange(1, len(accuracies) + 1) / len(accuracies)
        none = np.zeros_like(share)
        curve = Curve(share, none, 100 * np.sort(accuracies), none)
        lines.append(_line(share, group, curve, looks))
    draw_lines(axes, lines)
    axes.set_xlim(0, 100)
    axes.axvline(10, color=GREY, linewidth=1, linestyle=(0, (2, 2)))
    axes.annotate(
        "bottom decile", (10, 0.98), xycoords=("data", "axes fraction"), xytext=(5, 0),
        textcoords="offset points", color=GREY, fontsize=9, va="top",
    )  # fmt: skip
    return figure


def _line(x: np.ndarray, group: Group, curve: Curve, looks: dict[str, Look]) -> Line:
    name = group.method if group.finished else f"{group.method} (unfinished)"
    line = Line(x, curve.mean, curve.deviation, name, looks[group.method])
    return _part(line, np.isfinite(curve.mean))


def _part(line: Line, keep: np.ndarray) -> Line:
    return replace(line, x=line.x[keep], y=line.y[keep], band=line.band[keep])


def _last_value(line: Line, x: float) -> Line:
    name = f"{line.name} (sends nothing)"
    return Line(np.array([x]), line.y[-1:], line.band[-1:], name, line.look)
