"""Writes benchmarks_page.md and its picture from the lines of ``scripts/bench suite``.

``python scripts/benchmarks/bench_page.py LINES [FOLDER]``; FOLDER is docs/evidence unless given.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs" / "evidence"

HEAD = """# Benchmarks

Figures are medians of at least five runs of one process with one thread. If CPU and wall seconds
differ much, the machine had other work. [Speed and memory](benchmarks.md) has more figures.
`scripts/bench suite > LINES` and `python scripts/benchmarks/bench_page.py LINES` make this page;
`scripts/bench NAME` repeats one figure.

![CPU seconds of each part](benchmarks.png)

| part | CPU s | wall s | of |
| --- | --- | --- | --- |
"""

BESIDE_MPI = """
## Exchange compared with bare MPI

With two ranks, `scripts/bench exchange` compares a server's sum with an Allreduce of as many
float32, and a round of gossip with a neighbourhood collective of the same bytes.

| | numbers | wall, times bare MPI | CPU, times bare MPI | further ratio |
| --- | --- | --- | --- | --- |
"""

START = """
## Start

`scripts/bench startup` launches the default experiment. Seconds are those to the first line of a
round, and memory is the sum of the PSS of all processes. See [how a job starts](../startup.md).

| ranks | wall s | CPU s | MiB | cores |
| --- | --- | --- | --- | --- |
"""


def read(path: Path) -> list[dict[str, Any]]:
    """Return the figures of a file of JSON lines; others' output between them is left out."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.startswith('{"name"')]


def page(figures: list[dict[str, Any]]) -> str:
    """Return the text of the page."""
    rows, beside, starts = [], [], []
    for one in figures:
        detail = one["detail"]
        if one["name"] == "startup":
            starts.append(
                f"| {detail['ranks']} | {one['value']:g} | {detail['cpu_seconds']:g} | "
                f"{detail['memory_mib']:,} | {detail['cores']} |"
            )
        elif "cpu_ratio" in detail:
            beside.append(
                f"| `{one['name']}` | {detail['numbers']:,} | {one['value']} | "
                f"{detail['cpu_ratio']} | {_beside(detail)} |"
            )
        else:
            rows.append(
                f"| `{one['name']}` | {one['value']:g} | {detail['wall']:g} | {_of(detail)} |"
            )
    text = HEAD + "\n".join(rows) + "\n"
    for head, table in ((BESIDE_MPI, beside), (START, starts)):
        text += head + "\n".join(table) + "\n" if table else ""
    return text


def _of(detail: dict[str, Any]) -> str:
    left_out = ("wall", "all", "repeats")
    words = {key: value for key, value in detail.items() if key not in left_out}
    return ", ".join(f"{key.replace('_', ' ')}: {value:,}" for key, value in words.items())


def _beside(detail: dict[str, Any]) -> str:
    if "beyond_own" in detail:
        return f"without what each rank adds for itself: {detail['beyond_own']}"
    return f"what moves rows over the bare collective: {detail['moved_over_bare']}"


def draw(figures: list[dict[str, Any]], path: Path) -> None:
    """Draws the CPU seconds of the parts, on a logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    parts = [one for one in figures if "wall" in one["detail"]]
    figure, axes = pyplot.subplots(figsize=(7, 0.6 + 0.35 * len(parts)), layout="constrained")
    names = [one["name"] for one in parts]
    for shift, key in ((-0.2, "CPU"), (0.2, "wall")):
        values = [one["value"] if key == "CPU" else one["detail"]["wall"] for one in parts]
        axes.barh([place + shift for place in range(len(parts))], values, 0.4, label=key)
    axes.set_yticks(range(len(parts)), names)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("seconds")
    axes.legend()
    figure.savefig(path, dpi=120, metadata={"Software": None})
    pyplot.close(figure)


def main(words: list[str]) -> int:
    """Writes the page; returns 2 where the lines cannot be used."""
    if not 1 <= len(words) <= 2:
        print("bench_page: give the file of lines, and a folder if not docs", file=sys.stderr)
        return 2
    folder = Path(words[1]) if len(words) == 2 else DOCS
    try:
        figures = read(Path(words[0]))
    except (OSError, ValueError) as error:
        print(f"bench_page: {words[0]} cannot be read: {error}", file=sys.stderr)
        return 2
    if not figures:
        print(
            f"bench_page: {words[0]} has no figure; scripts/bench suite prints them",
            file=sys.stderr,
        )
        return 2
    draw(figures, folder / "benchmarks.png")
    (folder / "benchmarks_page.md").write_text(page(figures), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
