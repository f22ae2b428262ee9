"""How long a person waits: for the answer to a wrong word, and for the report of a hundred runs."""

from __future__ import annotations

import csv
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml
from bench_figures import report

WRONG: dict[str, tuple[tuple[str, ...], ...]] = {
    "run": (
        ("digits-fedm",),
        ("nowhere.yaml",),
        ("--quite",),
        ("roundss=3",),
        ("algorithm=fedme",),
        ("model.width=32",),
        ("data=nowhere.csv",),
        ("data=nowhere.h5",),
        ("exchange.topology=ring",),
        ("exchange=gossip", "exchange.topology=rign"),
        ("exchange=gossip", "exchange.schedule=one_peer"),
        ("algorithm=nowhere:Method",),
        ("--resume", "nowhere"),
        ("--on-round", "nowhere"),
        ("--on-round", "json:nothing"),
        ("--list", ""),
        ("model=json:net",),
        ("algorithm=json:Method",),
        ("exchange=gossip", "algorithm=scaffold"),
        ("compression=top_k", "compression.fraction=2"),
        ("data=mnist",),
        ("--resume", "."),
        ("--resume",),
        ("--output", "/dev/null/x"),
        ("--expect-ranks", "0"),
    ),
    "data": (
        (),
        ("digit",),
        ("--outputt", "x.h5"),
        ("digits", "--output", "x.h5"),
        ("digits", "--output", "x.h5", "--clients", "none"),
        ("digits", "--output", "x.h5", "--clients", "3", "--partitoin", "iid"),
        ("digits", "--output", "x.h5", "--clients", "3", "--partition", "idd"),
        ("digits", "--output", "nowhere/x.h5", "--clients", "3"),
        ("csv", "--output", "x.h5", "--clients", "3", "--path", "nowhere.csv", "--label", "y"),
        ("mnist", "--output", "x.h5", "--clients", "3", "--raw", "nowhere"),
        ("json:Data", "--output", "x.h5", "--clients", "3"),
    ),
    "sweep": (
        ("digits-fedm", "seed=[0,1]"),
        ("digits-fedem", "rounds=[3,-3]"),
        ("digits-fedem", "algorithm=[fedem,fedme]"),
        ("seed=[0,1]", "--job", "2"),
        ("seed=[0,1]", "--jobs", "x"),
        ("seed=range(a)",),
        ("seed=rang(10)",),
        ("algorithm=[fedavg,json:Method]",),
        ("seed=[0,1]", "--output", "/dev/null/x"),
    ),
    "report": (("nowhere",), (".", "--formt", "png"), (".",)),
    "jobs": (
        ("sumbit",),
        ("render", "digits-fedm"),
        ("render", "digits-fedem", "job.ranks=2", "algorithm=fedme"),
        ("render", "digits-fedem", "job.ranks=2", "model=json:net"),
        ("status", "nowhere"),
        ("submit", "digits-fedem", "job.ranks=2", "--site", "nowhere"),
    ),
    "verify": (
        (),
        ("nowhere",),
        (".",),
        ("nowhere", "--ranks", "2"),
        (".", "--rounds", "3"),
        (".", "--lats", "2"),
    ),
    "retime": (
        ("nowhere", "network.latency=1"),
        (".", "network.latenzy=1"),
        (".", "time.network=1"),
        (".", "--outptu"),
    ),
    "topologies": (
        (),
        ("shwo", "ring:n=4"),
        ("rng", "n=4"),
        ("show", "rign:n=4"),
        ("show", "ring:m=4"),
        ("show", "ring:n=4", "--weights", "fmcm"),
        ("compare", "ring:n=4", "--schedules", "one_peer"),
        ("show", "edge_list:path=nowhere"),
        ("show", "ring:n=4", "--josn"),
    ),
    "reproduce": (
        (),
        ("fedme",),
        ("fedem", "--tabel", "2"),
        ("fedem", "--table", "99"),
        ("fedem", "--table", "2", "roundss=3"),
        ("fedem", "--table", "2", "--data", "papre"),
        ("fedem", "--table", "2", "--slurm", "nowhere"),
        ("flix", "--figure", "99"),
        ("fedem", "--table", "2", "--output", "/dev/null/x"),
    ),
    "new": (("metod", "mine"), ("method", "3"), ("method", "mine", "--directory", "nowhere")),
}
"""Words by subcommand, of which one is wrong or missing."""

RUNS, ROWS, SEEDS = 100, 1000, 10
METHODS = (
    *("fedavg", "local", "fedprox", "ditto", "scaffold"),
    *("fedem", "apfl", "pfedme", "fedrep", "ifca"),
)


def wrong_words(repeats: int = 3) -> None:
    """CPU seconds of each subcommand until it has refused a wrong word."""
    for subcommand, cases in WRONG.items():
        for words in cases:
            seconds = sorted(_refused(subcommand, words) for _ in range(repeats))
            report(
                "wrong_words",
                round(seconds[repeats // 2], 3),
                "CPU s",
                subcommand=subcommand,
                words=words,
            )


def _refused(subcommand: str, words: tuple[str, ...]) -> float:
    with tempfile.TemporaryDirectory() as empty:
        before = _spent()
        command = [sys.executable, "-m", "mpifed", subcommand, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=empty)
        assert done.returncode == 2, done
        return _spent() - before


def report_hundred() -> None:
    """CPU seconds and bytes of the report of a hundred runs of a thousand rows."""
    with tempfile.TemporaryDirectory() as folder:
        one = Path(folder, "one")
        command = [sys.executable, "-m", "mpifed.run", "clients=20", "rounds=2", "data.n_test=50"]
        subprocess.run([*command, "--quiet", "--output", str(one)], check=True, timeout=120)
        hundred_runs(one, Path(folder, "runs"), ROWS)
        for formats in ("none", "png"):
            page = Path(folder, formats)
            words = [str(Path(folder, "runs")), "--format", formats, "--output", str(page)]
            before, began = _spent(), time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "mpifed.report", *words],
                check=True,
                stdout=subprocess.DEVNULL,
                timeout=300,
            )
            report(
                "report_hundred",
                round(_spent() - before, 2),
                "CPU s",
                wall=round(time.perf_counter() - began, 2),
                pictures=formats,
                bytes=(page / "report.html").stat().st_size,
                runs=RUNS,
                rows=ROWS,
            )


def _spent() -> float:
    times = os.times()
    return times.children_user + times.children_system


def hundred_runs(one: Path, folder: Path, rows: int) -> None:
    """Copy a run as if it had been one of ten methods with ten seeds each.

    Parameters
    ----------
    one : Path
        The run directory.
    folder : Path
        Where the directories 0 to 99 are made.
    rows : int
        Rows of each ``metrics.csv``.
    """
    for number in range(RUNS):
        _copied(one, folder / str(number), number, rows)


def _copied(one: Path, to: Path, number: int, rows: int) -> None:
    """Copy a run as if it had had another method and seed, and other rounds."""
    shutil.copytree(one, to, ignore=shutil.ignore_patterns("checkpoints"))
    configuration = yaml.safe_load((one / "config.yaml").read_text())
    changed = {"seed": number % SEEDS, "rounds": rows - 1}
    configuration |= changed | {"algorithm": {"name": METHODS[number // SEEDS]}}
    (to / "config.yaml").write_text(yaml.safe_dump(configuration, sort_keys=False))
    with (one / "metrics.csv").open() as file:
        row = list(csv.DictReader(file))[-1]
    noise = random.Random(number)
    with (to / "metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        writer.writeheader()
        for k in range(rows):
            risen = 1 - math.exp(-5 * k / rows)
            writer.writerow({key: _at(key, text, k, risen, noise) for key, text in row.items()})


def _at(column: str, text: str, k: int, risen: float, noise: random.Random) -> str:
    """Return the field of a column in round ``k``: a curve that rises to the value, with noise."""
    if column == "round":
        return str(k)
    if column == "state_digest" or not text:
        return text
    if column.endswith("bits"):
        return str(int(text) * k)
    return repr(float(text) * risen + 0.01 * noise.random())


BENCHMARKS = {"wrong_words": wrong_words, "report_hundred": report_hundred}
