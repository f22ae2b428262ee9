"""Tables of results in the layout of Table 2 of Marfoq et al. (2021), and of what else is measured.

A table is described once and rendered as Markdown, for a terminal, or as HTML (``page.py``).
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from mpifed.report.comparisons import DISTANCE, contractions, last_differences, partner, reached
from mpifed.report.comparisons import pairs as pairs_of
from mpifed.report.groups import Group
from mpifed.report.intervals import MEANING, Estimate, estimate, mean_and_deviation
from mpifed.report.names import in_words
from mpifed.report.runs import ACCURACY, DECILE, MEASURES, SCORES, larger_is_better

CAPTION = (
    "Test accuracy in per cent: average over clients / bottom decile (the ⌈T/10⌉-th smallest of T "
    "clients)."
)
SENT = "Sent is what all clients together would have sent up and down in the simulated federation."
LAST = "At the last evaluated round, mean over seeds."
CONSENSUS = (
    "Consensus: the distance is (1/n) Σ ‖x_t − x̄‖² over clients, at the last evaluated round. "
    "Predicted is (1 − p)^(1/τ), what a round leaves of it at most, on average, where clients only "
    "average. Measured is (d_k/d_j)^(1/(k − j)) from the first evaluated round j with a distance "
    "to the round k with the least. Local steps feed the distance in every round, so a run that "
    "trains comes to rest above zero, and measures more than is predicted."
)
NONE = "–"
PREFIXES = ("", "k", "M", "G", "T", "P")


@dataclass(frozen=True)
class Table:
    """Cells as text, of which ``**bold**`` and `` `code` `` are marked; ``texts`` columns of words.

    All other columns are numbers and aligned to the right.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 2
    caption: str = ""

    def markdown(self) -> str:
        """Return the caption and the table as Markdown."""
        lines = markdown_header(self.header, self.texts) + list(map(markdown_row, self.rows))
        return "\n".join([*([self.caption, ""] if self.caption else []), *lines]) + "\n"

    def terminal(self) -> RichTable:
        """Return the table for a terminal."""
        table = RichTable(caption=self.caption or None, caption_justify="left", caption_style="",
                          box=box.HEAVY_HEAD)  # fmt: skip
        for index, name in enumerate(self.header):
            text = index < self.texts
            table.add_column(name.replace(" (", "\n("), "", justify="left" if text else "right",
                             no_wrap=not text, overflow="fold")  # fmt: skip
        for row in self.rows:
            bold = [cell.startswith("**") for cell in row]
            cells = [cell.replace("**", "") for cell in row]
            table.add_row(*(Text(c, "bold" if b else "") for c, b in zip(cells, bold, strict=True)))
        return table


def markdown_header(names: Sequence[str], texts: int) -> list[str]:
    """Return header and rule of a Markdown table."""
    rule = ["---" if index < texts else "---:" for index in range(len(names))]
    return [markdown_row(names), markdown_row(rule)]


def markdown_row(cells: Sequence[str]) -> str:
    """Return one line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def csv_lines(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return rows as CSV; a float has ten digits, and one that is NaN is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        writer.writerow([_field(cell) if isinstance(cell, float) else cell for cell in row])
    return text.getvalue()


def _field(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.10g}"


def measured(groups: Sequence[Group]) -> list[str]:
    """Return the columns of ``MEASURES`` in which any run has numbers."""
    runs = [run for group in groups for run in group.runs]
    return [
        column for column in MEASURES if any(np.isfinite(run.metrics[column]).any() for run in runs)
    ]


def report_markdown(groups: Sequence[Group], notes: Sequence[str]) -> str:
    """Return ``table.md``."""
    tables = [table.markdown() for table in (by_data(groups), costs(groups))]
    tables = tables if shows_accuracies(groups) else tables[1:]
    tables += [table.markdown() for table in (measures(groups), consensus(groups)) if table.rows]
    return "\n".join([*tables, *(["\n".join(f"* {note}" for note in notes) + "\n"] * bool(notes))])


def report_csv(groups: Sequence[Group]) -> str:
    """Return ``table.csv``, one row per data set and method."""
    columns = measured(groups)
    header = ["data", "method", "seeds", "finished", "rounds", *_with_deviation([ACCURACY, DECILE])]
    header += ["seconds", "up_bits", "down_bits", "predicted_contraction", "measured_contraction"]
    rows = []
    for group in groups:
        rounds = [run.rounds for run in group.runs if run.rounds is not None]
        front = [group.data, group.method, len(group.runs)]
        front += ["true" if group.finished else "false", min(rounds, default="")]
        sent = [group.mean_and_deviation(column)[0] for column in ("up_bits", "down_bits")]
        numbers = [*group.mean_and_deviation(ACCURACY), *group.mean_and_deviation(DECILE)]
        numbers += [group.seconds(), *sent, *contractions(group)]
        numbers += [n for column in columns for n in group.mean_and_deviation(column)]
        rows.append([*front, *map(float, numbers)])
    return csv_lines([*header, DISTANCE, *_with_deviation(columns)], rows)


def _with_deviation(columns: Sequence[str]) -> list[str]:
    return [name for column in columns for name in (column, f"{column}_deviation")]


def shows_accuracies(groups: Sequence[Group]) -> bool:
    """Return whether there are accuracies, or nothing else to show."""
    return any(group.estimate(ACCURACY).count for group in groups) or not measured(groups)


def by_data(groups: Sequence[Group]) -> Table:
    """Return the accuracies: data sets down, methods across, the best of each row bold."""
    methods = list(dict.fromkeys(group.method for group in groups))
    header = [next(g.words[1] for g in groups if g.method == method) for method in methods]
    rows = []
    for data in dict.fromkeys(group.data for group in groups):
        row = [partner(groups, data, method) for method in methods]
        cells = [_best_bold([g for g in row if g is not None], c, 1) for c in (ACCURACY, DECILE)]
        found = iter(zip(*cells, strict=True))
        rows.append([in_words(data)])
        for group in row:
            star = "" if group is None or group.finished else " *"
            rows[-1].append(NONE if group is None else " / ".join(next(found)) + star)
    caption = CAPTION + _meaning(groups, [ACCURACY, DECILE])
    return Table(["Data", *header], rows, 1, caption)


def results(groups: Sequence[Group], columns: Sequence[str], digits: int = 1) -> Table:
    """Return the last values of some columns and the costs, a row for each data set and method."""
    known = SCORES | MEASURES
    front = [[*group.words, str(len(group.runs))] for group in groups]
    cells: list[list[str]] = [[] for _ in groups]
    for column in columns:
        for data in dict.fromkeys(group.data for group in groups):
            places = [index for index, group in enumerate(groups) if group.data == data]
            for place, text in zip(
                places, _best_bold([groups[k] for k in places], column, digits), strict=True
            ):
                cells[place].append(text)
    rows = [[*f, *c, *_cost(g)] for f, c, g in zip(front, cells, groups, strict=True)]
    header = ["Data", "Method", "Seeds", *(known[column].short for column in columns), *COSTS]
    return Table(header, rows, 2, _meaning(groups, columns).strip())


COSTS = ("Rounds", "Seconds", "Sent up", "Sent down")


def costs(groups: Sequence[Group]) -> Table:
    """Return rounds, wall time and bits."""
    return replace(results(groups, []), caption=SENT)


def measures(groups: Sequence[Group]) -> Table:
    """Return the last values of what else was measured."""
    columns = measured(groups)
    rows = [[*group.words, *(_last(group, column) for column in columns)] for group in groups]
    header = ["Data", "Method", *(MEASURES[column].short for column in columns)]
    return Table(header, rows if columns else [], 2, LAST + _meaning(groups, columns))


def consensus(groups: Sequence[Group]) -> Table:
    """Return the distances from consensus with their predicted and measured contractions."""
    rows = []
    for group in groups:
        found = contractions(group)
        if not math.isnan(found[-1]):
            rates = [run.predicted for run in group.runs if run.predicted]
            p = mean_and_deviation(np.array([rate["p"] for rate in rates]))[0]
            taus = sorted({int(rate["tau"]) for rate in rates})
            tau = "-".join(map(str, taus)) if taus else NONE
            shown = [NONE if math.isnan(value) else f"{value:.4g}" for value in (p, *found)]
            rows.append([*group.words, shown[0], tau, *shown[1:]])
    header = ["Data", "Method", "p", "τ", "Predicted per round", "Measured per round", "Distance"]
    return Table(header, rows, 2, CONSENSUS)


def comparison(groups: Sequence[Group], against: str | None, target: float | None) -> Table:
    """Return differences from a method in points, and where ``target`` was reached."""
    notes, header = [], ["Data", "Method", "Pairs"]
    others = [partner(groups, group.data, against) for group in groups]
    differences = [_differences(group, o) for group, o in zip(groups, others, strict=True)]
    if against is not None:
        name = next(group.words[1] for group in groups if group.method == against)
        notes.append(f"Test accuracy minus that of {name} with the same seed, in points.")
        if any(found.count > 1 for both in differences for found in both):
            notes.append(f"{MEANING} p is two-sided, of the paired t-test, not corrected.")
        header += ["Average", "p", "Bottom decile", "p"]
    if target is not None:
        notes.append(f"Where the average first was {100 * target:g} per cent, mean over seeds.")
        header += ["Round", "Sent up"]
    rows = []
    for group, other, both in zip(groups, others, differences, strict=True):
        row = [*group.words, NONE if other is None else str(len(pairs_of(group, other)))]
        if against is not None:
            row += [text for found in both for text in (_points(found, group is other), _p(found))]
        rows.append([*row, *([] if target is None else _arrival(group, target))])
    return Table(header, rows, 2, " ".join(notes))


def comparison_csv(groups: Sequence[Group], against: str | None, target: float | None) -> str:
    """Return ``comparison.csv``, one row per data set and method."""
    names = _with_deviation([f"{column}_difference" for column in (ACCURACY, DECILE)])
    rows = []
    for group in groups:
        other = partner(groups, group.data, against)
        row: list[object] = [group.data, group.method]
        row.append(0 if other is None else len(pairs_of(group, other)))
        for column in (ACCURACY, DECILE):
            none = np.zeros(0)
            values = none if other is None else last_differences(group, other, column)
            row += mean_and_deviation(values)
        arrival = [(math.nan, math.nan)]
        if target is not None:
            arrival = [reached(run, target) for run in group.runs]
        row += [math.nan if target is None else target, *map(float, np.mean(arrival, axis=0))]
        rows.append(row)
    return csv_lines(["data", "method", "pairs", *names, "target", "round", "up_bits"], rows)


def _differences(group: Group, other: Group | None) -> list[Estimate]:
    """The paired differences in average and bottom decile, in points; none from itself."""
    found = []
    for column in (ACCURACY, DECILE):
        values = np.zeros(0)
        if other is not None:
            values = 100 * last_differences(group, other, column)
        found.append(estimate(values[:1] if group is other else values))
    return found


def _points(found: Estimate, itself: bool) -> str:
    return "0" if itself and found.count else found.text("+.2f")


def _p(found: Estimate) -> str:
    if math.isnan(found.p_value):
        return NONE
    return "< 0.001" if found.p_value < 1e-3 else f"{found.p_value:.3f}"


def _arrival(group: Group, target: float) -> list[str]:
    """Return round and bits at the target, or how many of the seeds reached it if not all did."""
    found = np.array([reached(run, target) for run in group.runs])
    arrived = int(np.isfinite(found[:, 0]).sum())
    if not arrived:
        return ["never", NONE]
    if arrived < len(found):
        return [f"{arrived} of {len(found)} seeds", NONE]
    return [f"{found[:, 0].mean():.0f}", bits(float(found[:, 1].mean()))]


def _last(group: Group, column: str, digits: int = 2) -> str:
    """Mean and interval of the last values of a column."""
    if (SCORES | MEASURES)[column].factor == 100:
        return group.estimate(column, 100).text(f".{digits}f")
    return group.estimate(column).text(".4g", ".2g")


def _best_bold(groups: Sequence[Group], column: str, digits: int) -> list[str]:
    """The last values of a column of one data set, the best bold; of time none is the best."""
    means = [group.estimate(column).mean for group in groups]
    finite = [mean for mean in means if not math.isnan(mean)]
    best = (max if larger_is_better(column) else min)(finite, default=math.nan)
    texts = [_last(group, column, digits) for group in groups]
    if column == "simulated_seconds":
        return texts
    return [f"**{text}**" if m == best else text for m, text in zip(means, texts, strict=True)]


def _meaning(groups: Sequence[Group], columns: Sequence[str]) -> str:
    """Say what ± is, where a cell of these columns has one."""
    several = any(group.estimate(column).count > 1 for group in groups for column in columns)
    return f" {MEANING}" if several else ""


def _cost(group: Group) -> list[str]:
    rounds = [run.rounds for run in group.runs if run.rounds is not None]
    span = "-".join(map(str, sorted({min(rounds), max(rounds)}))) if rounds else NONE
    seconds = group.seconds()
    sent = [group.mean_and_deviation(column)[0] for column in ("up_bits", "down_bits")]
    shown = NONE if math.isnan(seconds) else f"{seconds:.1f}"
    return [span if group.finished else f"{span} *", shown, *map(bits, sent)]


def bits(value: float) -> str:
    """Return a number of bits with its unit."""
    if math.isnan(value):
        return NONE
    unit, prefix = bit_prefix(value)
    return f"{value / unit:.3g} {prefix}bit"


def bit_prefix(value: float) -> tuple[float, str]:
    """Return the unit in which ``value`` is a number from 1 to 999, and its prefix."""
    power = int(math.log10(value) // 3) if value >= 1 else 0
    power = min(power, len(PREFIXES) - 1)
    return 1000.0**power, PREFIXES[power]
