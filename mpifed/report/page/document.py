"""The whole page."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from importlib.resources import files

from mpifed.report.charts import BITS, CLOCK, ROUNDS, SECONDS, Chart, Drawn, charts
from mpifed.report.groups import Group
from mpifed.report.names import in_words, method_title
from mpifed.report.page import mixtures, results, runs
from mpifed.report.page.markup import details, section, text
from mpifed.report.page.svg import most_points, panels
from mpifed.report.tables import partner

# What a browser may load for the page: nothing beside the page itself.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"

X_NAMES = {ROUNDS: "rounds", BITS: "bits sent", SECONDS: "wall time", CLOCK: "simulated time"}
ONE = 3  # from more runs on, they are listed closed


def page(
    groups: Sequence[Group],
    notes: Sequence[str],
    how: Drawn,
    against: str | None = None,
    words: Sequence[str] = (),
) -> str:
    """Return the report as one HTML document that needs no other file."""
    every = [run for group in groups for run in group.runs]
    first = {group.runs[0].path for group in groups}
    found = {run.path: runs.read_details(run, run.path in first) for run in every}
    numbers = {method: k for k, method in enumerate(dict.fromkeys(g.method for g in groups))}
    datas = list(dict.fromkeys(group.data for group in groups))
    by_data = {data: [group for group in groups if group.data == data] for data in datas}
    others = {data: None if against is None else partner(groups, data, against) for data in datas}
    drawn = {data: charts(by_data[data], how, others[data]) for data in datas}
    place = {data: index for index, data in enumerate(datas)}
    curves = [chart for data in datas for chart in drawn[data] if _is_curve(chart)]

    def each(content: dict[str, str]) -> str:
        """The content of every data set, under its name where there are several."""
        shown = {data: part for data, part in content.items() if part}
        named = len(datas) > 1
        return "".join(
            (f"<h3>{text(in_words(data))}</h3>" if named else "") + p for data, p in shown.items()
        )

    def pictures(data: str, *columns: str) -> str:
        chosen = [chart for chart in drawn[data] if chart.column in columns]
        return _figures(chosen, numbers, place[data])

    heat = {
        data: "".join(
            mixtures.heat_map(group, found[group.runs[0].path], how) for group in by_data[data]
        )
        for data in datas
    }
    differ = {data: results.differences(by_data[data], how, others[data]) for data in datas}
    sections = {
        "results": ("Results", each({d: results.last_values(by_data[d], how) for d in datas})),
        "differences": (
            "Paired differences",
            each({d: differ[d] + pictures(d, "difference") for d in datas}),
        ),
        "curves": (
            "Curves",
            _controls(groups, how, numbers, curves)
            + each(
                {
                    d: _figures([c for c in drawn[d] if _is_curve(c)], numbers, place[d])
                    for d in datas
                }
            ),
        ),
        "clients": (
            "Distribution over clients",
            each({d: pictures(d, "clients") + mixtures.quantiles(by_data[d], how) for d in datas}),
        ),
        "mixtures": (
            "Mixtures of clients",
            mixtures.legend() + each(heat) if any(heat.values()) else "",
        ),
        "consensus": (
            "Consensus",
            each({d: pictures(d, "consensus-distance") for d in datas}) + results.distances(groups),
        ),
        "settings": ("Settings", results.settings(groups, how)),
        "time": ("Where the time went", runs.times(groups, found, how)),
        "log": ("Warnings", runs.warnings(list(found.values()), notes)),
        "runs": ("Runs and the commands that repeat them", _of_runs(groups, found, how, words)),
    }
    sections = {name: part for name, part in sections.items() if part[1]}
    links = "".join(f'<a href="#{name}">{title}</a>' for name, (title, _) in sections.items())
    body = "\n".join(section(name, title, content) for name, (title, content) in sections.items())
    title = _title(groups)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{text(title)}</title>
<link rel="icon" href="data:,">
<style>
{_own_file("page.css")}</style>
</head>
<body>
<header><h1>{text(title)}</h1>
<p>{text(_counts(groups, datas))}</p>
<nav aria-label="Sections">{links}</nav></header>
<main>
{body}
</main>
<div id="readout" role="status" aria-live="polite" hidden></div>
<script>
{_own_file("page.js")}</script>
</body>
</html>
"""


def _own_file(name: str) -> str:
    return (files("mpifed.report.page") / name).read_text(encoding="utf-8")


def _title(groups: Sequence[Group]) -> str:
    methods = list(dict.fromkeys(method_title(group.runs[0].config) for group in groups))
    shown = methods if len(methods) <= 4 else [*methods[:3], f"{len(methods) - 3} more"]
    listed = shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
    datas = list(dict.fromkeys(in_words(group.data) for group in groups))
    return f"{listed} on {datas[0] if len(datas) == 1 else f'{len(datas)} data sets'}"


def _counts(groups: Sequence[Group], datas: Sequence[str]) -> str:
    count = sum(len(group.runs) for group in groups)
    methods = len({group.method for group in groups})
    parts = [f"{count} run{'s' * (count > 1)}", f"{methods} method{'s' * (methods > 1)}"]
    return ", ".join([*parts, f"{len(datas)} data set{'s' * (len(datas) > 1)}"]) + "."


def _is_curve(chart: Chart) -> bool:
    return bool(chart.x) and chart.column not in ("difference", "consensus-distance")


def _controls(
    groups: Sequence[Group], how: Drawn, numbers: dict[str, int], curves: Sequence[Chart]
) -> str:
    """The choice of the horizontal axis, and a button for each method that hides its lines."""
    if not curves:
        return ""
    axes = [x for x in X_NAMES if any(chart.x == x for chart in curves)]
    radios = "".join(
        f'<label><input type="radio" name="x" value="{x}"{" checked" * (x == ROUNDS)}> '
        f"{X_NAMES[x]}</label>"
        for x in axes
    )
    named = {numbers[group.method]: results.named(group, how) for group in reversed(groups)}
    buttons = "".join(
        f'<button type="button" class="toggle" data-s="{k}" aria-pressed="true">{named[k]}</button>'
        for k in sorted(named)
    )
    drawn, points = max((most_points(chart) for chart in curves), default=(0, 0))
    thinned = (
        f" Curves are thinned to what a screen shows: of {drawn} points {points} are drawn, the "
        "least and the largest of each of equally long parts."
        if points < drawn
        else ""
    )
    bands = (
        " Bands, or bars where more than two bands would lie on each other, are one standard "
        "deviation over seeds."
        if any(line.band.any() for chart in curves for line in chart.lines)
        else ""
    )
    return (
        f'<div class="controls"><fieldset class="x"><legend>Against</legend>{radios}</fieldset>'
        f'<div class="legend" role="group" aria-label="Show or hide methods">{buttons}'
        '<button type="button" class="all">Show all</button></div></div>'
        f'<p class="about">Means over seeds.{bands} The dotted end of a line repeats its last '
        f'value.{thinned}<span class="screen"> Point at a panel, or select it and use the arrow '
        "keys, to read values.</span></p>"
    )


def _figures(shown: Sequence[Chart], numbers: dict[str, int], data: int) -> str:
    return "\n".join(_figure(chart, numbers, data) for chart in shown)


def _figure(chart: Chart, numbers: dict[str, int], data: int) -> str:
    drawn = panels(chart, numbers)
    many = " many" if len(drawn) > 1 else ""
    switched = f' data-column="{data}-{chart.column}" data-x="{chart.x}"'
    switched = switched if _is_curve(chart) else ""
    return (
        f'<figure class="chart{many}"{switched}><figcaption><b>{text(chart.title)}</b> '
        f'<span>{text(chart.subtitle)}</span></figcaption><div class="panels">'
        + "\n".join(drawn)
        + "</div></figure>"
    )


def _of_runs(
    groups: Sequence[Group],
    found: dict[object, runs.Details] | dict,
    how: Drawn,
    words: Sequence[str],
) -> str:
    parts = []
    for group in groups:
        inner = "".join(runs.of_run(run, found[run.path]) for run in group.runs)
        data = text(in_words(group.data))
        if len(groups) > ONE:
            title = f"{results.named(group, how)} <small>{data}, {len(group.runs)} runs</small>"
            parts.append(details(title, inner))
        else:
            parts.append(f"<h3>{results.named(group, how)} <small>{data}</small></h3>{inner}")
    if words:
        parts.append(f"<h3>This report</h3>{runs.command(shlex.join(words))}")
    return "".join(parts)
