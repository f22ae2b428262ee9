"""Keeps what ``scripts/bench suite`` measured at a commit, and draws how it went.

``python scripts/benchmarks/bench_history.py LINES [COMMIT]`` writes history/COMMIT.json of the
lines (of HEAD unless a commit is named) into docs/evidence, then benchmarks_history.md and its
picture of all such files. Figures of several kinds of processors are not compared: a curve is of
one.
"""

from __future__ import annotations

import json
import math
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench_page import DOCS, read

HEAD = """# Benchmarks over time

The table has the CPU seconds of each commit, the least of several runs. The picture shows them
relative to the first commit on the same kind of processor. `scripts/bench suite > LINES` and
`python scripts/benchmarks/bench_history.py LINES COMMIT` add a commit.

![CPU seconds over those of the first commit](benchmarks_history.png)

"""


def processor() -> str:
    """Return the name of this computer's processor."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def record(figures: Sequence[dict[str, Any]], commit: str) -> dict[str, Any]:
    """Return what is kept of a commit's figures."""
    asked = ["git", "show", "--no-patch", "--format=%h %cI", "--abbrev=12", f"{commit}^{{commit}}"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False, cwd=DOCS)
    if said.returncode:
        raise ValueError(f"git knows no commit {commit!r}")
    name, date = said.stdout.split()
    seconds: dict[str, float] = {}
    for one in figures:
        if one["unit"].startswith("CPU s "):  # of several turns the least
            seconds[one["name"]] = min(one["value"], seconds.get(one["name"], math.inf))
    return {"commit": name, "date": date, "processor": processor(), "seconds": seconds}


def history(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the records of each kind of processor, the oldest commit first."""
    found: dict[str, list[dict[str, Any]]] = {}
    every = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")]
    for one in sorted(every, key=lambda one: (one["date"], one["commit"])):
        found.setdefault(one["processor"], []).append(one)
    return found


def page(found: dict[str, list[dict[str, Any]]]) -> str:
    """Return the text of the page: a table for each kind of processor."""
    parts = [HEAD]
    for name, records in sorted(found.items()):
        figures = sorted({figure for one in records for figure in one["seconds"]})
        parts.append(f"## {name}\n\n| commit | date | {' | '.join(figures)} |")
        parts.append("\n| --- | --- |" + " ---: |" * len(figures) + "\n")
        for one in records:
            cells = [f"{one['seconds'][f]:g}" if f in one["seconds"] else "–" for f in figures]
            parts.append(f"| `{one['commit']}` | {one['date'][:10]} | {' | '.join(cells)} |\n")
    return "".join(parts)


def draw(found: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Draw each figure over its first value, a panel for each kind of processor."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2 * len(found)), layout="constrained")
    panels = figure.subplots(len(found), 1, squeeze=False)[:, 0]
    for axes, (name, records) in zip(panels, sorted(found.items()), strict=True):
        for part in sorted({part for one in records for part in one["seconds"]}):
            known = [(at, one["seconds"].get(part)) for at, one in enumerate(records)]
            points = [(at, value) for at, value in known if value]
            if points:
                x, y = zip(*((at, value / points[0][1]) for at, value in points), strict=True)
                axes.plot(x, y, marker="o", label=part)
        axes.set_title(name, fontsize="medium")
        axes.set_xticks(range(len(records)), [one["commit"][:8] for one in records])
        axes.set_ylim(bottom=0)
        axes.set_ylabel("CPU seconds over the first")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=120, metadata={"Software": None})


def main(words: list[str], docs: Path = DOCS) -> int:
    """Write the record, the page and the picture; return 2 where the lines cannot be used."""
    if not 1 <= len(words) <= 2:
        print("bench_history: give the file of lines, and a commit if not HEAD", file=sys.stderr)
        return 2
    try:
        made = record(read(Path(words[0])), words[1] if len(words) == 2 else "HEAD")
        if not made["seconds"]:
            raise ValueError("it has no figure in CPU seconds")
    except (OSError, ValueError) as error:
        print(f"bench_history: {words[0]}: {error}", file=sys.stderr)
        return 2
    folder = docs / "history"
    folder.mkdir(exist_ok=True)
    text = json.dumps(made, indent=1) + "\n"
    (folder / f"{made['commit']}.json").write_text(text, encoding="utf-8")
    found = history(folder)
    draw(found, docs / "benchmarks_history.png")
    (docs / "benchmarks_history.md").write_text(page(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
