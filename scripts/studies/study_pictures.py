"""The pictures of docs/evidence/study_topologies.md, by the report's own functions."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
from study_cells import CLOCK, CORRECTIONS, GRAPHS, LEVELS, Study, seeds

from mpifed.report.charts import Chart, Line
from mpifed.report.drawing import Forest, Pictures, figure_of, forest_figure, save
from mpifed.report.groups import Estimate, Group, estimate, last_differences
from mpifed.report.names import look
from mpifed.report.runs import ACCURACY

UNTIL = 200.0
"""Seconds that the curves show; the star takes longer."""

REFERENCE = "static_exponential"
"""The graph with which plain gossip on the others is compared."""


def topologies_forests(study: Study) -> list[list[Forest]]:
    """Return what the graph costs plain gossip: differences from the exponential graph."""
    panels = []
    for index, level in enumerate(LEVELS):
        found: dict[str, Estimate | str] = {}
        other = study.fast.get((level, REFERENCE, "none"))
        for graph, name in GRAPHS.items():
            group = study.fast.get((level, graph, "none"))
            if graph != REFERENCE:
                known = group is not None and other is not None
                found[name] = _estimate(group, other) if known else "missing"
        panels.append(Forest(f"clients {LEVELS[level]}", found, look(index)))
    return [panels]


def _estimate(group: Group | None, other: Group | None) -> Estimate | str:
    values = np.zeros(0)
    if group is not None and other is not None:
        values = last_differences(group, other, ACCURACY)
    return estimate(100 * values) if len(values) else "missing"


def corrections_forests(study: Study) -> list[list[Forest]]:
    """Return what each correction gains over plain gossip on the same graph."""
    every = []
    for level in LEVELS:
        panels = []
        for index, (correction, name) in enumerate(list(CORRECTIONS.items())[1:], 1):
            found: dict[str, Estimate | str] = {}
            for key in study.wanted:
                if (key[0], key[2]) == (level, correction):
                    values = 100 * study.differences(key, ACCURACY)
                    absent = "diverged" if key in study.diverged else "missing"
                    found[GRAPHS[key[1]]] = estimate(values) if len(values) else absent
            panels.append(Forest(f"{name}\n{LEVELS[level]}", found, look(index)))
        every.append(panels)
    return every


def curves(study: Study, level: float) -> Chart:
    """Return the accuracy of each correction over the seconds of the slow network, by graph."""
    lines = []
    for graph, name in GRAPHS.items():
        for index, (correction, called) in enumerate(CORRECTIONS.items()):
            group = study.slow.get((level, graph, correction))
            if group is not None and len(group.runs) == seeds():
                shown = group.curve(CLOCK).mean <= UNTIL
                x, y = group.curve(CLOCK).mean[shown], group.curve(ACCURACY, 100.0).mean[shown]
                lines.append(Line(x, y, 0 * y, called, look(index), group.method, name))
    title, x_label = "Test accuracy (%)", "seconds of the slow network"
    return Chart("study", "simulated-seconds", title, "", x_label, tuple(lines))


def bits_chart(study: Study, level: float) -> Chart:
    """Return the accuracy of plain gossip on each graph over the bits that were sent."""
    lines = []
    for index, (graph, name) in enumerate(GRAPHS.items()):
        group = study.fast.get((level, graph, "none"))
        if group is not None and len(group.runs) == seeds():
            found = group.curve(ACCURACY, 100.0)
            x, y = found.bits[1:] / 1e9, found.mean[1:]
            lines.append(Line(x, y, 0 * y, name, look(index % 6), group.method))
    title = f"Test accuracy of plain gossip, clients {LEVELS[level]} (%)"
    return Chart("study", "bits", title, "", "sent by all clients (Gbit)", tuple(lines), x_log=True)


def draw(study: Study, output: Path) -> list[str]:
    """Draw the pictures; return the names of those for which there are runs.

    Parameters
    ----------
    study : Study
        The runs.
    output : Path
        The directory of the files.
    """
    matplotlib.use("Agg")
    made, small = Pictures(), Pictures(size=(4.6, 3.4), font_size=9)
    level = min(LEVELS)
    names = []
    with matplotlib.rc_context(made.style()):
        title = "Plain gossip: test accuracy minus that on the static exponential graph (points)"
        figure = forest_figure(title, topologies_forests(study), made)
        save(figure, output, "study_topologies", made)
        title = "Test accuracy minus that of plain gossip on the same graph (points)"
        figure = forest_figure(title, corrections_forests(study), made)
        save(figure, output, "study_corrections", made)
        names += ["study_topologies", "study_corrections"]
    with matplotlib.rc_context(small.style()):
        every = {"study_seconds": curves(study, level), "study_bits": bits_chart(study, level)}
        for name, chart in every.items():
            if chart.lines:
                save(figure_of(chart, small), output, name, small)
                names.append(name)
    return names


CAPTIONS = {
    "study_topologies": "What the graph costs plain gossip, with 95 % intervals. "
    "An interval without a cap leaves the axis.",
    "study_corrections": "What a correction gains on each graph, by seed, with 95 % intervals.",
    "study_seconds": "Accuracy over the seconds of the slow network, α = 0.1.",
    "study_bits": "Accuracy of plain gossip over the bits that all clients have sent.",
}
