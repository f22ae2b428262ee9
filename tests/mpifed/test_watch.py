"""``mpifed watch``: a run from its files, until it ends."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from commands import TINY, command, environment

from mpifed.watch import curve, main, seconds_a_round, view

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
from run_directories import write_run


@pytest.mark.parametrize("words", [["nowhere"], ["."], ["a" * 300]])
def test_where_there_is_no_run_it_refuses(words, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capfd.readouterr().err
    assert "holds no run: there is no config.yaml in it" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("every", ["0", "-1", "nan", "1e9"])
def test_a_wait_out_of_range_is_refused(every, tmp_path, capfd):
    run = write_run(tmp_path / "run")
    assert main([str(run), "--every", every]) == 2
    assert "it must be from 0.1 to 3600 seconds" in capfd.readouterr().err


def test_a_finished_run_is_shown_once(tmp_path, capfd):
    run = write_run(tmp_path / "run")
    assert main([str(run)]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 2
    assert "round 40 of 40, 0.1 s/round, test accuracy 74.11 %" in lines[0]
    assert lines[1] == f"{run}: finished"


def test_a_run_that_nobody_runs_has_ended(tmp_path, capfd):
    run = write_run(tmp_path / "run", finished=False, until=20)
    (run / "log.txt").write_text("round 20\n")
    assert main([str(run)]) == 1
    assert capfd.readouterr().out.endswith(f"{run}: not going on\n")


def test_it_follows_a_run_and_ends_with_it(tmp_path, capfd):
    run = write_run(tmp_path / "run", finished=False, until=20)
    (run / "log.txt").write_text("round 20\n")
    ended = threading.Event()
    with (run / "log.txt").open("a") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        assert view(run).state == "going on"
        codes: list[int] = []
        words = [str(run), "--every", "0.1"]
        watcher = threading.Thread(target=lambda: (codes.append(main(words)), ended.set()))
        watcher.start()
        assert not ended.wait(0.5)
        with (run / "metrics.csv").open("a") as file:
            last = (run / "metrics.csv").read_text().splitlines()[-1]
            file.write("30" + last[2:] + "\n")
        assert not ended.wait(0.5)
    watcher.join(timeout=30)
    assert codes == [1]
    shown = capfd.readouterr().out
    assert "round 20 of 40" in shown and "round 30 of 40" in shown
    assert shown.endswith("not going on\n")


def test_output_that_nobody_reads_or_that_is_full_ends_it(tmp_path):
    run = write_run(tmp_path / "run")
    for target, said in (("/dev/full", "No space left"), ("pipe", "")):
        read, written = os.pipe()
        os.close(read)
        with open(written, "wb") as pipe, open("/dev/full", "wb") as full:
            done = subprocess.run(
                [sys.executable, "-m", "mpifed.watch", str(run)],
                stdout=full if target == "/dev/full" else pipe, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
        assert done.returncode == 1
        assert said in done.stderr and done.stderr.count("\n") == bool(said)


@pytest.mark.slow
def test_a_real_run_is_watched_to_its_end(tmp_path):
    words = [*TINY, "rounds=400", "evaluation.every=50", "--output", str(tmp_path / "run")]
    running = subprocess.Popen(command(0, *words), env=environment(), stdout=subprocess.DEVNULL)
    try:
        while not (tmp_path / "run" / "metrics.csv").exists() and running.poll() is None:
            time.sleep(0.05)
        done = subprocess.run(
            [sys.executable, "-m", "mpifed.watch", str(tmp_path / "run"), "--every", "0.2"],
            capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        assert running.wait(timeout=60) == 0
    finally:
        running.kill()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("run: finished\n")
    assert "round 400 of 400" in done.stdout


def test_curves_and_seconds():
    assert len(curve(np.arange(1000.0), 20)) == 20
    assert curve(np.full(3, 5.0)) == "▁▁▁"
    assert curve(np.zeros(0)) == ""
    assert np.isnan(seconds_a_round(np.array([0.0]), np.array([1.0])))
