"""Tables in the layout of Table 2 of Marfoq et al. (2021): average accuracy / bottom decile."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence

from rich.table import Table

from mpifed.report import consensus, measures
from mpifed.report.columns import MEASURES
from mpifed.report.groups import Group
from mpifed.report.intervals import MEANING
from mpifed.report.units import bits
from mpifed.report.words import in_words

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
    if measures.measured(groups):
        header = measures.header(groups)
        lines += [
            "",
            measures.CAPTION + _meaning(groups, measures.measured(groups)),
            "",
            *markdown_header(header, texts=2),
        ]
        lines += [markdown_row(row) for row in measures.rows(groups)]
    distances = consensus.rows(groups)
    if distances:
        lines += ["", consensus.CAPTION, "", *markdown_header(consensus.HEADER, texts=2)]
        lines += [markdown_row(row) for row in distances]
    lines += ["", *(f"* {note}" for note in notes)] if notes else []
    return "\n".join(lines) + "\n"


def csv_text(groups: Sequence[Group]) -> str:
    """Return the table as CSV, one row per data set and method."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = measures.measured(groups)
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
            *consensus.COLUMNS,
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
            *consensus.numbers(group),
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
    columns = measures.measured(groups)[:1]  # a terminal has no room for more
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
            *(measures.cell(group, column) for column in columns),
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
    return scored or not measures.measured(groups)


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
