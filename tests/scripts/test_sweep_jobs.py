"""Sweeps of ranges, of several runs at a time, and the index of their directories."""

from __future__ import annotations

import csv
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpifed.config.experiments import safe
from mpifed.errors import EXIT_FAILED, EXIT_FINISHED, EXIT_STOPPED
from mpifed.sweep import processes
from mpifed.sweep.plan import (
    SHORT,
    Planned,
    directory_names,
    planned_runs,
    write_index,
    written_out,
)
from mpifed.sweep.processes import Sweep, processor_sets

FINISHES = """
import pathlib, sys, time
d = pathlib.Path(sys.argv[1])
d.mkdir()
{}
(d / 'DONE').touch()
"""
TOGETHER = """
until = time.monotonic() + 60
while len(list(d.parent.glob('seed=*'))) < 4:
    assert time.monotonic() < until
    time.sleep(0.02)
"""


def planned(tmp_path: Path, count: int, needs: dict[int, int] | None = None) -> list[Planned]:
    (tmp_path / "out").mkdir(exist_ok=True)
    places = [tmp_path / "out" / f"seed={number}" for number in range(count)]
    return [
        Planned(place, {}, None, (places[needs[n]],) if needs and n in needs else (), {"seed": n})
        for n, place in enumerate(places)
    ]


def commands(runs: list[Planned], before: str = "") -> list[list[str]]:
    program = FINISHES.format(before)
    return [[sys.executable, "-c", program, str(run.directory)] for run in runs]


@pytest.fixture(autouse=True)
def no_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs of these tests write DONE alone."""
    monkeypatch.setattr(processes, "_result", lambda run: "")


@given(st.lists(st.integers(-20, 20), min_size=1, max_size=3).filter(lambda b: b[2:] != [0]))
def test_a_range_is_the_list_of_its_numbers(bounds: list[int]) -> None:
    inside = ", ".join(map(str, bounds))
    assert written_out(f"seed=range({inside})") == f"seed={list(range(*bounds))}"


def test_ten_seeds_are_ten_runs(tmp_path: Path) -> None:
    runs = planned_runs("synthetic-fedem", ["seed=range(10)", "rounds=3"], tmp_path, 1)
    assert [run.overrides["seed"] for run in runs] == list(range(10))
    write_index(runs)
    with (tmp_path / "index.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["directory", "seed"]
    assert rows[1:] == [[f"seed={seed}", str(seed)] for seed in range(10)]


def test_long_names_lose_sections_but_never_their_difference() -> None:
    graphs = [{"name": "erdos_renyi", "p": 0.1}, {"name": "erdos_renyi", "p": 0.5}, "ring"]
    axes = {"exchange.topology": graphs, "algorithm.lr": [0.1], "local.lr": [0.1, 1.0]}
    names = directory_names(axes)
    assert len(set(names)) == 6 and max(map(len, names)) <= SHORT
    assert names[0] == "topology=erdos_renyi,p=0.1,algorithm.lr=0.1,local.lr=0.1"
    assert names[-1] == "topology=ring,algorithm.lr=0.1,local.lr=1.0"


NESTED = {"name": "gossip", "topology": {"name": "erdos_renyi", "p": 0.5}}
OWN = {"name": "gossip", "schedule": "groups:groups"}


def test_components_within_components_have_readable_names() -> None:
    axes = {
        "algorithm": ["mymethod:Mymethod", "fedavg"],
        "exchange": ["server", NESTED, OWN, {"name": "server", "aggregator": "median"}],
        "attack": ["none", {"name": "sign_flip", "fraction": 0.2}],
    }
    names = directory_names(axes)
    assert len(set(names)) == 16
    attack = "attack=sign_flip,fraction=0.2"
    assert names[5] == f"algorithm=Mymethod,exchange=gossip,schedule=groups,{attack}"
    assert names[-2] == "algorithm=fedavg,exchange=server,aggregator=median,attack=none"
    short = directory_names({"exchange": [NESTED, OWN]})
    assert short == [
        "exchange=gossip,topology=erdos_renyi,p=0.5",
        "exchange=gossip,schedule=groups",
    ]


@pytest.mark.parametrize(
    "values",
    [
        ["one:Mine", "two:Mine"],
        [{"name": "a", "p": 1}, {"name": "a", "p": True}],
        [{"name": "a", "b": "c", "p": 1}, {"name": "a", "b": {"name": "c", "p": 1}}],
        [{"name": "a"}, "a", {"name": "a", "p": None}],
        [[64], [64, 32], 64],
    ],
)
def test_different_values_have_different_names(values: list[object]) -> None:
    for more in ({}, {"algorithm.a_long_key_of_the_algorithm": ["with_a_long_value", "and_more"]}):
        axes = {"model": values} | more
        names = directory_names(axes)
        assert len(set(names)) == len(names) == len(values) * (2 if more else 1)
        assert all(name == safe(name) for name in names)


def test_runs_are_in_progress_at_a_time_and_none_twice(tmp_path: Path, capfd) -> None:
    runs = planned(tmp_path, 4)
    assert Sweep(runs, commands(runs, TOGETHER), 4).run() == EXIT_FINISHED
    assert Sweep(runs, commands(runs), 2).run() == EXIT_FINISHED
    said = capfd.readouterr().out
    assert len(re.findall(r"\] .*: finished", said)) == 8 and said.count("skipped") == 4


def test_a_run_waits_for_the_one_it_starts_from(tmp_path: Path, capfd) -> None:
    runs = planned(tmp_path, 4, {1: 0, 2: 1, 3: 0})
    seen = "assert sys.argv[2] == 'none' or (d.parent / sys.argv[2] / 'DONE').exists()"
    words = commands(runs, seen)
    for number, needs in enumerate(("none", "seed=0", "seed=1", "seed=0")):
        words[number].append(needs)
    assert Sweep(runs, words, 3).run() == EXIT_FINISHED
    assert "about" in capfd.readouterr().out


def test_what_depends_on_a_failed_run_is_not_started(tmp_path: Path, capfd) -> None:
    runs = planned(tmp_path, 4, {1: 0, 2: 1})
    words = commands(runs)
    words[0] = [sys.executable, "-c", "raise SystemExit(3)"]
    assert Sweep(runs, words, 2).run() == EXIT_FAILED
    said = capfd.readouterr()
    for line in ("seed=0: .*code 3 ", "seed=1: .*seed=0", "seed=2: .*seed=1"):
        assert re.search(line, said.err)
    assert "1 of 4 runs" in said.out and runs[3].finished()


def test_a_request_to_stop_reaches_every_run(tmp_path: Path) -> None:
    stops = (
        "import os, pathlib, signal, sys, time\n"
        f"signal.signal(signal.SIGUSR1, lambda *_: os._exit({EXIT_STOPPED}))\n"
        "pathlib.Path(sys.argv[1] + '.ready').touch()\n"
        "time.sleep(60)\n"
    )
    program = f"""
import sys
from pathlib import Path
from mpifed.sweep.processes import Sweep
from mpifed.sweep.plan import Planned
places = [Path({str(tmp_path)!r}) / "out" / str(n) for n in range(3)]
runs = [Planned(place, {{}}, None) for place in places]
sys.exit(Sweep(runs, [[sys.executable, "-c", {stops!r}, str(p)] for p in places], 2).run())
"""
    (tmp_path / "out").mkdir()
    process = subprocess.Popen([sys.executable, "-c", program])
    ready = [tmp_path / "out" / f"{number}.ready" for number in range(2)]
    deadline = time.monotonic() + 60
    while not all(path.exists() for path in ready) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == EXIT_STOPPED
    assert not (tmp_path / "out" / "2.ready").exists()


@pytest.mark.parametrize("jobs", [1, 2, 3, 1000])
def test_jobs_share_the_processors_of_this_process(jobs: int) -> None:
    found = processor_sets(jobs)
    own = os.sched_getaffinity(0)
    if jobs == 1 or jobs > len(own):
        assert found is None
    else:
        assert found is not None and all(found)
        assert set().union(*found) == own and sum(map(len, found)) == len(own)
