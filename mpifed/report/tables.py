"""Tables of a report, which are described once and rendered as Markdown, LaTeX, text or HTML.

The table of results has the layout of Table 2 of Marfoq et al. (2021). Others compare methods, give
the scores of clients, and measure the distance from consensus. Each form escapes by its own
rule what users have named.
"""

from __future__ import annotations

import csv
import html
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html.entities import codepoint2name
from operator import attrgetter

import numpy as np
from rich.cells import cell_len
from rich.table import Table as RichTable
from rich.text import Text

from mpifed.errors import InputError, printable
from mpifed.report.groups import (
    REACHED,
    SPREADS,
    Estimate,
    Group,
    contractions,
    estimate,
    last_differences,
    last_within,
    pairs,
    partner,
    reached,
)
from mpifed.report.names import in_words
from mpifed.report.runs import (
    ACCURACY,
    DECILE,
    DISTANCE,
    MEASURES,
    SCORES,
    Measure,
    larger_is_better,
    measures_in,
)
from mpifed.results.results import read_clients

CAPTION = (
    "Test accuracy in per cent: average over clients / bottom decile (the ⌈T/10⌉-th smallest of T "
    "clients)."
)
SENT = (
    "Sent is what all clients together would have sent up and down in the simulated federation; by "
    "gossip, both count the same messages."
)
SIMULATED = (
    "In simulated time a client's messages of a round share its link, unless network.link=per_path."
)
CONSENSUS = (
    "Consensus: the distance is (1/n) Σ ‖x_t − x̄‖² over clients, at the last evaluated round. "
    "Predicted is (1 − p)^(1/τ), an upper bound on the expected ratio of the distances of two "
    "rounds without training. Measured is (d_k/d_j)^(1/(k − j)), where j is the first evaluated "
    "round and k that with the least distance. Local steps add to the distance in every round, so "
    "that it stays above zero and the measured ratio exceeds the predicted one."
)
UNCORRECTED = "not corrected for the number of comparisons."
BETTER = f"Bold is better than every other method: p < 0.05 in the paired t-test, {UNCORRECTED}"
SURE = 0.05
CONDENSED = ("Data", "Seeds", "Pairs", "Rounds", "Ranks", "Clients × seeds")
WORST = 5  # clients in the table of the least accurate ones
WIDE = 1e4  # from this ratio of the largest to the least number on, a column has powers of ten
NONE = "–"
MOST_CLASSES = 20  # of which names are listed
FRAME = 3  # what a terminal's table adds to the width of a column
PREFIXES = ("", "k", "M", "G", "T", "P")
GREEK = "αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΦΨΩ"  # those that LaTeX and HTML call alike
# What LaTeX would read as a command, or its usual fonts lack. Behind a row's end, brackets and
# asterisks would be options.
IN_LATEX = str.maketrans(
    {mark: f"\\{mark}" for mark in "&%$#_{}"}
    | {mark: f"{{{mark}}}" for mark in "[]*"}
    | {mark: f"${mark}$" for mark in "<>|"}
    | {letter: f"$\\{codepoint2name[ord(letter)]}$" for letter in GREEK}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
       "±": r"$\pm$", "×": r"$\times$", "−": "$-$", "²": "$^2$", "⌈": r"$\lceil$",
       "⌉": r"$\rceil$", "–": "--"}
)  # fmt: skip


# What Markdown would read as code, a mark of emphasis, mathematics, a link, HTML or a new cell.
IN_MARKDOWN = re.compile(
    r"[`~$|]|\\(?=[!-/:-@\[-`{-~]|$)|(?<! )\*|\*(?! )|(?<![^\W_])_|_(?![^\W_])|(?<=\])\("
)
IN_HTML = re.compile(r"<(?=[A-Za-z/!?])|&(?=#?\w+;)")


class Bold(str):
    """A text that is bold."""


class Code(str):
    """A text that is code."""


# A text, or its parts.
Cell = str | tuple[str, ...]


def rendered(cell: Cell, escape: Callable[[str], str], bold: str = "{}", code: str = "{}") -> str:
    """Return a cell in a format, which says how texts are escaped and what is around some."""
    around = {Bold: bold, Code: code}
    parts = (cell,) if isinstance(cell, str) else cell
    return "".join(around.get(type(part), "{}").format(escape(str(part))) for part in parts)


def plain_text(cell: Cell) -> str:
    """Return a cell without its marks."""
    return rendered(cell, str)


def in_markdown(text: Cell) -> str:
    """Return a cell as Markdown."""
    return rendered(text, _in_markdown, "**{}**", "`{}`")


def _in_markdown(text: str) -> str:
    return IN_MARKDOWN.sub(r"\\\g<0>", IN_HTML.sub(lambda sign: html.escape(sign[0]), text))


@dataclass(frozen=True)
class Table:
    """Cells, the first ``texts`` of a row as words, all others as numbers aligned to the right."""

    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    texts: int = 2
    caption: Cell = ""

    def markdown(self) -> str:
        """Return the caption and the table as Markdown."""
        rule = ["---" if index < self.texts else "---:" for index in range(len(self.header))]
        head, *rows = (map(in_markdown, row) for row in (self.header, *self.rows))
        lines = [f"| {' | '.join(row)} |" for row in (head, rule, *rows)]
        caption = [in_markdown(self.caption), ""] if self.caption else []
        return "\n".join([*caption, *lines]) + "\n"

    def latex(self) -> str:
        """Return a ``table`` of LaTeX with the rules of the package booktabs."""
        head, *rows = (
            " & ".join(map(_in_latex, row)) + r" \\" for row in (self.header, *self.rows)
        )
        columns = "l" * self.texts + "r" * (len(self.header) - self.texts)
        lines = [
            r"% needs \usepackage{booktabs}", r"\begin{table}", r"\centering",
            rf"\caption{{{_in_latex(self.caption)}}}", rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule", head, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}", r"\end{table}",
        ]  # fmt: skip
        return "\n".join(lines) + "\n"

    def terminal(self, width: int) -> RichTable:
        """Return as many columns as ``width`` has room for, the texts always, without cut words."""
        wrapped, unwrapped = [], []  # columns with names wrapped, and not
        for name, *cells in zip(self.header, *self.rows, strict=True):
            plain = list(map(plain_text, cells))
            split = [word for text in (name, *plain) for word in text.split()]
            wrapped.append(max(map(cell_len, split), default=0))
            unwrapped.append(max([wrapped[-1], *map(cell_len, plain)]))
        sizes = wrapped[: self.texts] + unwrapped[self.texts :]
        ends = np.cumsum(sizes) + FRAME * np.arange(1, len(sizes) + 1) + 1
        n_columns = max(self.texts, int((ends <= width).sum()))
        spare = max(0, width - int(ends[n_columns - 1]))
        for k in reversed(range(self.texts)):
            widening = min(spare, unwrapped[k] - wrapped[k])
            sizes[k], spare = sizes[k] + widening, spare - widening
        left_out = ", ".join(self.header[n_columns:])
        caption = plain_text(self.caption)
        caption += f" A wider terminal also shows: {left_out}." * bool(left_out)
        table = RichTable(caption=Text(caption) if caption else None, caption_justify="left",
                          caption_style="")  # fmt: skip
        for k in range(n_columns):
            name = Text(self.header[k].replace(" ", "\n"))
            table.add_column(name, "", justify="left" if k < self.texts else "right",
                             width=sizes[k], overflow="fold")  # fmt: skip
        for row in self.rows:
            table.add_row(*map(_in_terminal, row[:n_columns]))
        return table

    def filled(self) -> Table:
        """Return the table without the columns that are dashes from top to bottom."""
        columns = [
            k for k in range(len(self.header))
            if k < self.texts or not self.rows or any(row[k] != NONE for row in self.rows)
        ]  # fmt: skip
        return self._of(columns)

    def condensed(self) -> Table:
        """Return the table with what all rows have in common in its caption, not in columns."""
        alike = [
            k
            for k, name in enumerate(self.header)
            if name in CONDENSED and len(self.rows) > 1 and len({row[k] for row in self.rows}) == 1
        ]
        common = [f"{self.header[k]}: {plain_text(self.rows[0][k])}." for k in alike]
        texts = self.texts - sum(k < self.texts for k in alike)
        caption = " ".join(filter(None, [plain_text(self.caption), *common]))
        condensed = self._of([k for k in range(len(self.header)) if k not in alike])
        return replace(condensed, texts=texts, caption=caption)

    def _of(self, columns: Sequence[int]) -> Table:
        rows = [[row[k] for k in columns] for row in self.rows]
        return replace(self, header=[self.header[k] for k in columns], rows=rows)


def _in_terminal(cell: Cell) -> Text:
    """Return a cell as text of which nothing is read as markup."""
    parts = (cell,) if isinstance(cell, str) else cell
    return Text.assemble(*((str(p), "bold" if isinstance(p, Bold) else "") for p in parts))


def _in_latex(cell: Cell) -> str:
    """Return a cell with all that is special to LaTeX escaped, and its bold parts bold."""

    def escape(text: str) -> str:
        return re.sub(r"(?<!\w)-(?=\d)", "−", text).translate(IN_LATEX)

    return rendered(cell, escape, r"\textbf{{{}}}", r"\texttt{{{}}}")


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


def _both(name: str, estimated: Estimate) -> dict[str, float]:
    return {name: estimated.mean, f"{name}_deviation": estimated.deviation}


def measures(groups: Sequence[Group]) -> dict[str, Measure]:
    """Return what the columns of runs are that have names: scores first, then ``MEASURES``."""
    runs = [run for group in groups for run in group.runs]
    configured = {name: each for run in runs for name, each in measures_in(run.config).items()}
    return {**SCORES, **configured, **MEASURES}


def measured(groups: Sequence[Group]) -> list[str]:
    """Return the columns of ``measures``, beside the first ones, in which any run has numbers."""
    runs = [run for group in groups for run in group.runs]
    return [
        column
        for column in measures(groups)
        if column not in SCORES and any(np.isfinite(run.metrics[column]).any() for run in runs)
    ]


def over_seeds(groups: Sequence[Group]) -> str:
    """Return the end of a caption, which names means where there are any."""
    return ", means over seeds" * any(len(group.runs) > 1 for group in groups)


def report_markdown(groups: Sequence[Group], notes: Sequence[str]) -> str:
    """Return ``table.md``."""
    tables = [by_data(groups)] if shows_accuracies(groups) else []
    tables += [results(groups, measured(groups), digits=2), consensus(groups)]
    tables += confusions(groups)
    texts = [table.markdown() for table in tables if table.rows]
    return "\n".join(texts + ["".join(f"* {_item(note)}\n" for note in notes)] * bool(notes))


def _item(note: str) -> str:
    """Return a note as the text of an item, which a path must not make a heading or a list."""
    return re.sub(r"^(?:\d+(?=[.)])|(?=[#>+-]))", r"\g<0>\\", in_markdown(note).strip())


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
    """Return the accuracies: data sets down, methods across."""
    scores = [_last(groups, column) for column in (ACCURACY, DECILE)]
    cells = zip(groups, *scores, strict=True)
    texts: dict[tuple[str, str], Cell] = {
        (group.data, group.method): (average, " / ", decile, " *" * (not group.finished))
        for group, average, decile in cells
    }
    methods = {group.method: group.words[1] for group in groups}
    rows = [
        [in_words(data), *(texts.get((data, method), NONE) for method in methods)]
        for data in dict.fromkeys(group.data for group in groups)
    ]
    caption = f"{CAPTION} {_meaning(scores, groups[0].spread)}".rstrip()
    return Table(["Data", *methods.values()], rows, 1, caption)


def results(groups: Sequence[Group], columns: Sequence[str], digits: int = 1) -> Table:
    """Return the last values of some columns and the costs, a row for each data set and method."""
    texts = [_last(groups, column, digits) for column in columns]
    sent = [[group.estimate(way).mean for way in ("up_bits", "down_bits")] for group in groups]
    unit, bits = in_bits(sent)
    rows = [
        [
            *group.words,
            str(len(group.runs)),
            *(cells[k] for cells in texts),
            *_cost(group),
            *bits[k],
        ]
        for k, group in enumerate(groups)
    ]
    names = measures(groups)
    header = ["Data", "Method", "Seeds", *(names[column].short for column in columns)]
    header += ["Rounds", "Wall time (s)", f"Sent up ({unit})", f"Sent down ({unit})"]
    timed = [SIMULATED] * ("simulated_seconds" in columns)
    values = f"Values of the last evaluated round{over_seeds(groups)}."
    caption = " ".join([values, SENT, *timed, _meaning(texts, groups[0].spread)]).rstrip()
    return Table(header, rows, 2, caption).filled()


def consensus(groups: Sequence[Group]) -> Table:
    """Return the distances from consensus with their predicted and measured contractions."""
    rows, numbers = [], []
    for group in groups:
        measured_rates = contractions(group)
        if not math.isnan(measured_rates[-1]):
            rates = [run.predicted for run in group.runs if run.predicted]
            p = estimate(np.array([rate["p"] for rate in rates])).mean
            tau = "-".join(map(str, sorted({int(rate["tau"]) for rate in rates}))) or NONE
            rows.append([*group.words, tau])
            numbers.append([p, *measured_rates])
    columns = zip(*map(aligned, zip(*numbers, strict=True)), strict=True)
    rows = [[*row[:2], p, row[2], *cells] for row, (p, *cells) in zip(rows, columns, strict=True)]
    header = ["Data", "Method", "p", "τ", "Predicted per round", "Measured per round", "Distance"]
    return Table(header, rows, 2, CONSENSUS).filled()


def by_client(groups: Sequence[Group]) -> Table:
    """Return the scores of each client, by its name: clients down, methods across."""
    column, factor, form = "test_loss", 1.0, ".4g"
    if shows_accuracies(groups):
        column, factor, form = ACCURACY, 100.0, ".1f"
    columns = {column: (factor, form, "")}
    counts: dict[tuple[str, str], list[str]] = {}
    scores: dict[tuple[str, str, str, str], list[float]] = {}
    classes: dict[str, str] = {}
    for group in groups:
        for run in filter(attrgetter("finished"), group.runs):
            clients = read_clients(run.path / "clients.h5")
            if clients.class_names:
                named = map(printable, clients.class_names[:MOST_CLASSES])
                classes[group.data] = ", ".join(named)
            names = clients.results.get("client_name", clients.results["client_id"]).astype(str)
            for score, measure in measures_in(run.config).items():
                if np.ndim(clients.results.get(score, 0)) == 1:
                    decimals = ".1f" if measure.percent else ".4g"
                    columns.setdefault(score, (measure.factor, decimals, measure.short))
            for k, name in enumerate(names.tolist()):
                sizes = [str(clients.results[size][k]) for size in ("n_train", "n_test")]
                counts.setdefault((group.data, name), sizes)
                for score, (scale, _, _) in columns.items():
                    values = scores.setdefault((group.data, name, group.method, score), [])
                    if score in clients.results:
                        values.append(scale * float(clients.results[score][k]))
    methods = {group.method: group.words[1] for group in groups}
    rows = []
    for (data, name), sizes in counts.items():
        texts = [
            estimate(np.array(scores.get((data, name, method, score), [])), groups[0].spread).text(
                decimals
            )
            for score, (_, decimals, _) in columns.items()
            for method in methods
        ]
        rows.append([in_words(data), printable(name), *sizes, *texts])
    what = "Test accuracies" if column == ACCURACY else "Test losses"
    percent = " in per cent" * (column == ACCURACY)
    caption = [f"{what} of the clients{percent}{over_seeds(groups)}."]
    caption += [f"Classes of {in_words(data)}: {names}." for data, names in classes.items()]
    caption.append(_meaning(rows, groups[0].spread))
    titles = [
        f"{title}, {method}" if title else method
        for _, _, title in columns.values()
        for method in methods.values()
    ]
    header = ["Data", "Client", "Training samples", "Test samples", *titles]
    return Table(header, rows, 2, " ".join(caption).rstrip())


def worst_clients(groups: Sequence[Group]) -> Table:
    """Return the least accurate clients of each method, the least accurate first."""
    rows = []
    for group in groups:
        scores: dict[str, list[float]] = {}
        for run in filter(attrgetter("finished"), group.runs):
            results = read_clients(run.path / "clients.h5").results
            # Without a name, a client is another one for each seed.
            seed = f" of seed {run.seed}" * (len(group.runs) > 1 and "client_name" not in results)
            names = results.get("client_name", results["client_id"]).astype(str).tolist()
            for name, accuracy in zip(names, results[ACCURACY].tolist(), strict=True):
                scores.setdefault(f"{printable(name)}{seed}", []).append(100 * accuracy)
        means = {name: float(np.mean(each)) for name, each in scores.items()}
        worst = sorted((n for n in means if math.isfinite(means[n])), key=means.__getitem__)[:WORST]
        if worst:
            cells: list[Cell] = [(f"{means[name]:.2f} ", Code(name)) for name in worst]
            rows.append([*group.words, *cells, *[NONE] * (WORST - len(worst))])
    header = ["Data", "Method", "Least accurate", "2nd", "3rd", "4th", "5th"]
    caption = "The least accurate clients: test accuracy in per cent, then the client."
    return Table(header, rows, 7, caption)


def confusions(groups: Sequence[Group]) -> list[Table]:
    """Return the confusion matrix of each method on each data set that has one."""
    return [table for group in groups for table in _confusion(group)]


def _confusion(group: Group) -> Iterator[Table]:
    """Yield how often a class was predicted as another, of all training clients and seeds."""
    counts, names = None, tuple[str, ...]()
    for run in filter(attrgetter("finished"), group.runs):
        clients = read_clients(run.path / "clients.h5")
        if "test_confusion" in clients.results:
            of_run = clients.results["test_confusion"][~clients.results["unseen"]].sum(axis=0)
            counts, names = of_run if counts is None else counts + of_run, clients.class_names
    if counts is None or len(counts) > MOST_CLASSES:
        return
    titles = [printable(name) for name in names] or [str(k) for k in range(len(counts))]
    rows = [
        [title, *(Bold(n) if k == j else str(n) for j, n in enumerate(row))]
        for k, (title, row) in enumerate(zip(titles, counts, strict=True))
    ]
    data, method = group.words
    caption = (
        f"Confusion matrix of {method} on {data}: true classes down, predicted ones across; test "
        f"samples of all clients{' and seeds' * (len(group.runs) > 1)}."
    )
    yield Table(["True", *titles], rows, 1, caption)


def comparison(groups: Sequence[Group], against: str | None, target: float | None) -> Table:
    """Return differences from a method in points, and where ``target`` was reached."""
    notes, header = [], ["Data", "Method", "Pairs"]
    if against is not None:
        name = next(group.words[1] for group in groups if group.method == against)
        notes.append(f"Test accuracy minus that of {name} with the same seed, in points.")
        header += ["Average (points)", "p", "Bottom decile (points)", "p"]
    if target is not None:
        notes.append(f"Where the average first was {100 * target:g} per cent{over_seeds(groups)}.")
        arrivals = [np.array([reached(run, target) for run in group.runs]) for group in groups]
        unit, sent = in_bits([[float(arrival[:, 1].mean())] for arrival in arrivals])
        header += ["Round", f"Sent up ({unit})", "Wall time (s)", "Simulated time (s)"]
    rows = []
    for k, group in enumerate(groups):
        other = partner(groups, group.data, against)
        row = [*group.words, NONE if other is None else str(len(pairs(group, other)))]
        for column in (ACCURACY, DECILE) if against is not None else ():
            difference = estimate(100 * _apart(group, other, column), group.spread)
            row += ["0", NONE] if group is other else [difference.text("+.2f"), p_text(difference)]
        if target is not None:
            seconds = [_plain(value, ".4g") for value in arrivals[k][:, 2:].mean(axis=0)]
            row += [_arrival(arrivals[k][:, 0]), *sent[k], *seconds]
        rows.append(row)
    meaning = _meaning(rows, groups[0].spread)
    if meaning:
        notes.insert(1, f"{meaning} p is two-sided, of the paired t-test, {UNCORRECTED}")
    return Table(header, rows, 2, " ".join(notes)).filled()


def comparison_csv(groups: Sequence[Group], against: str | None, target: float | None) -> str:
    """Return ``comparison.csv``, one row per data set and method."""
    rows = []
    for group in groups:
        other = partner(groups, group.data, against)
        row: dict[str, object] = {"data": group.data, "method": group.method}
        row["pairs"] = 0 if other is None else len(pairs(group, other))
        for column in (ACCURACY, DECILE):
            row |= _both(f"{column}_difference", estimate(_apart(group, other, column)))
        threshold = math.nan if target is None else target
        arrival = np.mean([reached(run, threshold) for run in group.runs], axis=0)
        row |= {"target": threshold, **dict(zip(REACHED, arrival.tolist(), strict=True))}
        rows.append(row)
    return csv_lines(rows)


def best_within(groups: Sequence[Group], limits: Mapping[str, float]) -> Table:
    """Return what methods had reached within limits, the best first; see ``last_within``."""
    scores: list[tuple[Group, np.ndarray]] = []
    for group in groups:
        of_runs = [last_within(run, limits) for run in group.runs]
        last = [values for values in of_runs if values is not None]
        if len(last) == len(of_runs):
            scaled = np.transpose(last * np.array([1, 1, 1, 1, 100, 100]))
            scores.append((group, np.array([estimate(column).mean for column in scaled])))
    limits_text = ", ".join(f"{key}={limit:g}" for key, limit in limits.items())
    if not scores:
        raise InputError(f"--within {limits_text} leaves no method of which every seed keeps it")
    scores.sort(key=lambda each: -np.nan_to_num(each[1][4], nan=-1))
    unit, bits = in_bits([[values[2]] for _, values in scores])
    forms = (".0f", ".0f", "", ".4g", ".1f", ".1f")
    rows = []
    for (group, values), sent in zip(scores, bits, strict=True):
        cells = [_plain(value, form) for value, form in zip(values, forms, strict=True)]
        rows.append([*group.words, str(len(group.runs)), *cells[:2], *sent, *cells[3:]])
    header = ["Data", "Method", "Seeds", "Degree", "Rounds", f"Sent ({unit})", "Time (s)"]
    header += ["Average (%)", "Bottom decile (%)"]
    means = over_seeds(groups)
    caption = f"The last evaluation within {limits_text}{means}, the most accurate first."
    return Table(header, rows, 2, caption).filled()


def _plain(value: float, form: str) -> str:
    return NONE if math.isnan(value) else format(value, form)


def _apart(group: Group, other: Group | None, column: str) -> np.ndarray:
    return np.zeros(0) if other is None else last_differences(group, other, column)


def p_text(estimated: Estimate) -> str:
    """Return a p-value as tables show it."""
    if math.isnan(estimated.p_value):
        return NONE
    return "< 0.001" if estimated.p_value < 1e-3 else f"{estimated.p_value:.3f}"


def _arrival(rounds: np.ndarray) -> str:
    """Return the mean round at the target, or how many of the seeds reached it if not all did."""
    arrived = int(np.isfinite(rounds).sum())
    if arrived < len(rounds):
        return f"{arrived} of {len(rounds)} seeds" if arrived else "never"
    return f"{rounds.mean():.0f}"


def _last(groups: Sequence[Group], column: str, digits: int = 1) -> list[str]:
    """The last values of a column, bold where the paired test says so."""
    measure = measures(groups)[column]
    estimates = [group.estimate(column, measure.factor) for group in groups]
    form = f".{digits}f" if measure.percent else common_form(
        [one.mean for one in estimates], [one.shown for one in estimates]
    )  # fmt: skip
    texts = [one.text(form) for one in estimates]
    return [
        Bold(text) if _better(group, groups, column) else text
        for group, text in zip(groups, texts, strict=True)
    ]


def _better(group: Group, groups: Sequence[Group], column: str) -> bool:
    """Return whether a group is better than each other one of its data; in training none is."""
    others = [other for other in groups if other.data == group.data and other is not group]
    undirected = column == "simulated_seconds" or measures(groups)[column].is_own
    if not others or undirected or column.startswith("train_"):
        return False
    sign = 1 if larger_is_better(column) else -1
    differences = (estimate(sign * last_differences(group, other, column)) for other in others)
    return all(one.mean > 0 and one.p_value < SURE for one in differences)


def _meaning(cells: Sequence[Sequence[str]], spread: str) -> str:
    """Say what ± and bold are, where a cell has them."""
    every = [cell for some in cells for cell in some]
    bold = any(isinstance(cell, Bold) for cell in every)
    return " ".join([SPREADS[spread]] * ("±" in " ".join(every)) + [BETTER] * bold)


def _cost(group: Group) -> list[str]:
    rounds = [run.rounds for run in group.runs if run.rounds is not None]
    span = "-".join(map(str, sorted({min(rounds), max(rounds)}))) if rounds else NONE
    seconds = NONE if math.isnan(group.seconds) else f"{group.seconds:.1f}"
    return [span if group.finished else f"{span} *", seconds]


def in_bits(rows: Sequence[Sequence[float]]) -> tuple[str, list[list[str]]]:
    """Return the unit that suits the largest of some numbers of bits, and all of them in it."""
    unit, prefix = bit_prefix(max((value for row in rows for value in row if value > 0), default=0))
    columns = [aligned([value / unit for value in c], 3) for c in zip(*rows, strict=True)]
    return f"{prefix}bit", [list(row) for row in zip(*columns, strict=True)]


def aligned(values: Sequence[float], digits: int = 4) -> list[str]:
    """Return the numbers of a column with the same number of decimals."""
    form = common_form(values, digits=digits)
    return [NONE if math.isnan(value) else format(value, form) for value in values]


def common_form(values: Sequence[float], spreads: Sequence[float] = (), digits: int = 4) -> str:
    """Return the form that gives numbers as many decimals, the largest ``digits`` digits in all.

    Spreads have at least two digits. Numbers that are too far apart have powers of ten.
    """
    sizes = [abs(value) for value in values if math.isfinite(value) and value]
    if not sizes:
        return ".4g"
    if max(sizes) >= 1e6 or max(sizes) > WIDE * min(sizes):
        return f".{digits - 1}e"
    if not spreads and all(value == round(value) for value in sizes):
        return ".0f"
    decimals = digits - 1 - math.floor(math.log10(max(sizes)))
    least = [1 - math.floor(math.log10(s)) for s in spreads if math.isfinite(s) and s > 0]
    return f".{min(max(1, decimals, min(least, default=0)), 8)}f"


def bit_prefix(value: float) -> tuple[float, str]:
    """Return the unit in which ``value`` is a number from 1 to 999, and its prefix."""
    power = int(math.log10(value) // 3) if value >= 1 else 0
    power = min(power, len(PREFIXES) - 1)
    return 1000.0**power, PREFIXES[power]
