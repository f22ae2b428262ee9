"""What the page says of single runs: where the time went, log, warnings, the command."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from mpifed.errors import InputError
from mpifed.io.text import is_count, is_number, read_text
from mpifed.report.charts import Drawn
from mpifed.report.groups import Group
from mpifed.report.page.markup import details, table, text
from mpifed.report.page.results import named
from mpifed.report.runs import Run
from mpifed.results.results import read_clients, read_summary

PHASES = ("startup", "data", "local", "exchange", "evaluation", "checkpoint")
# Lines of a longer log that are shown, from its beginning and from its end.
HEAD, TAIL = 20, 40

LONGEST = 400  # characters of a line
LARGEST_LOG = 16 << 20  # bytes


@dataclass(frozen=True)
class Details:
    """What the page shows of one run beside its measurements."""

    path: Path
    seed: str
    seconds: dict[str, float]
    ranks: int | None
    memory: float | None
    log: list[str]
    mixture: np.ndarray | None
    clients: np.ndarray

    @property
    def warnings(self) -> list[str]:
        """The lines of the log that warn."""
        return [line for line in self.log if line.lower().startswith("warning")]


def read_details(run: Run, mixtures: bool) -> Details:
    """Return what the page shows of one run."""
    summary: dict[str, Any] = {}
    if (run.path / "summary.json").exists():
        summary = read_summary(run.path / "summary.json")
    given = summary.get("seconds")
    seconds = {key: float(value) for key, value in (given or {}).items() if is_number(value)}
    ranks, memory = summary.get("ranks"), summary.get("peak_memory_bytes")
    mixture, clients = _mixture(run) if mixtures else (None, np.zeros(0))
    return Details(
        run.path,
        str(run.seed),
        seconds,
        ranks if is_count(ranks) else None,
        float(memory) if is_number(memory) else None,
        _log(run.path / "log.txt"),
        mixture,
        clients,
    )


def times(groups: Sequence[Group], found: Mapping[Path, Details], how: Drawn) -> str:
    """Return the table of where the wall time went, means over seeds."""
    rows = []
    for group in groups:
        spent = [found[run.path].seconds for run in group.runs]
        spent = [one for one in spent if one.get("total")]
        if not spent:
            continue
        total = float(np.mean([one["total"] for one in spent]))
        phases = {phase: float(np.mean([one.get(phase, 0.0) for one in spent])) for phase in PHASES}
        phases["rest"] = max(0.0, total - sum(phases.values()))
        about = [found[run.path] for run in group.runs]
        ranks = sorted({one.ranks for one in about if one.ranks is not None})
        memory = [one.memory for one in about if one.memory is not None]
        rows.append(
            [
                named(group, how),
                ", ".join(map(str, ranks)) or "–",
                f"{total:.1f}",
                *(_share(seconds, total) for seconds in phases.values()),
                f"{max(memory) / 2**20:.0f}" if memory else "–",
            ]
        )
    header = ["Method", "Ranks", "Total (s)", *(f"{phase} (s)" for phase in [*PHASES, "rest"])]
    caption = (
        "Wall time in seconds, means over the seeds that are finished; bars are shares of the "
        "total. Memory is the largest of a rank."
    )
    return table([*header, "Memory (MiB)"], rows, 1, caption) if rows else ""


def _share(seconds: float, total: float) -> str:
    width = 100 * min(1.0, seconds / total) if total else 0
    return f'{seconds:.2f}<span class="bar"><i style="width:{width:.0f}%"></i></span>'


def warnings(found: Sequence[Details], notes: Sequence[str]) -> str:
    """Return what warned: notes of the report, and warnings of the runs, each once."""
    said: dict[str, list[str]] = {}
    for one in found:
        for line in one.warnings:
            said.setdefault(line, []).append(str(one.path))
    items = [text(note) for note in notes]
    for line, paths in said.items():
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        items.append(f"{text(line[:LONGEST])} <small>({text(paths[0])}{more})</small>")
    if not items:
        return "<p>No run warned.</p>"
    return '<ul class="warnings">' + "".join(f"<li>{item}</li>" for item in items) + "</ul>"


def of_run(run: Run, about: Details) -> str:
    """Return the command that repeats a run, its configuration and its log, as HTML."""
    ranks = about.ranks or 1
    mpi = f"mpirun -n {ranks} " if ranks > 1 else ""
    config, again = shlex.quote(str(run.path / "config.yaml")), shlex.quote(f"{run.path}-again")
    repeat = f"{mpi}python -m mpifed.run {config} --output {again}"
    parts = [command(repeat)]
    if run.finished:
        parts.append(command(f"{mpi}python -m mpifed.verify {shlex.quote(str(run.path))}"))
    as_text = yaml.safe_dump(json.loads(json.dumps(run.config, default=str)), sort_keys=False,
                             default_flow_style=None, width=110, allow_unicode=True)  # fmt: skip
    parts.append(details("Settings", f"<pre>{text(as_text)}</pre>"))
    if about.log:
        parts.append(details(f"Log, {len(about.log)} lines", f"<pre>{_shown(about.log)}</pre>"))
    count = len(about.warnings)
    warned = f" <b>({count} warning{'s' * (count > 1)})</b>" if count else ""
    state = "finished" if run.finished else "diverged" if run.diverged else "not finished"
    return details(f"<code>{text(run.path)}</code> {state}{warned}", "".join(parts))


def command(words: str) -> str:
    """Return a command with a button that copies it."""
    button = '<button type="button" class="copy">Copy</button>'
    return f'<div class="command"><code>{text(words)}</code>{button}</div>'


def _shown(log: Sequence[str]) -> str:
    lines = [text(line[:LONGEST]) for line in log]
    left = len(lines) - HEAD - TAIL
    if left > 0:
        lines = [*lines[:HEAD], f"[{left} lines are left out]", *lines[-TAIL:]]
    return "\n".join(
        f"<mark>{line}</mark>" if line.lower().startswith("warning") else line for line in lines
    )


def _log(path: Path) -> list[str]:
    try:
        return read_text(path, LARGEST_LOG).splitlines()
    except InputError:  # a log is no result: a run without one is shown all the same
        return []


def _mixture(run: Run) -> tuple[np.ndarray | None, np.ndarray]:
    nothing = None, np.zeros(0)
    if not run.finished:
        return nothing
    results = read_clients(run.path / "clients.h5").results
    mixture = results.get("mixture")
    if mixture is None or mixture.ndim != 2 or mixture.shape[1] < 2 or not len(mixture):
        return nothing
    numbers = results.get("client_id", np.arange(len(mixture)))
    return mixture.astype(float), numbers
