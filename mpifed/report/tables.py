"""Tables in the layout of Table 2 of Marfoq et al. (2021): average accuracy / bottom decile.

The table of measures other than training losses and test accuracies.

The consensus distance of gossip: the predicted contraction and the measured one.

Numbers of bits with a unit.

Paired comparison of methods by seed, and the rounds and bits each took to reach an accuracy.

The values of a grid as Markdown and as CSV.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from rich.table import Table

from mpifed.errors import InputError, closest
from mpifed.report.groups import Curve, Group, mean_and_deviation, short
from mpifed.report.intervals import MEANING, estimate
from mpifed.report.names import in_words
from mpifed.report.runs import MEASURES, Run, larger_is_better

MEASURES_CAPTION = "At the last evaluated round, mean over seeds."


def measured(groups: Sequence[Group]) -> list[str]:
    """Return the columns of ``MEASURES`` in which any run has numbers."""
    runs = [run for group in groups for run in group.runs]
    return [
        column for column in MEASURES if any(np.isfinite(run.metrics[column]).any() for run in runs)
    ]


def measure_cell(group: Group, column: str) -> str:
    """Return mean and interval of the last values as a table cell."""
    if MEASURES[column].factor == 100:
        return group.estimate(column, 100).text(".2f")
    return group.estimate(column).text(".4g", ".2g")


def measure_rows(groups: Sequence[Group]) -> list[list[str]]:
    """Return the rows of the table: data, method and every measure."""
    columns = measured(groups)
    return [
        [*group.words, *(measure_cell(group, column) for column in columns)] for group in groups
    ]


def measure_header(groups: Sequence[Group]) -> list[str]:
    """Return the header of ``rows``."""
    return ["Data", "Method", *(MEASURES[column].short for column in measured(groups))]


DISTANCE = "consensus_distance"
CONSENSUS_COLUMNS = ("predicted_contraction", "measured_contraction", DISTANCE)
CONSENSUS_CAPTION = (
    "Consensus: the distance is (1/n) Σ ‖x_t − x̄‖² over clients, at the last evaluated round. "
    "Predicted is (1 − p)^(1/τ), what a round leaves of it at most, on average, where clients only "
    "average. Measured is (d_k/d_j)^(1/(k − j)) from the first evaluated round j with a distance "
    "to the round k with the least. Local steps feed the distance in every round, so a run that "
    "trains comes to rest above zero, and measures more than is predicted."
)
# Relative to the first distance: below it, float32 rounding is as large as the contraction.
ROUNDING = 1e-12


def measured_contraction(run: Run) -> float:
    """Return the measured factor per round on the squared distance from consensus."""
    rounds, distances = run.metrics["round"], run.metrics[DISTANCE]
    apart = np.flatnonzero(distances > 0)
    if not len(apart):
        return math.nan
    first = apart[0]
    low = np.flatnonzero(distances <= ROUNDING * distances[first])
    low = low[low > first]
    end = low[0] + 1 if len(low) else len(distances)
    last = first + int(np.nanargmin(distances[first:end]))
    if last == first:
        return math.nan
    ratio = float(distances[last] / distances[first])
    return ratio ** (1 / float(rounds[last] - rounds[first]))


def contractions(group: Group) -> list[float]:
    """Return the values of ``COLUMNS`` for a group."""
    predicted = np.array([run.predicted.get("per_round", math.nan) for run in group.runs])
    return [
        mean_and_deviation(predicted)[0],
        mean_and_deviation(np.array([measured_contraction(run) for run in group.runs]))[0],
        group.mean_and_deviation(DISTANCE)[0],
    ]


def gossiped(groups: Sequence[Group]) -> list[Group]:
    """Return the groups whose runs have a distance from consensus."""
    return [group for group in groups if not math.isnan(contractions(group)[-1])]


def consensus_rows(groups: Sequence[Group]) -> list[list[str]]:
    """Return the rows of the consensus table, as ``HEADER`` names their cells."""
    found = []
    for group in gossiped(groups):
        rates = [run.predicted for run in group.runs if run.predicted]
        p = mean_and_deviation(np.array([rate["p"] for rate in rates]))[0]
        taus = sorted({int(rate["tau"]) for rate in rates})
        tau = "-".join(map(str, taus)) if taus else "–"
        found.append([*group.words, _short(p), tau, *map(_short, contractions(group))])
    return found


CONSENSUS_HEADER = [
    "Data",
    "Method",
    "p",
    "τ",
    "Predicted per round",
    "Measured per round",
    "Distance",
]


def _short(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.4g}"


PREFIXES = ("", "k", "M", "G", "T", "P")


def bits(value: float) -> str:
    """Return a number of bits with its unit."""
    if math.isnan(value):
        return "–"
    unit, prefix = bit_prefix(value)
    return f"{value / unit:.3g} {prefix}bit"


def bit_prefix(value: float) -> tuple[float, str]:
    """Return the unit in which ``value`` is a number from 1 to 999, and its prefix."""
    power = int(math.log10(value) // 3) if value >= 1 else 0
    power = min(power, len(PREFIXES) - 1)
    return 1000.0**power, PREFIXES[power]


CAPTION = (
    "Test accuracy in per cent: average over clients / bottom decile (the ⌈T/10⌉-th smallest of T "
    "clients)."
)
SENT = "Sent is what all clients together would have sent up and down in the simulated federation."
ACCURACY, DECILE = "test_accuracy", "test_accuracy_p10"


def markdown(groups: Sequence[Group], notes: Sequence[str]) -> str:
    """Return the tables as Markdown: data sets down, methods across, the best of each row bold."""
    methods = _distinct([group.method for group in groups])
    cells = {(group.data, group.method): group for group in groups}
    lines = []
    if _shows_accuracies(groups):
        lines = [CAPTION + _meaning(groups, [ACCURACY, DECILE]), ""]
        lines += markdown_header(["Data", *map(in_words, methods)], texts=1)
        for data in _distinct([group.data for group in groups]):
            row = [cells.get((data, method)) for method in methods]
            best = {column: _best(row, column) for column in (ACCURACY, DECILE)}
            lines.append(
                markdown_row([in_words(data), *(_accuracy_cell(group, best) for group in row)])
            )
        lines.append("")
    lines += [SENT, ""]
    header = ["Data", "Method", "Seeds", "Rounds", "Seconds", "Sent up", "Sent down"]
    lines += markdown_header(header, texts=2)
    lines += [
        markdown_row([*group.words, str(len(group.runs)), _rounds(group), *_cost(group)])
        for group in groups
    ]
    if measured(groups):
        header = measure_header(groups)
        lines += [
            "",
            MEASURES_CAPTION + _meaning(groups, measured(groups)),
            "",
            *markdown_header(header, texts=2),
        ]
        lines += [markdown_row(row) for row in measure_rows(groups)]
    distances = consensus_rows(groups)
    if distances:
        lines += ["", CONSENSUS_CAPTION, "", *markdown_header(CONSENSUS_HEADER, texts=2)]
        lines += [markdown_row(row) for row in distances]
    lines += ["", *(f"* {note}" for note in notes)] if notes else []
    return "\n".join(lines) + "\n"


def csv_text(groups: Sequence[Group]) -> str:
    """Return the table as CSV, one row per data set and method."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = measured(groups)
    writer.writerow(
        [
            "data",
            "method",
            "seeds",
            "finished",
            "rounds",
            ACCURACY,
            f"{ACCURACY}_deviation",
            DECILE,
            f"{DECILE}_deviation",
            "seconds",
            "up_bits",
            "down_bits",
            *CONSENSUS_COLUMNS,
            *(name for column in columns for name in (column, f"{column}_deviation")),
        ]
    )
    for group in groups:
        numbers = [
            *group.mean_and_deviation(ACCURACY),
            *group.mean_and_deviation(DECILE),
            group.seconds(),
            group.mean_and_deviation("up_bits")[0],
            group.mean_and_deviation("down_bits")[0],
            *contractions(group),
            *(number for column in columns for number in group.mean_and_deviation(column)),
        ]
        finished = "true" if group.finished else "false"
        rounds = min((run.rounds for run in group.runs if run.rounds is not None), default="")
        front = [group.data, group.method, len(group.runs), finished, rounds]
        writer.writerow([*front, *("" if math.isnan(n) else f"{n:.10g}" for n in numbers)])
    return text.getvalue()


def terminal(groups: Sequence[Group]) -> Table:
    """Return the table for a terminal, one line per data set and method."""
    accuracies = _shows_accuracies(groups)
    columns = measured(groups)[:1]  # a terminal has no room for more
    title = "Test accuracy in per cent" if accuracies else None
    shown = [*([ACCURACY, DECILE] if accuracies else []), *columns]
    caption = _meaning(groups, shown).strip() or None
    table = Table(title=title, title_justify="left", title_style="bold")
    table.caption, table.caption_justify, table.caption_style = caption, "left", ""
    table.add_column("Data")
    table.add_column("Method", overflow="fold")
    scores = ["Average", "Bottom decile"] if accuracies else []
    shorts = [MEASURES[column].short for column in columns]
    for name in ("Seeds", *scores, *shorts, "Rounds", "Seconds", "Sent up", "Sent down"):
        table.add_column(name, justify="right", no_wrap=True)
    before = None
    for group in groups:
        if before is not None and group.data != before:
            table.add_section()
        table.add_row(
            "" if group.data == before else group.words[0],
            group.words[1],
            str(len(group.runs)),
            *([_percent(group, column) for column in (ACCURACY, DECILE)] if accuracies else []),
            *(measure_cell(group, column) for column in columns),
            _rounds(group),
            *_cost(group),
        )
        before = group.data
    return table


def _distinct(values: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _shows_accuracies(groups: Sequence[Group]) -> bool:
    """Return whether there are accuracies, or nothing else to show."""
    scored = any(not math.isnan(group.mean_and_deviation(ACCURACY)[0]) for group in groups)
    return scored or not measured(groups)


def _meaning(groups: Sequence[Group], columns: Sequence[str]) -> str:
    """Say what ± is, where a cell of these columns has one."""
    halves = [group.estimate(column).half_width for group in groups for column in columns]
    return "" if all(map(math.isnan, halves)) else f" {MEANING}"


def _best(row: Sequence[Group | None], column: str) -> float:
    means = [group.mean_and_deviation(column)[0] for group in row if group is not None]
    return max((mean for mean in means if not math.isnan(mean)), default=math.nan)


def _accuracy_cell(group: Group | None, best: dict[str, float]) -> str:
    if group is None:
        return "–"
    parts = []
    for column in (ACCURACY, DECILE):
        text = _percent(group, column)
        is_best = group.mean_and_deviation(column)[0] == best[column]
        parts.append(f"**{text}**" if is_best else text)
    return " / ".join(parts) + ("" if group.finished else " *")


def _percent(group: Group, column: str) -> str:
    return group.estimate(column, 100).text(".1f")


def _rounds(group: Group) -> str:
    """The last evaluated round, a range where seeds differ; starred where a run is unfinished."""
    rounds = [run.rounds for run in group.runs if run.rounds is not None]
    text = "-".join(str(bound) for bound in sorted({min(rounds), max(rounds)})) if rounds else "–"
    return text if group.finished else f"{text} *"


def _cost(group: Group) -> list[str]:
    seconds = group.seconds()
    sent = [group.mean_and_deviation(column)[0] for column in ("up_bits", "down_bits")]
    return ["–" if math.isnan(seconds) else f"{seconds:.1f}", *map(bits, sent)]


def markdown_header(names: Sequence[str], texts: int) -> list[str]:
    """Return header and rule of a Markdown table."""
    rule = ["---" if index < texts else "---:" for index in range(len(names))]
    return [markdown_row(names), markdown_row(rule)]


def markdown_row(cells: Sequence[str]) -> str:
    """Return one line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def minus(group: Group, other: Group, column: str, factor: float = 1.0) -> Curve:
    """Return a column of one group minus that of another, over the seeds that both have run."""
    pairs = _pairs(group, other)
    rounds, values = _differences(pairs, column)
    if not len(rounds):
        return Curve(rounds, rounds, rounds, rounds)
    values = values * factor
    sent = [_at(run, "up_bits", rounds) + _at(run, "down_bits", rounds) for run, _ in pairs]
    deviation = values.std(axis=0, ddof=1) if len(pairs) > 1 else np.zeros(len(rounds))
    return Curve(rounds, np.mean(sent, axis=0), values.mean(axis=0), deviation)


def last_difference(group: Group, other: Group, column: str) -> tuple[float, float]:
    """Return mean and sample deviation of the last value of :func:`minus`."""
    values = last_differences(group, other, column)
    if not len(values):
        return np.nan, np.nan
    return float(values.mean()), np.nan if len(values) < 2 else float(values.std(ddof=1))


def last_differences(group: Group, other: Group, column: str) -> np.ndarray:
    """Return the differences of a column at the last round that both methods have with
    every seed.
    """
    rounds, values = _differences(_pairs(group, other), column)
    return values[:, -1] if len(rounds) else np.zeros(0)


def reached(run: Run, target: float) -> tuple[float, float]:
    """Return where the test accuracy first was at least ``target``."""
    hits = np.flatnonzero(run.metrics[ACCURACY] >= target)
    if not len(hits):
        return np.nan, np.nan
    return float(run.metrics["round"][hits[0]]), float(run.metrics["up_bits"][hits[0]])


def partner(groups: Sequence[Group], data: str, method: str) -> Group | None:
    """Return the group of a method on a data set."""
    methods = {group.method for group in groups}
    if method not in methods:
        raise InputError(
            f"--against is '{method}', which is none of the methods; {closest(method, methods)}"
        )
    return next((g for g in groups if (g.data, g.method) == (data, method)), None)


def comparison_markdown(groups: Sequence[Group], against: str | None, target: float | None) -> str:
    """Return the comparison as Markdown: differences in points, round and bits at ``target``."""
    notes, names = [], ["Data", "Method", "Pairs"]
    if against is not None:
        notes.append(
            f"Test accuracy minus that of {in_words(against)} with the same seed, in points."
        )
        if any(_several(group, partner(groups, group.data, against)) for group in groups):
            notes.append(MEANING)
        names += ["Average", "Bottom decile"]
    if target is not None:
        notes.append(f"Where the average first was {100 * target:g} per cent, mean over seeds.")
        names += ["Round", "Sent up"]
    rows = []
    for group in groups:
        other = None if against is None else partner(groups, group.data, against)
        pairs = "–" if other is None else str(len(_pairs(group, other)))
        cells = [*group.words, pairs]
        if against is not None:
            cells += [_points(group, other, column) for column in (ACCURACY, DECILE)]
        if target is not None:
            cells += _arrival(group, target)
        rows.append(markdown_row(cells))
    return "\n".join([" ".join(notes), "", *markdown_header(names, texts=2), *rows]) + "\n"


def comparison_csv(groups: Sequence[Group], against: str | None, target: float | None) -> str:
    """Return the comparison as CSV, one row per data set and method."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    differences = [f"{column}_difference" for column in (ACCURACY, DECILE)]
    names = [word for name in differences for word in (name, f"{name}_deviation")]
    writer.writerow(["data", "method", "pairs", *names, "target", "round", "up_bits"])
    for group in groups:
        other = None if against is None else partner(groups, group.data, against)
        numbers = [np.nan] * 4
        if other is not None:
            found = [last_difference(group, other, column) for column in (ACCURACY, DECILE)]
            numbers = [number for pair in found for number in pair]
        arrival = [np.nan, np.nan]
        if target is not None:
            arrival = list(np.mean([reached(run, target) for run in group.runs], axis=0))
        pairs = 0 if other is None else len(_pairs(group, other))
        cells = [*numbers, np.nan if target is None else target, *arrival]
        numbers_as_text = ["" if np.isnan(n) else f"{n:.10g}" for n in cells]
        writer.writerow([group.data, group.method, pairs, *numbers_as_text])
    return text.getvalue()


def _pairs(group: Group, other: Group) -> list[tuple[Run, Run]]:
    partners = {str(run.seed): run for run in other.runs}
    return [(run, partners[str(run.seed)]) for run in group.runs if str(run.seed) in partners]


def _differences(pairs: Sequence[tuple[Run, Run]], column: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the rounds that all runs have, and the differences, (pairs, rounds)."""
    evaluated = [run.metrics["round"] for pair in pairs for run in pair]
    rounds = reduce(np.intersect1d, evaluated) if evaluated else np.zeros(0)
    return rounds, np.array([_at(a, column, rounds) - _at(b, column, rounds) for a, b in pairs])


def _at(run: Run, column: str, rounds: np.ndarray) -> np.ndarray:
    return run.metrics[column][np.isin(run.metrics["round"], rounds)]


def _points(group: Group, other: Group | None, column: str) -> str:
    values = np.zeros(0) if other is None else last_differences(group, other, column)
    if group is other and np.isfinite(values).any():
        return "0"
    return estimate(100 * values).text("+.2f")


def _several(group: Group, other: Group | None) -> bool:
    """Return whether two methods have pairs enough for an interval."""
    return other is not None and group is not other and len(_pairs(group, other)) > 1


def _arrival(group: Group, target: float) -> list[str]:
    """Return round and bits at the target, or how many of the seeds reached it if not all did."""
    found = np.array([reached(run, target) for run in group.runs])
    arrived = int(np.isfinite(found[:, 0]).sum())
    if not arrived:
        return ["never", "–"]
    if arrived < len(found):
        return [f"{arrived} of {len(found)} seeds", "–"]
    return [f"{mean_and_deviation(found[:, 0])[0]:.0f}", bits(float(found[:, 1].mean()))]


EMPTY = "–"

DIVERGED = "not finite"


@dataclass(frozen=True)
class Grid:
    """The values of one panel, averaged over seeds."""

    panel: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: np.ndarray
    diverged: np.ndarray
    best: np.ndarray


@dataclass(frozen=True)
class WantedGrid:
    """A grid to draw."""

    column: str
    x: str
    by: str
    linear: bool = False
    aside: tuple[str, ...] = ()


def grid_markdown(found: Sequence[Grid], wanted: WantedGrid) -> str:
    """Return the values as Markdown, the best of each row bold."""
    least = "largest" if larger_is_better(wanted.column) else "least"
    lines = [f"{wanted.column} at the last round; the {least} of each row is bold."]
    for grid in found:
        lines += ["", *([f"**{grid.panel}**", ""] if grid.panel else [])]
        lines += markdown_header([f"{short(wanted.by)} \\ {short(wanted.x)}", *grid.columns], 1)
        for row, name in enumerate(grid.rows):
            cells = [_cell(grid, row, column) for column in range(len(grid.columns))]
            lines.append(markdown_row([name, *cells]))
        edges = [grid.rows[row] for row in np.flatnonzero(_at_edge(grid))]
        if edges:
            lines += ["", f"At an edge of the grid: {short(wanted.by)}={', '.join(edges)}."]
    return "\n".join(lines) + "\n"


def grid_csv(found: Sequence[Grid], wanted: WantedGrid) -> str:
    """Return the values as CSV, a line for each cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["panel", wanted.by, wanted.x, wanted.column, "diverged", "best"])
    for grid in found:
        for (row, column), value in np.ndenumerate(grid.values):
            shown = "" if math.isnan(value) else f"{value:.10g}"
            flags = int(grid.diverged[row, column]), int(grid.best[row] == column)
            writer.writerow([grid.panel, grid.rows[row], grid.columns[column], shown, *flags])
    return text.getvalue()


def _cell(grid: Grid, row: int, column: int) -> str:
    value = grid.values[row, column]
    if math.isnan(value):
        return DIVERGED if grid.diverged[row, column] else EMPTY
    return f"**{value:.4g}**" if grid.best[row] == column else f"{value:.4g}"


def _at_edge(grid: Grid) -> np.ndarray:
    """Return in which rows the best value is in the first or last column, of three or more."""
    last = len(grid.columns) - 1
    return (last > 1) & ((grid.best == 0) | (grid.best == last))
