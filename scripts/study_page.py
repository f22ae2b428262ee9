"""Makes docs/study_topologies.md from the runs of scripts/study_topologies.py.

    python scripts/study_page.py RUNS [--slow DIRECTORY] [--page FILE]

Tables and pictures are made of the runs that are finished; the others are counted as missing. The
second network is that of ``study_cells.SLOW``: runs are retimed into the directory ``--slow``, each
once. Text of the page outside of the marks ``<!-- study -->`` stays as it is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from study_cells import CLOCK, CORRECTIONS, GRAPHS, LEVELS, Key, Study, read_study, seeds
from study_pictures import CAPTIONS, draw

from mpifed.errors import InputError
from mpifed.report.groups import Estimate, Group, estimate
from mpifed.report.runs import ACCURACY, DECILE
from mpifed.report.tables import Table

PAGE = Path(__file__).parents[1] / "docs" / "study_topologies.md"
BEGIN, END = "<!-- study -->", "<!-- /study -->"


def counted(study: Study) -> str:
    """Return which runs there are, in words."""
    finished = sum(len(group.runs) for group in study.fast.values())
    missing = [key for key in study.wanted if key not in study.fast and key not in study.diverged]
    partly = [key for key in study.fast if len(study.fast[key].runs) < seeds()]
    lines = [
        f"{finished} of {seeds() * len(study.wanted)} runs are finished and in what follows"
        + (f", {sum(study.diverged.values())} diverged" if study.diverged else "")
        + f". Of the {len(study.wanted)} cells (level, graph, correction) "
        f"{len(study.fast) - len(partly)} have all {seeds()} seeds, {len(partly)} fewer, and "
        f"{len(missing)} no run."
    ]
    for level in LEVELS:
        for correction, name in CORRECTIONS.items():
            of_both = [key for key in study.wanted if (key[0], key[2]) == (level, correction)]
            there = [GRAPHS[key[1]] for key in of_both if key in missing]
            if there:
                which = "on all graphs" if len(there) == len(of_both) else "on " + "; ".join(there)
                lines.append(f"* No run: {name}, clients {LEVELS[level]}, {which}.")
    return "\n".join([lines[0], "", *lines[1:]] if len(lines) > 1 else lines)


def summary(study: Study) -> list[str]:
    """Return the table of each correction's mean difference over its graphs."""
    names = ["clients", "correction", "graphs", "seeds", "average", "bottom decile"]
    names += ["better on", "worse on", "bits", "seconds, slow"]
    rows = []
    for level in LEVELS:
        for correction, name in list(CORRECTIONS.items())[1:]:
            keys = [k for k in study.wanted if (k[0], k[2]) == (level, correction)]
            whole = [k for k in keys if len(study.differences(k, ACCURACY)) == seeds()]
            if not whole:
                continue
            cells_of = [LEVELS[level], name, f"{len(whole)} of {len(keys)}", str(seeds())]
            for column in (ACCURACY, DECILE):
                values = np.array([study.differences(key, column) for key in whole])
                cells_of.append(_points(estimate(100 * values.mean(axis=0))))
            each = [estimate(study.differences(key, ACCURACY)) for key in whole]
            cells_of.append(str(sum(one.mean > one.half_width for one in each)))
            cells_of.append(str(sum(one.mean < -one.half_width for one in each)))
            cells_of += [f"{_ratio(study.fast, whole, 'up_bits'):.2f}"]
            cells_of += [f"{_ratio(study.slow, whole, CLOCK):.2f}"]
            rows.append(cells_of)
    return Table(names, rows, texts=2).markdown().splitlines()


def best(study: Study) -> list[str]:
    """Return the table of the correction that gains most on each graph, with its gain."""
    header = ["graph", *(f"clients {words}" for words in LEVELS.values())]
    rows = []
    for graph, name in GRAPHS.items():
        row = [name]
        for level in LEVELS:
            gains = {
                called: estimate(100 * study.differences((level, graph, correction), ACCURACY))
                for correction, called in list(CORRECTIONS.items())[1:]
                if len(study.differences((level, graph, correction), ACCURACY)) == seeds()
            }
            if not gains:
                row.append("–")
                continue
            called = max(gains, key=lambda one: gains[one].mean)
            said = f"{called} {_points(gains[called])}"
            sure = gains[called].mean > gains[called].half_width
            row.append(f"**{said}**" if sure else said)
        rows.append(row)
    return Table(header, rows, texts=1).markdown().splitlines()


def _ratio(groups: dict[Key, Group], keys: Sequence[Key], column: str) -> float:
    """Return the geometric mean over graphs of a last value over that of plain gossip."""
    parts = [
        groups[key].estimate(column).mean / groups[key[0], key[1], "none"].estimate(column).mean
        for key in keys
    ]
    return float(np.exp(np.mean(np.log(parts))))


def _points(found: Estimate) -> str:
    if not found.count:
        return "–"
    return found.text("+.2f")


BEST = (
    "The correction with the largest mean gain over plain gossip among those that have all seeds, "
    "bold where its 95 % interval is above 0 (not corrected for having chosen the largest):"
)


def content(study: Study, pictures: Sequence[str]) -> str:
    """Return what stands between the marks."""
    parts = [counted(study), "", *summary(study), "", BEST, "", *best(study)]
    for name in pictures:
        parts += ["", f"![{CAPTIONS[name]}]({name}.png)"]
    return "\n".join(parts) + "\n"


def main(words: Sequence[str] | None = None) -> int:
    """Make the page; return the exit code."""
    parser = argparse.ArgumentParser(prog="study_page", description=__doc__.split("\n")[0])
    parser.add_argument("runs", type=Path, help="directory of the runs")
    parser.add_argument("--slow", type=Path, help="of the retimed runs (default: RUNS-slow)")
    parser.add_argument("--page", type=Path, default=PAGE, help=f"default: {PAGE.name} in docs/")
    asked = parser.parse_args(words)
    slow = asked.slow or asked.runs.with_name(asked.runs.name + "-slow")
    try:
        before, begin, rest = asked.page.read_text(encoding="utf-8").partition(BEGIN + "\n")
        _, end, after = rest.partition(END)
        if not (begin and end):
            raise InputError(f"{asked.page} has no marks {BEGIN} and {END}")
        study = read_study(asked.runs, slow)
    except (OSError, InputError) as error:
        print(f"study_page: {error}", file=sys.stderr)
        return 2
    made = content(study, draw(study, asked.page.parent))
    asked.page.write_text(before + begin + made + end + after, encoding="utf-8")
    print(counted(study).split("\n")[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())
