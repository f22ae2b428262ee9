"""A function called in a copy of this process changes nothing."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from mpifed.watchdog.throwaway import Outcome, in_throwaway, meanwhile

UNKNOWN = Outcome(False, None)


def children():
    """The processes that this one has started, of which other tests may have left some."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(stat.parent.name)
    return found


def tried(action, cpu_seconds=10.0, seconds=30.0):
    return in_throwaway(action, cpu_seconds, seconds)


@pytest.mark.parametrize("said", [None, "", "a sentence", "é" * 200_000])
def test_what_is_returned(said):
    assert tried(lambda: said) == (True, said)


def fails():
    raise RuntimeError("not caught")


def crashes():
    ctypes.string_at(0)


ENDS = {
    "fails": fails,
    "exits": lambda: sys.exit("never"),
    "crashes": crashes,
    "kills itself": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "kills this one": lambda: os.kill(os.getppid(), signal.SIGKILL),
    "starts a program": lambda: subprocess.run(["touch", "made"], check=True),
    "starts a shell": lambda: os.system("touch made"),
    "forks": lambda: os.fork() and None,
    "connects": lambda: socket.socket(socket.AF_UNIX).connect("nowhere"),
    "makes a file": lambda: Path("made").touch(),
    "makes an array file": lambda: np.save("made", np.ones(3)),
    "makes a directory": lambda: Path("made").mkdir(),
    "removes a file": lambda: Path("kept").unlink(),
    "renames a file": lambda: Path("kept").rename("made"),
    "empties a file": lambda: open("kept", "w").close(),
    "cuts a file": lambda: os.truncate("kept", 1),
}


@pytest.mark.parametrize("name", ENDS)
def test_it_ends_where_something_would_last(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("kept").write_text("as it was")
    assert tried(ENDS[name]) == UNKNOWN
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert Path("kept").read_text() == "as it was"


def test_files_that_are_open_are_not_lengthened(tmp_path):
    with open(tmp_path / "log", "a") as log, h5py.File(tmp_path / "data.h5", "w") as data:
        log.write("once ")

        def writes():
            log.write("twice")
            log.flush()

        def fills():
            data["values"] = np.ones(100_000)
            data.flush()

        assert tried(writes) == UNKNOWN and tried(fills) == UNKNOWN
        assert list(data) == []
    assert (tmp_path / "log").read_text() == "once "


def test_prints_are_not_seen(capfd):
    def prints():
        print("from Python")
        os.write(1, b"from C")
        sys.stderr.write("and so")
        sys.stdout.flush()

    assert tried(prints) == (True, None)
    assert capfd.readouterr() == ("", "")


def test_generators_and_modules_are_as_they_were():
    before = torch.initial_seed(), torch.get_rng_state().clone(), np.random.get_state()[1].copy()  # noqa: NPY002

    def draws():
        torch.manual_seed(3)
        np.random.seed(3)  # noqa: NPY002
        sys.modules["a module"] = sys
        os.environ["A_VARIABLE"] = "1"
        return str(torch.rand(()).item())

    assert tried(draws).returned
    assert "a module" not in sys.modules and "A_VARIABLE" not in os.environ
    assert torch.initial_seed() == before[0] and torch.equal(torch.get_rng_state(), before[1])
    assert (np.random.get_state()[1] == before[2]).all()  # noqa: NPY002


def spins():
    while True:
        pass


def test_it_ends_when_it_computes_or_takes_too_long():
    before = children()
    began = time.monotonic()
    assert tried(spins, cpu_seconds=1) == UNKNOWN
    assert tried(lambda: time.sleep(60), seconds=0.5) == UNKNOWN
    assert time.monotonic() - began < 25
    assert children() == before


def test_an_interrupt_of_this_process_ends_it(tmp_path):
    before = children()
    signal.signal(signal.SIGALRM, lambda *_: fails())
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    with pytest.raises(RuntimeError, match="not caught"):
        tried(lambda: time.sleep(60))
    assert children() == before


def test_copies_act_meanwhile_and_no_longer(tmp_path):
    before = children()
    board = mmap.mmap(-1, mmap.PAGESIZE)
    seen = []

    def counts():
        seen.append(0)
        place = 8 * (os.getpid() % 256)
        board[place : place + 8] = len(seen).to_bytes(8, "little")
        time.sleep(0.001)

    def working():
        return sum(any(board[place : place + 8]) for place in range(0, len(board), 8))

    with meanwhile(counts, copies=3):
        until = time.monotonic() + 20
        while working() < 3 and time.monotonic() < until:
            time.sleep(0.01)
        assert working() == 3
    last = bytes(board)
    time.sleep(0.05)
    assert bytes(board) == last and seen == []
    assert children() == before


def test_copies_end_with_an_error_of_this_process():
    before = children()
    with pytest.raises(RuntimeError, match="not caught"), meanwhile(spins, copies=2):
        fails()
    assert children() == before


def test_a_copy_that_waits_for_a_thread_it_has_not_is_given_up():
    began = time.monotonic()
    assert tried(threading.Event().wait, seconds=120.0) == UNKNOWN
    assert time.monotonic() - began < 120


def test_a_copy_that_sleeps_now_and_then_is_not():
    def naps():
        for _ in range(6):
            time.sleep(0.5)
            sum(range(2_000_000))  # some ticks of the clock
        return "rested"

    assert tried(naps) == (True, "rested")
