"""Pictures of runs: a file for each chart, as PNG, SVG or PDF."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mpifed.config.experiments import safe
from mpifed.errors import InputError, closest
from mpifed.report.chart import Chart
from mpifed.report.charts import ROUNDS, SECONDS, Drawn, charts, drawn
from mpifed.report.dots import Dots, differences
from mpifed.report.dots import figure_of as dots_of
from mpifed.report.groups import Group
from mpifed.report.lines import figure_of
from mpifed.report.paired import partner
from mpifed.report.pictures import Pictures, save

# Columns that are drawn not against rounds alone.
AGAINST_ALL = ("test-accuracy", "bottom-decile", "train-loss")


def draw(
    groups: Sequence[Group],
    output: Path,
    against: str | None = None,
    made: Pictures | None = None,
    how: Drawn | None = None,
) -> list[Path]:
    """Draw every picture for which the runs have numbers."""
    made = made or Pictures()
    files: list[Path] = []
    if not made.formats:
        return files
    import matplotlib

    matplotlib.use("Agg")
    how = how or drawn(groups)
    with matplotlib.rc_context(made.style()):
        for prefix, found in by_data(groups, how, against).items():
            for chart in filter(in_a_file, found):
                files += save(figure_of(chart, made), output, f"{prefix}{chart.name}", made)
        for prefix, dots in _differences(groups, how, against).items():
            files += save(dots_of(dots, made), output, f"{prefix}{dots.name}", made)
    return files


def _differences(groups: Sequence[Group], how: Drawn, against: str | None) -> dict[str, Dots]:
    """Return the differences from a method with their intervals, by the prefix of their files."""
    datas = list(dict.fromkeys(group.data for group in groups))
    found = {}
    for data, prefix in zip(datas, prefixes(datas), strict=True):
        chosen = [group for group in groups if group.data == data]
        other = None if against is None else partner(groups, data, against)
        if other is not None and len(chosen) > 1:
            names = {group.method: how.name(group) for group in chosen}
            found[prefix] = differences(chosen, other, names)
    return found


def by_data(
    groups: Sequence[Group], how: Drawn, against: str | None = None
) -> dict[str, list[Chart]]:
    """Return the charts of each data set, by the prefix of their files."""
    datas = list(dict.fromkeys(group.data for group in groups))
    found = {}
    for data, prefix in zip(datas, prefixes(datas), strict=True):
        chosen = [group for group in groups if group.data == data]
        other = None if against is None else partner(groups, data, against)
        found[prefix] = charts(chosen, how, other)
    return found


def prefixes(datas: Sequence[str]) -> list[str]:
    """Return the prefix of each data set's files; no two are equal."""
    if len(datas) == 1:
        return [""]
    short = [safe(data.replace(" ", "")) for data in datas]
    if len({name.lower() for name in short}) < len(datas):
        # Labels that differ in spaces, or in capital letters on a disk that does not.
        short = [f"{index}-{name}" for index, name in enumerate(short, 1)]
    return [f"{name}-" for name in short]


def in_a_file(chart: Chart) -> bool:
    """Return whether a chart has a picture; those against wall time differ from run to run."""
    return chart.x in (ROUNDS, "") or (chart.x != SECONDS and chart.column in AGAINST_ALL)


def check_texts(made: Pictures, groups: Sequence[Group], how: Drawn, against: str | None) -> None:
    """Refuse texts for pictures that there are not."""
    texts: dict[str, Mapping[str, str]] = {"--title": made.titles, "--x-label": made.x_labels}
    if not any(texts.values()):
        return
    shown = [c for found in by_data(groups, how, against).values() for c in found if in_a_file(c)]
    names = sorted({name for chart in shown for name in (chart.column, chart.name)})
    for option, given in texts.items():
        for name in given:
            if name not in names:
                raise InputError(
                    f"{option} is for '{name}', which is no picture of these runs; "
                    f"{closest(name, names)}"
                )
