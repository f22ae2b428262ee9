"""Makes docs/evidence/study_topologies.md from the runs of scripts/studies/study_topologies.py.

    python scripts/studies/study_page.py RUNS [--slow DIRECTORY] [--page FILE]

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
from study_cells import CORRECTIONS, GRAPHS, LEVELS, Study, read_study, seeds
from study_pictures import CAPTIONS, draw

from mpifed.errors import InputError
from mpifed.report.groups import Estimate, estimate
from mpifed.report.runs import ACCURACY, DECILE
from mpifed.report.tables import Table

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "study_topologies.md"
BEGIN, END = "<!-- study -->", "<!-- /study -->"


def counted(study: Study) -> str:
    """Return which runs there are, in words."""
    finished = sum(len(group.runs) for group in study.fast.values())
    missing = [key for key in study.wanted if key not in study.fast and key not in study.diverged]
    partly = [key for key in study.fast if len(study.fast[key].runs) < seeds()]
    lines = [
        f"{finished} of {seeds() * len(study.wanted)} runs are finished"
        + (f", {sum(study.diverged.values())} diverged" if study.diverged else "")
        + f". Of {len(study.wanted)} cells (one α, graph and correction), "
        f"{len(study.fast) - len(partly)} have all {seeds()} seeds, {len(partly)} fewer, and "
        f"{len(missing)} none."
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
    names = ["α", "correction", "graphs", "average", "bottom decile", "better on", "worse on"]
    rows = []
    for level in LEVELS:
        for correction, name in list(CORRECTIONS.items())[1:]:
            keys = [k for k in study.wanted if (k[0], k[2]) == (level, correction)]
            whole = [k for k in keys if len(study.differences(k, ACCURACY)) == seeds()]
            if not whole:
                continue
            cells_of = [f"{level:g}", name, str(len(whole))]
            for column in (ACCURACY, DECILE):
                values = np.array([study.differences(key, column) for key in whole])
                cells_of.append(_points(estimate(100 * values.mean(axis=0))))
            each = [estimate(study.differences(key, ACCURACY)) for key in whole]
            cells_of.append(str(sum(one.mean > one.half_width for one in each)))
            cells_of.append(str(sum(one.mean < -one.half_width for one in each)))
            rows.append(cells_of)
    return Table(names, rows, texts=2).markdown().splitlines()


def _points(found: Estimate) -> str:
    if not found.count:
        return "–"
    return found.text("+.2f")


def content(study: Study, pictures: Sequence[str]) -> str:
    """Return what stands between the marks."""
    parts = [counted(study), "", *summary(study)]
    for name in pictures:
        parts += ["", f"![{CAPTIONS[name]}]({name}.png)"]
    return "\n".join(parts) + "\n"


def main(words: Sequence[str] | None = None) -> int:
    """Make the page; return the exit code."""
    parser = argparse.ArgumentParser(prog="study_page", description=__doc__.split("\n")[0])
    parser.add_argument("runs", type=Path, help="directory of the runs")
    parser.add_argument("--slow", type=Path, help="of the retimed runs (default: RUNS-slow)")
    parser.add_argument("--page", type=Path, default=PAGE, help=f"default: {PAGE.name}")
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
