"""The report as one HTML page: tables, curves, mixtures, settings, logs, and the commands."""

from __future__ import annotations

import base64
import html
import io
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import yaml

from mpifed.errors import InputError
from mpifed.io.text import is_count, is_number, read_text
from mpifed.report import tables
from mpifed.report.charts import BITS, CLOCK, ROUNDS, SECONDS, Chart, looks_of
from mpifed.report.drawing import ON_PAGE, svg_panels, swatch
from mpifed.report.groups import Group, leaves
from mpifed.report.names import NAMES, in_words, key_in_words, method_title
from mpifed.report.runs import ACCURACY, DECILE, Run
from mpifed.report.tables import NONE, Table
from mpifed.results.results import read_clients, read_summary

X_NAMES = {ROUNDS: "rounds", BITS: "bits sent", SECONDS: "wall time", CLOCK: "simulated time"}
APART = ("difference", "clients", "consensus-distance")  # charts in sections of their own
PHASES = ("startup", "data", "local", "exchange", "evaluation", "checkpoint")
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
HEAT = 200  # clients in a heat map, at most
LOG_LINES, LONGEST = 60, 400  # of a log, from its end; characters of a line
LARGEST_LOG = 16 << 20  # bytes

Tabulate = Callable[[Table], str]


def page(
    groups: Sequence[Group],
    notes: Sequence[str],
    shown: Mapping[str, Sequence[Chart]],
    against: str | None = None,
    words: Sequence[str] = (),
) -> str:
    """Return the report of groups, with their charts, as a document that needs no other file."""
    import matplotlib

    looks = looks_of(groups)
    numbers = {method: index for index, method in enumerate(looks)}
    with matplotlib.rc_context(ON_PAGE.style()):
        swatches = "".join(swatch(look, f"k{numbers[method]}") for method, look in looks.items())
        drawn = {
            data: [(c, _figure(c, numbers, f"d{place}-{c.name}")) for c in found]
            for place, (data, found) in enumerate(shown.items())
        }
    use = '<svg class="swatch" aria-hidden="true"><use href="#k{}"/></svg>'
    lines = {group.words[1]: use.format(numbers[group.method]) for group in groups}

    def tabulate(table: Table) -> str:
        return _table(table, lines) if table.rows else ""

    def figures(*columns: str) -> str:
        """The charts of some columns, under the name of their data set where there are several."""
        parts = {
            d: "".join(f for c, f in found if c.column in columns) for d, found in drawn.items()
        }
        title = "<h3>{}</h3>" if len(drawn) > 1 else ""
        return "".join(title.format(_text(in_words(d))) + part for d, part in parts.items() if part)

    curves = {c.column: c for found in shown.values() for c in found if c.column not in APART}
    runs = [run for group in groups for run in group.runs]
    scores = [ACCURACY, DECILE, "train_loss", *tables.measured(groups)]
    scores = [column for column in scores if any(g.estimate(column).count for g in groups)]
    summaries = {run.path: _summary(run) for run in runs}
    logs = {run.path: _log(run.path / "log.txt") for run in runs}
    mixtures = "".join(map(_heat_map, groups))
    sections = {
        "Results": tabulate(tables.results(groups, scores, digits=2)),
        "Paired differences": _paired(groups, against, tabulate) + figures("difference"),
        "Curves": (_controls(shown, lines, numbers, groups) if curves else "") + figures(*curves),
        "Distribution over clients": figures("clients") + tabulate(_quantiles(groups)),
        "Mixtures of clients": _heat_scale() + mixtures if mixtures else "",
        "Consensus": figures("consensus-distance") + tabulate(tables.consensus(groups)),
        "Settings": _settings(groups, tabulate),
        "Time": tabulate(_times(groups, summaries)),
        "Warnings": _warnings(logs, notes),
        "Runs": _runs(groups, summaries, logs) + _own_command(words),
    }
    sections = {name: part for name, part in sections.items() if part}
    body = "\n".join(
        f'<section id="{name.split()[0].lower()}"><h2>{name}</h2>\n{part}\n</section>'
        for name, part in sections.items()
    )
    links = "".join(f'<a href="#{name.split()[0].lower()}">{name}</a>' for name in sections)
    return Template(_own_file("page.html")).substitute(
        title=_text(_title(groups)),
        style=_own_file("page.css"),
        counts=f"Runs: {len(runs)}, methods: {len(looks)}, data sets: {len(shown)}.",
        links=links,
        swatches=swatches,
        sections=body,
        script=_own_file("page.js"),
    )


def _own_file(name: str) -> str:
    return (files("mpifed.report") / name).read_text(encoding="utf-8")


def _title(groups: Sequence[Group]) -> str:
    methods = list(dict.fromkeys(method_title(group.runs[0].config) for group in groups))
    more = [f"{len(methods) - 3} more"] if len(methods) > 4 else methods[3:]
    *front, last = methods[:3] + more
    datas = list(dict.fromkeys(in_words(group.data) for group in groups))
    listed = f"{', '.join(front)} and {last}" if front else last
    return f"{listed} on {datas[0] if len(datas) == 1 else f'{len(datas)} data sets'}"


def _text(words: object) -> str:
    """Return text for HTML, also within a quoted attribute."""
    return html.escape(str(words), quote=True)


def _table(table: Table, lines: Mapping[str, str]) -> str:
    """Return a table as HTML, each method with a piece of its line."""

    def cell(index: int, text: str, tag: str) -> str:
        shown = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", _text(text))
        shown = re.sub(r"`(.+?)`", r"<code>\1</code>", shown)
        number = ' class="n"' if index >= table.texts else ""
        return f"<{tag}{number}>{lines.get(text, '')}{shown}</{tag}>"

    head, *rows = (
        "".join(cell(index, text, tag) for index, text in enumerate(row))
        for tag, row in [("th", table.header), *(("td", row) for row in table.rows)]
    )
    caption = f"<caption>{_text(table.caption)}</caption>" if table.caption else ""
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="table"><table>{caption}<thead>'
        f"<tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>"
    )


def _details(summary: str, content: str) -> str:
    """Return content that opens by its summary, both HTML."""
    return f"<details><summary>{summary}</summary>{content}</details>"


def _figure(chart: Chart, numbers: Mapping[str, int], front: str) -> str:
    """Return a chart; one of the curves has the data set with its column, and its axis."""
    data = front.removesuffix(chart.name) + chart.column
    switched = f' data-column="{_text(data)}" data-x="{chart.x}"'
    panels = svg_panels(chart, numbers, front)
    return (
        f'<figure class="chart{" many" * (len(panels) > 1)}"'
        f"{'' if chart.column in APART else switched}><figcaption><b>{_text(chart.title)}</b> "
        f'<span>{_text(chart.subtitle)}</span></figcaption><div class="panels">'
        + "\n".join(panels)
        + "</div></figure>\n"
    )


def _controls(
    shown: Mapping[str, Sequence[Chart]],
    lines: Mapping[str, str],
    numbers: Mapping[str, int],
    groups: Sequence[Group],
) -> str:
    """The choice of the horizontal axis, and a button for each method that hides its lines."""
    axes = {c.x for found in shown.values() for c in found if c.column not in APART}
    radios = "".join(
        f'<label><input type="radio" name="x" value="{x}"{" checked" * (x == ROUNDS)}> '
        f"{name}</label>"
        for x, name in X_NAMES.items()
        if x in axes
    )
    names = {group.method: group.words[1] for group in groups}
    buttons = "".join(
        f'<button type="button" class="toggle" data-s="{numbers[method]}" aria-pressed="true">'
        f"{lines[name]}{_text(name)}</button>"
        for method, name in names.items()
    )
    return (
        f'<div class="controls"><fieldset class="x"><legend>Against</legend>{radios}</fieldset>'
        f'<div class="legend" role="group" aria-label="Show or hide methods">{buttons}'
        '<button type="button" class="all">Show all</button></div></div>'
        '<p class="about">Means over seeds; bands are one standard deviation over seeds. '
        "The dotted end of a line repeats its last value. Of a long curve the least and the "
        'largest value of each of equally long parts are drawn.<span class="screen"> Point at a '
        "panel, or select it and use the arrow keys, to read values.</span></p>"
    )


def _paired(groups: Sequence[Group], against: str | None, tabulate: Tabulate) -> str:
    """The differences from a method, else from the most accurate one."""
    means = {group.method: group.estimate(ACCURACY).mean for group in groups}
    known = {method: mean for method, mean in means.items() if mean == mean}
    if len(known) < 2:
        return ""
    against = against or max(known, key=lambda method: known[method])
    return tabulate(tables.comparison(groups, against, None))


def _quantiles(groups: Sequence[Group]) -> Table:
    """The quantiles of the clients' test accuracies."""
    rows = []
    for group in groups:
        accuracies = group.client_accuracies()
        if accuracies is not None:
            found = [*np.quantile(accuracies, QUANTILES), accuracies.std()]
            rows.append([*group.words, str(len(accuracies)), *(f"{100 * q:.1f}" for q in found)])
    names = ["Least", *(f"{100 * q:g} %" for q in QUANTILES[1:-1]), "Largest"]
    caption = "Test accuracies of the clients in per cent, clients of all seeds together."
    header = ["Data", "Method", "Clients × seeds", *names, "Standard deviation"]
    return Table(header, rows, 2, caption)


def _heat_map(group: Group) -> str:
    """The mixtures of the clients of a group's first run, as a picture."""
    run = group.runs[0]
    results = read_clients(run.path / "clients.h5").results if run.finished else {}
    mixture = results.get("mixture")
    if mixture is None or mixture.ndim != 2 or mixture.shape[1] < 2 or not len(mixture):
        return ""
    count, components = mixture.shape
    largest = mixture.argmax(axis=1)
    order = np.lexsort((-mixture[np.arange(count), largest], largest))
    about = f"{', '.join(group.words[::-1])}, seed {run.seed}: {count} clients, "
    about += f"{components} components"
    if count > HEAT:
        order = order[np.linspace(0, count - 1, HEAT).astype(int)]
        about += f"; {HEAT} of the clients, evenly chosen"
    weights = mixture[order].T.astype(float)  # (components, clients)
    values = json.dumps(np.round(100 * np.nan_to_num(weights)).astype(int).tolist())
    clients = json.dumps(results["client_id"][order].tolist())
    counts = np.bincount(largest, minlength=components).tolist()
    words = f"{about}; clients by their largest component: {', '.join(map(str, counts))}"
    rows = "".join(f"<span>{k + 1}</span>" for k in range(components))
    return (
        f'<figure class="heat"><figcaption>{_text(about)}</figcaption>'
        f'<div class="map"><div class="rows" aria-hidden="true">{rows}</div>'
        f'<img src="{_pixels(weights)}" alt="{_text(words)}" tabindex="0" '
        f"data-values='{values}' data-clients='{clients}' "
        f'style="height:{22 * components}px"></div></figure>'
    )


def _heat_scale() -> str:
    scale = _pixels(np.linspace(0, 1, 32)[None])
    return (
        '<p class="key">Rows are components, columns are clients, ordered by their largest '
        f'component. Weight: 0 <img src="{scale}" alt="from white to dark blue"> 1</p>'
    )


def _pixels(weights: np.ndarray) -> str:
    """Weights as a picture in a URL, a pixel each: the darker, the larger."""
    from matplotlib.image import imsave

    file = io.BytesIO()
    imsave(file, weights, vmin=0, vmax=1, cmap="Blues", format="png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def _settings(groups: Sequence[Group], tabulate: Tabulate) -> str:
    """The settings in which runs differ, a column for each method, and those that all share."""
    flat = [[leaves(run.config) for run in group.runs] for group in groups]
    apart, alike = [], []
    for key in dict.fromkeys(key for runs in flat for said in runs for key in said):
        values = [list(dict.fromkeys(_value(said.get(key)) for said in runs)) for runs in flat]
        name = f"{key_in_words(key)} `{key}`"
        if len(set().union(*values)) > 1:
            apart.append([name, *map(", ".join, values)])
        else:
            alike.append([name, *values[0]])
    methods = [group.words[1] for group in groups]
    differing = tabulate(Table(["Setting", *methods], apart, texts=99))
    shared = tabulate(Table(["Setting", "Value"], alike))
    return (differing or "<p>All runs have the same settings.</p>") + (
        _details(f"{len(alike)} settings that all runs share", shared) if alike else ""
    )


def _value(value: str | None) -> str:
    return NONE if value is None else "none" if value == "null" else NAMES.get(value, value)


def _summary(run: Run) -> dict[str, Any]:
    path = run.path / "summary.json"
    return read_summary(path) if path.exists() else {}


def _times(groups: Sequence[Group], summaries: Mapping[Path, dict[str, Any]]) -> Table:
    """Where the wall time went, means over seeds."""
    rows = []
    for group in groups:
        about = [summaries[run.path] for run in group.runs]
        spent = [one["seconds"] for one in about if one.get("seconds")]
        if spent:
            phases = [float(np.mean([s.get(p, 0.0) for s in spent])) for p in ("total", *PHASES)]
            rest = max(0.0, phases[0] - sum(phases[1:]))
            ranks = sorted({one["ranks"] for one in about if is_count(one.get("ranks"))})
            memory = [one.get("peak_memory_bytes") for one in about]
            largest = max((value for value in memory if is_number(value)), default=0)
            cells = [f"{seconds:.2f}" for seconds in (*phases, rest)]
            shown = f"{largest / 2**20:.0f}" if largest else NONE
            rows.append([*group.words, ", ".join(map(str, ranks)) or NONE, *cells, shown])
    caption = (
        "Where the time went: wall time in seconds, means over the seeds that are finished. Memory "
        "is the largest of a rank."
    )
    header = ["Data", "Method", "Ranks", "total", *PHASES, "rest", "Memory (MiB)"]
    return Table(header, rows, 2, caption)


def _log(path: Path) -> list[str]:
    try:
        return [line[:LONGEST] for line in read_text(path, LARGEST_LOG).splitlines()]
    except InputError:  # a log is no result: a run without one is shown all the same
        return []


def _warns(line: str) -> bool:
    return line.lower().startswith("warning")


def _warnings(logs: Mapping[Path, Sequence[str]], notes: Sequence[str]) -> str:
    """Notes of the report, and warnings of the runs, each once."""
    paths: dict[str, list[Path]] = {}
    for path, lines in logs.items():
        for line in filter(_warns, lines):
            paths.setdefault(line, []).append(path)
    items = [_text(note) for note in notes]
    for line, found in paths.items():
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        items.append(f"{_text(line)} <small>({_text(found[0])}{more})</small>")
    listed = "".join(f"<li>{item}</li>" for item in items)
    return f'<ul class="warnings">{listed}</ul>' if items else "<p>No run warned.</p>"


def _runs(
    groups: Sequence[Group],
    summaries: Mapping[Path, dict[str, Any]],
    logs: Mapping[Path, Sequence[str]],
) -> str:
    """The commands that repeat each run, its configuration and its log."""
    parts = []
    for group in groups:
        runs = (_run(run, summaries[run.path].get("ranks"), logs[run.path]) for run in group.runs)
        data, method = map(_text, group.words)
        parts.append(f"<h3>{method} <small>{data}</small></h3>{''.join(runs)}")
    return "".join(parts)


def _run(run: Run, ranks: object, log: Sequence[str]) -> str:
    mpi = f"mpirun -n {ranks} " if is_count(ranks) and ranks != 1 else ""
    config, again = shlex.quote(str(run.path / "config.yaml")), shlex.quote(f"{run.path}-again")
    parts = [_command(f"{mpi}python -m mpifed.run {config} --output {again}")]
    if run.finished:
        parts.append(_command(f"{mpi}python -m mpifed.verify {shlex.quote(str(run.path))}"))
    settings = yaml.safe_dump(json.loads(json.dumps(run.config, default=str)), sort_keys=False,
                              default_flow_style=None, width=110, allow_unicode=True)  # fmt: skip
    parts.append(_details("Settings", f"<pre>{_text(settings)}</pre>"))
    if log:
        lines = [f"<mark>{_text(x)}</mark>" if _warns(x) else _text(x) for x in log[-LOG_LINES:]]
        title = f"Log, the last {len(lines)} of {len(log)} lines"
        parts.append(_details(title, f"<pre>{chr(10).join(lines)}</pre>"))
    state = "finished" if run.finished else "diverged" if run.diverged else "not finished"
    return _details(f"<code>{_text(run.path)}</code> {state}", "".join(parts))


def _own_command(words: Sequence[str]) -> str:
    return f"<h3>This report</h3>{_command(shlex.join(words))}" if words else ""


def _command(words: str) -> str:
    """Return a command with a button that copies it."""
    button = '<button type="button" class="copy">Copy</button>'
    return f'<div class="command"><code>{_text(words)}</code>{button}</div>'
