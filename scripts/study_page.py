"""Makes docs/study_topologies.md from the runs of scripts/study_topologies.py.

    python scripts/study_page.py RUNS [--slow DIRECTORY] [--page FILE]

Tables and pictures are made of the runs that are finished; the others are counted as missing. The
second network is that of ``study_cells.SLOW``: runs are retimed into the directory ``--slow``, each
once. Text of the page outside of the marks ``<!-- study -->`` stays as it is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from study_cells import CORRECTIONS, GRAPHS, LEVELS, Key, Study, read_study, seeds

from mpifed.errors import InputError
from mpifed.report.chart import Chart, Line
from mpifed.report.dots import Dots, Panel
from mpifed.report.dots import figure_of as dots_of
from mpifed.report.groups import Group
from mpifed.report.intervals import Estimate, estimate
from mpifed.report.lines import figure_of
from mpifed.report.looks import look
from mpifed.report.paired import last_differences
from mpifed.report.pictures import Pictures, save
from mpifed.report.tables import ACCURACY, DECILE, markdown_header, markdown_row

PAGE = Path(__file__).parents[1] / "docs" / "study_topologies.md"
BEGIN, END = "<!-- study -->", "<!-- /study -->"
CLOCK, DISTANCE = "simulated_seconds", "consensus_distance"
UNTIL = 200.0
"""Seconds that the curves show; the star takes longer."""

REFERENCE = "static_exponential"
"""The graph with which plain gossip on the others is compared."""


def counted(study: Study) -> str:
    """Return which runs there are, in words."""
    finished = sum(len(group.runs) for group in study.fast.values())
    missing = [key for key in study.wanted if key not in study.fast and key not in study.diverged]
    partly = [key for key in study.fast if len(study.fast[key].runs) < seeds()]
    lines = [
        f"{finished} of {seeds() * len(study.wanted)} runs are finished and in what follows"
        + (f", {sum(study.diverged.values())} diverged" if study.diverged else "")
        + f". Of the {len(study.wanted)} cells (level, graph, correction) "
        f"{len(study.fast) - len(partly)} have all {seeds()} seeds, {len(partly)} fewer, and "
        f"{len(missing)} no run."
    ]
    for level in LEVELS:
        for correction, name in CORRECTIONS.items():
            of_both = [key for key in study.wanted if (key[0], key[2]) == (level, correction)]
            there = [GRAPHS[key[1]] for key in of_both if key in missing]
            if there:
                which = "on all graphs" if len(there) == len(of_both) else "on " + "; ".join(there)
                lines.append(f"* No run: {name}, clients {LEVELS[level]}, {which}.")
    return "\n".join([lines[0], "", *lines[1:]] if len(lines) > 1 else lines)


def summary(study: Study) -> list[str]:
    """Return the table of each correction's mean difference over its graphs."""
    names = ["clients", "correction", "graphs", "seeds", "average", "bottom decile"]
    lines = markdown_header([*names, "better on", "worse on", "bits", "seconds, slow"], texts=2)
    for level in LEVELS:
        for correction, name in list(CORRECTIONS.items())[1:]:
            keys = [k for k in study.wanted if (k[0], k[2]) == (level, correction)]
            whole = [k for k in keys if len(study.differences(k, ACCURACY)) == seeds()]
            if not whole:
                continue
            cells_of = [LEVELS[level], name, f"{len(whole)} of {len(keys)}", str(seeds())]
            for column in (ACCURACY, DECILE):
                values = np.array([study.differences(key, column) for key in whole])
                cells_of.append(_points(estimate(100 * values.mean(axis=0))))
            each = [estimate(study.differences(key, ACCURACY)) for key in whole]
            cells_of.append(str(sum(one.mean > one.half_width for one in each)))
            cells_of.append(str(sum(one.mean < -one.half_width for one in each)))
            cells_of += [f"{_ratio(study.fast, whole, 'up_bits'):.2f}"]
            cells_of += [f"{_ratio(study.slow, whole, CLOCK):.2f}"]
            lines.append(markdown_row(cells_of))
    return lines


def best(study: Study) -> list[str]:
    """Return the table of the correction that gains most on each graph, with its gain."""
    lines = markdown_header(["graph", *(f"clients {words}" for words in LEVELS.values())], texts=1)
    for graph, name in GRAPHS.items():
        row = [name]
        for level in LEVELS:
            gains = {
                called: estimate(100 * study.differences((level, graph, correction), ACCURACY))
                for correction, called in list(CORRECTIONS.items())[1:]
                if len(study.differences((level, graph, correction), ACCURACY)) == seeds()
            }
            if not gains:
                row.append("–")
                continue
            called = max(gains, key=lambda one: gains[one].mean)
            said = f"{called} {_points(gains[called])}"
            sure = gains[called].mean > gains[called].half_width
            row.append(f"**{said}**" if sure else said)
        lines.append(markdown_row(row))
    return lines


def _ratio(groups: dict[Key, Group], keys: Sequence[Key], column: str) -> float:
    """Return the geometric mean over graphs of a last value over that of plain gossip."""
    parts = [
        groups[key].mean_and_deviation(column)[0]
        / groups[key[0], key[1], "none"].mean_and_deviation(column)[0]
        for key in keys
    ]
    return float(np.exp(np.mean(np.log(parts))))


def table(study: Study, level: float) -> list[str]:
    """Return the table of a level of heterogeneity, a row for each cell."""
    names = ["graph", "correction", "seeds", "accuracy", "bottom decile", "distance", "Gbit"]
    names += ["s, fast", "s, slow", "minus plain", "decile minus plain"]
    lines = markdown_header(names, texts=2)
    for key in study.wanted:
        if key[0] != level:
            continue
        row = [GRAPHS[key[1]], CORRECTIONS[key[2]]]
        if key not in study.fast:
            said = "diverged" if key in study.diverged else "missing"
            lines.append(markdown_row([*row, "0", said, *["–"] * 7]))
            continue
        group, slow = study.fast[key], study.slow[key]
        more = f" (diverged: {study.diverged[key]})" if key in study.diverged else ""
        row.append(f"{len(group.runs)}{more}")
        row += [_interval(group, column) for column in (ACCURACY, DECILE)]
        row.append(f"{group.mean_and_deviation(DISTANCE)[0]:.2g}")
        row.append(f"{group.mean_and_deviation('up_bits')[0] / 1e9:.2f}")
        row += [f"{one.mean_and_deviation(CLOCK)[0]:.0f}" for one in (group, slow)]
        for column in (ACCURACY, DECILE):
            values = 100 * study.differences(key, column)
            row.append("0" if key[2] == "none" else _points(estimate(values)))
        lines.append(markdown_row(row))
    return lines


def _interval(group: Group, column: str) -> str:
    found = estimate(100 * np.array([run.last(column) for run in group.runs]))
    return f"{found.mean:.1f}" + (f" ± {found.half_width:.1f}" if found.count > 1 else "")


def _points(found: Estimate) -> str:
    if not found.count:
        return "–"
    return f"{found.mean:+.2f}" + (f" ± {found.half_width:.2f}" if found.count > 1 else "")


def topologies_dots(study: Study) -> Dots:
    """Return what the graph costs plain gossip: differences from the exponential graph."""
    rows = tuple(GRAPHS[graph] for graph in GRAPHS if graph != REFERENCE)
    panels = []
    for index, level in enumerate(LEVELS):
        found: dict[str, Estimate | str] = {}
        other = study.fast.get((level, REFERENCE, "none"))
        for graph, name in GRAPHS.items():
            group = study.fast.get((level, graph, "none"))
            if graph != REFERENCE:
                known = group is not None and other is not None
                found[name] = _estimate(group, other) if known else "missing"
        panels.append(Panel(f"clients {LEVELS[level]}", found, look(index)))
    title = "Plain gossip: test accuracy minus that on the static exponential graph (points)"
    return Dots("study_topologies", title, rows, (tuple(panels),))


def _estimate(group: Group | None, other: Group | None) -> Estimate | str:
    values = np.zeros(0)
    if group is not None and other is not None:
        values = last_differences(group, other, ACCURACY)
    return estimate(100 * values) if len(values) else "missing"


def corrections_dots(study: Study) -> Dots:
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
            panels.append(Panel(f"{name}\n{LEVELS[level]}", found, look(index)))
        every.append(tuple(panels))
    title = "Test accuracy minus that of plain gossip on the same graph (points)"
    return Dots("study_corrections", title, tuple(GRAPHS.values()), tuple(every))


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
            x, y = found.bits[1:] / 2e9, found.mean[1:]
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
        for dots in (topologies_dots(study), corrections_dots(study)):
            save(dots_of(dots, made), output, dots.name, made)
            names.append(dots.name)
    with matplotlib.rc_context(small.style()):
        every = {"study_seconds": curves(study, level), "study_bits": bits_chart(study, level)}
        for name, chart in every.items():
            if chart.lines:
                save(figure_of(chart, small), output, name, small, 100)
                names.append(name)
    return names


CAPTIONS = {
    "study_topologies": "What the graph costs plain gossip: mean over seeds of the paired "
    "difference with its 95 % interval. An interval without a cap leaves the axis.",
    "study_corrections": "What a correction gains on each graph, seed by seed, with 95 % "
    "intervals. A row without a word is a graph that the correction is not for.",
    "study_seconds": "Accuracy over the seconds of the slow network, where clients are very "
    "unlike: mean over seeds.",
    "study_bits": "Accuracy of plain gossip over the bits that all clients have sent: mean over "
    "seeds.",
}


BEST = (
    "The correction with the largest mean gain over plain gossip among those that have all seeds, "
    "bold where its 95 % interval is above 0 (not corrected for having chosen the largest):"
)


def content(study: Study, pictures: Sequence[str]) -> str:
    """Return what stands between the marks."""
    parts = [counted(study), "", *summary(study), "", BEST, "", *best(study)]
    for name in pictures:
        parts += ["", f"![{CAPTIONS[name]}]({name}.png)", "", CAPTIONS[name]]
    for level, words in LEVELS.items():
        parts += ["", f"### Clients {words}", "", *table(study, level)]
    return "\n".join(parts) + "\n"


def main(words: Sequence[str] | None = None) -> int:
    """Make the page; return the exit code."""
    parser = argparse.ArgumentParser(prog="study_page", description=__doc__.split("\n")[0])
    parser.add_argument("runs", type=Path, help="directory of the runs")
    parser.add_argument("--slow", type=Path, help="of the retimed runs (default: RUNS-slow)")
    parser.add_argument("--page", type=Path, default=PAGE, help=f"default: {PAGE.name} in docs/")
    asked = parser.parse_args(words)
    slow = asked.slow or asked.runs.with_name(asked.runs.name + "-slow")
    try:
        before, begin, rest = asked.page.read_text(encoding="utf-8").partition(BEGIN + "\n")
        _, end, after = rest.partition(END)
        if not (begin and end):
            raise InputError(f"{asked.page} has no marks {BEGIN} and {END}")
        study = read_study(asked.runs, slow)
    except (OSError, InputError) as error:
        print(f"study_page: {error}", file=sys.stderr)
        return 2
    made = content(study, draw(study, asked.page.parent))
    asked.page.write_text(before + begin + made + end + after, encoding="utf-8")
    print(counted(study).split("\n")[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())
