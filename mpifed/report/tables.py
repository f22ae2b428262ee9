"""Tables of results in the layout of Table 2 of Marfoq et al. (2021), and of what else is measured.

A table is described once and rendered as Markdown, for a terminal, or as HTML (``page.py``).
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.markup import escape
from rich.table import Table as RichTable

from mpifed.report.groups import (
    MEANING,
    Estimate,
    Group,
    contractions,
    estimate,
    last_differences,
    pairs,
    partner,
    reached,
)
from mpifed.report.names import in_words
from mpifed.report.runs import ACCURACY, DECILE, DISTANCE, MEASURES, SCORES, larger_is_better

CAPTION = (
    "Test accuracy in per cent: average over clients / bottom decile (the ⌈T/10⌉-th smallest of T "
    "clients)."
)
SENT = (
    "Values of the last evaluated round, means over seeds. Sent is what all clients together would "
    "have sent up and down in the simulated federation."
)
CONSENSUS = (
    "Consensus: the distance is (1/n) Σ ‖x_t − x̄‖² over clients, at the last evaluated round. "
    "Predicted is (1 − p)^(1/τ), what a round leaves of it at most, on average, where clients only "
    "average. Measured is (d_k/d_j)^(1/(k − j)) from the first evaluated round j with a distance "
    "to the round k with the least. Local steps feed the distance in every round, so a run that "
    "trains comes to rest above zero, and measures more than is predicted."
)
NONE = "–"
BOLD = re.compile(r"\*\*(.+?)\*\*")
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
        rule = ["---" if index < self.texts else "---:" for index in range(len(self.header))]
        lines = [f"| {' | '.join(row)} |" for row in (self.header, rule, *self.rows)]
        return "\n".join([*([self.caption, ""] if self.caption else []), *lines]) + "\n"

    def terminal(self) -> RichTable:
        """Return the table for a terminal."""
        table = RichTable(caption=self.caption or None, caption_justify="left", caption_style="")
        for index, name in enumerate(self.header):
            text = index < self.texts
            table.add_column(name.replace(" ", "\n"), "", justify="left" if text else "right",
                             no_wrap=not text, overflow="fold")  # fmt: skip
        for row in self.rows:
            table.add_row(*(BOLD.sub(r"[bold]\1[/bold]", escape(cell)) for cell in row))
        return table


def csv_lines(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows as CSV; a float has ten digits, and one that is NaN is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(rows[0])
    for row in rows:
        writer.writerow(
            [_field(value) if isinstance(value, float) else value for value in row.values()]
        )
    return text.getvalue()


def _field(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.10g}"


def _both(name: str, found: Estimate) -> dict[str, float]:
    return {name: found.mean, f"{name}_deviation": found.deviation}


def measured(groups: Sequence[Group]) -> list[str]:
    """Return the columns of ``MEASURES`` in which any run has numbers."""
    runs = [run for group in groups for run in group.runs]
    return [
        column for column in MEASURES if any(np.isfinite(run.metrics[column]).any() for run in runs)
    ]


def report_markdown(groups: Sequence[Group], notes: Sequence[str]) -> str:
    """Return ``table.md``."""
    tables = [by_data(groups)] if shows_accuracies(groups) else []
    tables += [results(groups, measured(groups), digits=2), consensus(groups)]
    texts = [table.markdown() for table in tables if table.rows]
    return "\n".join(texts + ["".join(f"* {note}\n" for note in notes)] * bool(notes))


def report_csv(groups: Sequence[Group]) -> str:
    """Return ``table.csv``, one row per data set and method."""
    rows: list[dict[str, object]] = []
    for group in groups:
        rounds = [run.rounds for run in group.runs if run.rounds is not None]
        row: dict[str, object] = {"data": group.data, "method": group.method}
        row |= {"seeds": len(group.runs), "finished": "true" if group.finished else "false"}
        row["rounds"] = min(rounds, default="")
        for column in (ACCURACY, DECILE):
            row |= _both(column, group.estimate(column))
        row["seconds"] = group.seconds
        row |= {column: group.estimate(column).mean for column in ("up_bits", "down_bits")}
        names = ("predicted_contraction", "measured_contraction", DISTANCE)
        row |= zip(names, contractions(group), strict=True)
        for column in measured(groups):
            row |= _both(column, group.estimate(column))
        rows.append(row)
    return csv_lines(rows)


def shows_accuracies(groups: Sequence[Group]) -> bool:
    """Return whether there are accuracies, or nothing else to show."""
    return any(group.estimate(ACCURACY).count for group in groups) or not measured(groups)


def by_data(groups: Sequence[Group]) -> Table:
    """Return the accuracies: data sets down, methods across, the best of each row bold."""
    cells = zip(groups, _last(groups, ACCURACY), _last(groups, DECILE), strict=True)
    found = {
        (group.data, group.method): f"{average} / {decile}" + " *" * (not group.finished)
        for group, average, decile in cells
    }
    methods = {group.method: group.words[1] for group in groups}
    rows = [
        [in_words(data), *(found.get((data, method), NONE) for method in methods)]
        for data in dict.fromkeys(group.data for group in groups)
    ]
    caption = CAPTION + _meaning(groups, [ACCURACY, DECILE])
    return Table(["Data", *methods.values()], rows, 1, caption)


def results(groups: Sequence[Group], columns: Sequence[str], digits: int = 1) -> Table:
    """Return the last values of some columns and the costs, a row for each data set and method."""
    texts = [_last(groups, column, digits) for column in columns]
    rows = [
        [*group.words, str(len(group.runs)), *(cells[k] for cells in texts), *_cost(group)]
        for k, group in enumerate(groups)
    ]
    known = SCORES | MEASURES
    header = ["Data", "Method", "Seeds", *(known[column].short for column in columns)]
    header += ["Rounds", "Seconds", "Sent up", "Sent down"]
    return Table(header, rows, 2, SENT + _meaning(groups, columns))


def consensus(groups: Sequence[Group]) -> Table:
    """Return the distances from consensus with their predicted and measured contractions."""
    rows = []
    for group in groups:
        found = contractions(group)
        if not math.isnan(found[-1]):
            rates = [run.predicted for run in group.runs if run.predicted]
            p = estimate(np.array([rate["p"] for rate in rates])).mean
            tau = "-".join(map(str, sorted({int(rate["tau"]) for rate in rates}))) or NONE
            shown = [NONE if math.isnan(value) else f"{value:.4g}" for value in (p, *found)]
            rows.append([*group.words, shown[0], tau, *shown[1:]])
    header = ["Data", "Method", "p", "τ", "Predicted per round", "Measured per round", "Distance"]
    return Table(header, rows, 2, CONSENSUS)


def comparison(groups: Sequence[Group], against: str | None, target: float | None) -> Table:
    """Return differences from a method in points, and where ``target`` was reached."""
    notes, header = [], ["Data", "Method", "Pairs"]
    if against is not None:
        name = next(group.words[1] for group in groups if group.method == against)
        notes.append(f"Test accuracy minus that of {name} with the same seed, in points. {MEANING}")
        notes.append("p is two-sided, of the paired t-test, not corrected.")
        header += ["Average", "p", "Bottom decile", "p"]
    if target is not None:
        notes.append(f"Where the average first was {100 * target:g} per cent, mean over seeds.")
        header += ["Round", "Sent up"]
    rows = []
    for group in groups:
        other = partner(groups, group.data, against)
        row = [*group.words, NONE if other is None else str(len(pairs(group, other)))]
        for column in (ACCURACY, DECILE) if against is not None else ():
            found = estimate(100 * _apart(group, other, column))
            row += ["0", NONE] if group is other else [found.text("+.2f"), _p(found)]
        rows.append([*row, *([] if target is None else _arrival(group, target))])
    return Table(header, rows, 2, " ".join(notes))


def comparison_csv(groups: Sequence[Group], against: str | None, target: float | None) -> str:
    """Return ``comparison.csv``, one row per data set and method."""
    rows = []
    for group in groups:
        other = partner(groups, group.data, against)
        row: dict[str, object] = {"data": group.data, "method": group.method}
        row["pairs"] = 0 if other is None else len(pairs(group, other))
        for column in (ACCURACY, DECILE):
            row |= _both(f"{column}_difference", estimate(_apart(group, other, column)))
        wanted = math.nan if target is None else target
        arrival = np.mean([reached(run, wanted) for run in group.runs], axis=0)
        row |= {"target": wanted, "round": float(arrival[0]), "up_bits": float(arrival[1])}
        rows.append(row)
    return csv_lines(rows)


def _apart(group: Group, other: Group | None, column: str) -> np.ndarray:
    return np.zeros(0) if other is None else last_differences(group, other, column)


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


def _last(groups: Sequence[Group], column: str, digits: int = 1) -> list[str]:
    """The last values of a column, the best of each data set bold; of time none is the best."""
    percent = (SCORES | MEASURES)[column].percent
    better = max if larger_is_better(column) else min
    found = [group.estimate(column, 100.0 if percent else 1.0) for group in groups]
    best: dict[str, float] = {}
    for group, one in zip(groups, found, strict=True):
        if one.count and column != "simulated_seconds":
            best[group.data] = better(best.get(group.data, one.mean), one.mean)
    texts = [one.text(f".{digits}f") if percent else one.text(".4g", ".2g") for one in found]
    return [
        f"**{text}**" if one.mean == best.get(group.data) else text
        for group, one, text in zip(groups, found, texts, strict=True)
    ]


def _meaning(groups: Sequence[Group], columns: Sequence[str]) -> str:
    """Say what ± is, where a cell of these columns has one."""
    several = any(group.estimate(column).count > 1 for group in groups for column in columns)
    return f" {MEANING}" if several else ""


def _cost(group: Group) -> list[str]:
    rounds = [run.rounds for run in group.runs if run.rounds is not None]
    span = "-".join(map(str, sorted({min(rounds), max(rounds)}))) if rounds else NONE
    seconds = NONE if math.isnan(group.seconds) else f"{group.seconds:.1f}"
    sent = [bits(group.estimate(column).mean) for column in ("up_bits", "down_bits")]
    return [span if group.finished else f"{span} *", seconds, *sent]


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
