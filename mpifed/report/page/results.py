"""The tables of the page: last values with intervals, paired differences, settings, consensus."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from mpifed.report import tables
from mpifed.report.charts import Drawn
from mpifed.report.groups import NO_DIFFERENCE, Group
from mpifed.report.intervals import Estimate, estimate
from mpifed.report.names import NAMES, in_words, key_in_words, leaves
from mpifed.report.page.markup import details, table, text
from mpifed.report.page.svg import swatch
from mpifed.report.runs import MEASURES, larger_is_better
from mpifed.report.tables import ACCURACY, DECILE, bits, last_differences, measured

FEW = 6  # up to so many methods are columns of the settings


def named(group: Group, how: Drawn) -> str:
    """Return the name of a group behind a piece of its line, as HTML."""
    return f"{swatch(how.looks[group.method])}{text(how.name(group))}"


def last_values(groups: Sequence[Group], how: Drawn) -> str:
    """Return the table of the last values of one data set, the best of each column bold."""
    columns = [(ACCURACY, "Test accuracy (%)", 100.0), (DECILE, "Bottom decile (%)", 100.0)]
    columns += [("train_loss", "Training loss", 1.0)]
    shown_too = [(column, MEASURES[column]) for column in measured(groups)]
    columns += [(column, measure.short, measure.factor) for column, measure in shown_too]
    found = {
        column: [estimate(factor * _last(group, column)) for group in groups]
        for column, _, factor in columns
    }
    columns = [one for one in columns if any(e.count for e in found[one[0]])]
    header = ["Method", "Seeds", "Rounds", *(text(title) for _, title, _ in columns)]
    header += ["Wall time (s)", "Sent up", "Sent down"]
    rows = []
    for index, group in enumerate(groups):
        rounds = sorted({run.rounds for run in group.runs if run.rounds is not None})
        span = "–".join(map(str, dict.fromkeys([rounds[0], rounds[-1]]))) if rounds else "–"
        cells = [named(group, how), str(len(group.runs)), span]
        for column, _, factor in columns:
            mine, means = found[column][index], [one.mean for one in found[column]]
            finite = [mean for mean in means if not math.isnan(mean)]
            best = max(finite) if larger_is_better(column) else min(finite)
            shown = _interval(mine, 2 if factor == 100 else None)
            top = mine.mean == best and len(groups) > 1 and column != "simulated_seconds"
            cells.append(f"<strong>{shown}</strong>" if top else shown)
        seconds = group.seconds()
        sent = [group.mean_and_deviation(column)[0] for column in ("up_bits", "down_bits")]
        cells += ["–" if math.isnan(seconds) else f"{seconds:.1f}", *map(bits, sent)]
        rows.append(cells)
    caption = (
        "Means over seeds at the last evaluated round; ± is half the 95 % interval of Student's t "
        "over seeds, where there are two or more. The best of each column is bold. Sent is what "
        "all clients together would have sent in the simulated federation."
    )
    return table(header, rows, 1, caption)


def differences(groups: Sequence[Group], how: Drawn, against: Group | None) -> str:
    """Return the table of paired differences from one method, seed by seed."""
    against = against or _best(groups)
    if against is None:
        return ""
    rows = []
    for group in groups:
        pairs = np.zeros(0) if group is against else last_differences(group, against, ACCURACY)
        if np.isfinite(pairs).any():
            found = estimate(100 * pairs)
            lowest = estimate(100 * last_differences(group, against, DECILE))
            cells = [named(group, how), str(found.count)]
            rows.append([*cells, *_difference(found), *_difference(lowest)])
    if not rows:
        return ""
    header = ["Method", "Pairs", "Average", "95 % interval", "p"]
    header += ["Bottom decile", "95 % interval", "p"]
    caption = (
        f"Test accuracy minus that of <strong>{text(how.name(against))}</strong> with the same "
        "seed, in points, at the last round that both have. Intervals and two-sided p-values are "
        "those of the paired t-test, not corrected for the number of comparisons; they need two "
        "seeds."
    )
    return table(header, rows, 1, caption)


def settings(groups: Sequence[Group], how: Drawn) -> str:
    """Return the settings in which runs differ, and those in which none does."""
    flat = {id(run): leaves(run.config) for group in groups for run in group.runs}
    keys = list(dict.fromkeys(key for said in flat.values() for key in said))
    every = {key: {said.get(key) for said in flat.values()} for key in keys}
    apart = [key for key in keys if len(every[key]) > 1]
    alike = [key for key in keys if len(every[key]) == 1]

    def of_group(group: Group, key: str) -> str:
        return _joined([flat[id(run)].get(key) for run in group.runs])

    # Options that only some components have follow from the component, which is named.
    own = [
        key
        for key in apart
        if None in every[key] and len(every[key]) == 2 and not key.endswith(".name")
    ]
    apart = [key for key in apart if key not in own]
    found = "<p>All runs have the same settings.</p>"
    if apart:
        found = _differing(groups, how, apart, of_group)
    if own:
        some = f"{len(own)} settings that only some runs have, alike in these"
        found += details(some, _differing(groups, how, own, of_group))
    rows = [[_key(key), text(_value(next(iter(every[key]))))] for key in alike]
    count = f"{len(alike)} settings that all runs share"
    return found + (details(count, table(["Setting", "Value"], rows, 2)) if rows else "")


def _differing(
    groups: Sequence[Group], how: Drawn, apart: Sequence[str], of: Callable[[Group, str], str]
) -> str:
    names = [named(group, how) for group in groups]
    if len({group.data for group in groups}) > 1:
        names = [
            f"{name}<br><small>{text(in_words(group.data))}</small>"
            for name, group in zip(names, groups, strict=True)
        ]
    caption = "Those in italics change no result, or are averaged over."
    if len(groups) <= FEW:
        rows = [[_key(key), *(text(of(group, key)) for group in groups)] for key in apart]
        return table(["Setting", *names], rows, 99, caption)
    rows = [
        [name, *(text(of(group, key)) for key in apart)]
        for name, group in zip(names, groups, strict=True)
    ]
    return table(["Method", *map(_key, apart)], rows, 99, caption)


def distances(groups: Sequence[Group]) -> str:
    """Return the table of contractions, predicted and measured; empty without gossip."""
    rows = tables.consensus_rows(groups)
    if not rows:
        return ""
    header = [text(name) for name in tables.CONSENSUS_HEADER]
    cells = [[*map(text, row[:2]), *row[2:]] for row in rows]
    return table(header, cells, 2, text(tables.CONSENSUS_CAPTION))


def _best(groups: Sequence[Group]) -> Group | None:
    means = {index: estimate(_last(g, ACCURACY)).mean for index, g in enumerate(groups)}
    known = {index: mean for index, mean in means.items() if not math.isnan(mean)}
    return groups[max(known, key=lambda index: known[index])] if known else None


def _last(group: Group, column: str) -> np.ndarray:
    return np.array([run.last(column) for run in group.runs])


def _interval(found: Estimate, digits: int | None) -> str:
    if math.isnan(found.mean):
        return "–"
    form, width = ("{:#.4g}", "{:#.2g}") if digits is None else (f"{{:.{digits}f}}",) * 2
    half = "" if math.isnan(found.half_width) else f" ± {width.format(found.half_width)}"
    return form.format(found.mean).removesuffix(".") + half.removesuffix(".")


def _difference(found: Estimate) -> list[str]:
    if math.isnan(found.mean):
        return ["–"] * 3
    if math.isnan(found.half_width):
        return [_signed(found.mean), "–", "–"]
    low, high = found.mean - found.half_width, found.mean + found.half_width
    p = "&lt; 0.001" if found.p_value < 1e-3 else f"{found.p_value:.3f}"
    return [_signed(found.mean), f"{_signed(low)} to {_signed(high)}", p]


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _key(key: str) -> str:
    words = f'<span title="{text(key)}">{text(key_in_words(key))}</span> <code>{text(key)}</code>'
    return f"<em>{words}</em>" if key.startswith(NO_DIFFERENCE) else words


def _value(value: str | None) -> str:
    return "–" if value is None else "none" if value == "null" else NAMES.get(value, value)


def _joined(values: Sequence[str | None]) -> str:
    """Distinct values of the runs of a group: '0, 1, 2'; runs of whole numbers as '0 to 9'."""
    shown = list(dict.fromkeys(_value(value) for value in values))
    if len(shown) > 3 and all(value.isdecimal() for value in shown):
        numbers = sorted(map(int, shown))
        if numbers[-1] - numbers[0] == len(numbers) - 1:
            return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(shown if len(shown) <= 12 else [*shown[:12], f"and {len(shown) - 12} more"])
