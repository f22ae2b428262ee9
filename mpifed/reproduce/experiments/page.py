"""What came out, beside what was published, as a Markdown page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpifed.report.groups import estimate
from mpifed.report.tables import Bold
from mpifed.report.tables import Table as Markdown
from mpifed.reproduce.experiments.studies import Entry, PaperTable, Planned, Runs
from mpifed.results.results import read_clients, read_summary

# Above this p-value two methods tie.
LEVEL = 0.05

# What a run is measured by.
MEASURES = {
    "average": "average",
    "weighted": "average by n_t",
    "merged": "mean of all models",
    "p10": "bottom decile",
    "worst10": "worst tenth",
    "std": "deviation over clients",
    "train": "training",
    "unseen": "unseen clients",
    "unseen_train": "unseen, training",
    "bits": "Gbit",
    "seconds": "seconds",
    "rounds": "rounds",
}


def measured(run: Planned) -> dict[str, float]:
    """Return the measures of a finished run."""
    from mpifed.training.evaluation import bottom_decile, worst_tenth  # brings torch

    summary = read_summary(run.directory / "summary.json")
    clients = read_clients(run.directory / "clients.h5").results
    unseen = clients["unseen"].astype(bool)
    test, train = clients["test_accuracy"], clients["train_accuracy"]
    n_test, n_train = clients["n_test"], clients["n_train"]

    def mean(values: np.ndarray, weights: np.ndarray, among: np.ndarray) -> float:
        which = among & np.isfinite(values) & (weights > 0)
        return (
            100 * float(np.average(values[which], weights=weights[which]))
            if which.any()
            else math.nan
        )

    seen = ~unseen
    scored = test[seen & np.isfinite(test)]
    bits = [summary.get("up_bits"), summary.get("down_bits")]
    return {
        "average": mean(test, n_test, seen),
        "weighted": mean(test, n_train, seen),
        "merged": mean(clients.get("merged_test_accuracy", test * math.nan), n_test, seen),
        "p10": 100 * bottom_decile(scored) if len(scored) else math.nan,
        "worst10": 100 * worst_tenth(scored) if len(scored) else math.nan,
        "std": 100 * float(scored.std()) if len(scored) else math.nan,
        "train": mean(train, n_train, seen),
        "unseen": mean(test, n_test, unseen),
        "unseen_train": mean(train, n_train, unseen),
        "bits": sum(each or 0 for each in bits) / 1e9,
        "seconds": float(summary["seconds"]["total"]),
        "rounds": float(summary["rounds"]),
    }


@dataclass(frozen=True)
class Row:
    """A method's numbers, one for each seed that finished."""

    entry: Entry
    values: dict[str, np.ndarray]

    def mean(self, measure: str) -> float:
        """Return the mean over the seeds that finished, NaN if there are none."""
        return estimate(self.values[measure]).mean

    @property
    def runs(self) -> str:
        """How many seeds finished, and after how many rounds, such as ``3 x 200``."""
        rounds = self.values["rounds"]
        rounds = rounds[np.isfinite(rounds)]
        if not len(rounds):
            return "0"
        low, high = rounds.min(), rounds.max()
        return f"{len(rounds)} x {low:g}" + (f" to {high:g}" if low < high else "")

    def half_width(self, measure: str) -> float:
        """Return half the 95 % interval of the mean (Student's t), NaN for fewer than two seeds."""
        return estimate(self.values[measure]).half_width


def rows_of(table: PaperTable, runs: Runs) -> list[Row]:
    """Return the rows of a table from what is finished."""
    rows = []
    for entry in table.entries:
        scores = [measured(run) if run.finished else {} for run in runs[entry.label]]
        values = {
            name: np.array([each.get(name, math.nan) for each in scores]) for name in MEASURES
        }
        rows.append(Row(entry, values))
    return rows


def paired_p(row: Row, other: Row, measure: str) -> float:
    """Return the p-value of a paired t-test over the seeds that both have; NaN for fewer
    than two.
    """
    return estimate(row.values[measure] - other.values[measure]).p_value


def best_of(rows: Sequence[Row], measure: str) -> Row | None:
    """Return the best row if no other ties with it in a paired test; otherwise None."""
    having = [row for row in rows if math.isfinite(row.mean(measure))]
    if len(having) < 2:
        return None
    best = max(having, key=lambda row: row.mean(measure))
    others = [row for row in having if row is not best]
    return best if all(paired_p(best, row, measure) < LEVEL for row in others) else None


def table_text(table: PaperTable, rows: Sequence[Row]) -> str:
    """Return the Markdown table of some rows."""
    first = table.columns[0]
    bold = best_of(rows, first)
    reference = max(
        (row for row in rows if math.isfinite(row.mean(first))),
        key=lambda row: row.mean(first),
        default=None,
    )
    published = max((len(row.entry.published) for row in rows), default=0)
    heads = ["method", "runs"]
    for k, name in enumerate(table.columns):
        heads += [MEASURES[name], *(["paper"] if k < published else [])]
    heads += ["to the best", "p"]
    lines = []
    for row in rows:
        cells = [row.entry.label, row.runs]
        for k, name in enumerate(table.columns):
            text = _number(row.mean(name), row.half_width(name) if k == 0 else math.nan)
            cells.append(Bold(text) if row is bold and k == 0 else text)
            if k < published:
                has = k < len(row.entry.published)
                cells.append(f"{row.entry.published[k]:g}" if has else "")
        if reference is None or row is reference or not math.isfinite(row.mean(first)):
            cells += ["", ""]
        else:
            p = paired_p(row, reference, first)
            cells += [
                f"{row.mean(first) - reference.mean(first):+.2f}",
                "" if math.isnan(p) else f"{p:.2g}",
            ]
        lines.append(cells)
    return Markdown(heads, lines, texts=1).markdown().rstrip()


def tuned_text(table: PaperTable, tuned: Mapping[str, Mapping[str, Any]], source: str) -> str:
    """Return a sentence about the tuned values of a table's rows."""
    having: list[str] = []
    lacking: list[str] = []
    for entry in table.entries:
        values = {k: v for k, v in entry.chosen(tuned).items() if k not in entry.overrides}
        tuned_values = ", ".join(f"{key.split('.')[-1]} {value:g}" for key, value in values.items())
        (having if tuned_values else lacking).append(f"{entry.label} {tuned_values}".strip())
    if not having:
        return "No learning rate or penalty was tuned."
    others = f" Not tuned: {'; '.join(lacking)}." if lacking else ""
    return f"Values of {source}: {'; '.join(having)}.{others}"


def _number(value: float, half_width: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:.2f}" + (f" ± {half_width:.2f}" if math.isfinite(half_width) else "")


def write_page(
    path: Path,
    table: PaperTable,
    seeds: Sequence[int],
    parts: Mapping[str, str],
    command: str,
    failed: Mapping[str, str],
    missing: int = 0,
) -> None:
    """Write the page of a table."""
    lines = [f"# {table.title}", "", "```", f"$ {command}", "```", ""]
    for variant, text in parts.items():
        lines += [f"## {variant}", "", text, ""]
    explanation = (
        f"Means over seeds {', '.join(map(str, seeds))}, with half of the 95 % interval of the "
        "mean. p: paired t-test against the best row, over seeds. The best number is bold only if "
        f"every other row differs from it with p below {LEVEL:g}."
        if len(seeds) > 1
        else f"One run of each method, with seed {seeds[0]}: neither intervals nor tests."
    )
    lines += [f"{explanation} Accuracies in per cent. runs: seeds x rounds."]
    lines += ["", *(f"* {remark}" for remark in table.remarks)]
    if "seconds" in table.columns:
        lines.append("* Seconds are wall time, and depend on what else ran on the machine.")
    lines += [f"* `{directory}` failed: {reason}" for directory, reason in failed.items()]
    if missing:
        lines.append(f"* Runs that are not finished: {missing}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
