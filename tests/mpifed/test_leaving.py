"""How the process of a rank ends: its exit code, and what it has left to do."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import weakref

import h5py
import pytest
import torch
from commands import TINY, environment, launch, started

from mpifed.watchdog import exit as leaving

ENDINGS = {
    "asked to stop": (75, {"STOP": "1"}, []),
    "bad input": (2, {}, ["participation=0.5"]),
    "finished": (0, {}, []),
}
WORDS = (*TINY, "algorithm=user_endings:Lingers", "--quiet", "--output")


REMOVES = """
import sys, types, weakref
from mpifed.watchdog import exit as leaving

leaving.prepare()
sys.modules["torch.library"] = types.ModuleType("torch.library")  # which takes seconds to import
def removes(): print("removes")
removes.__module__ = "torch.library"
class Library: pass
library, other = Library(), Library()
weakref.finalize(library, removes)
weakref.finalize(other, print, "ends")
sys.exit(leaving.leave(7))
"""


def check_code(ending: str, seconds: str, target) -> None:
    code, variables, words = ENDINGS[ending]
    outcome = launch(4, *WORDS, target, *words, seconds=120, LINGER=seconds, **variables)
    assert outcome.code == code, outcome
    assert len(outcome.messages) == (code == 2), outcome
    assert "BAD TERMINATION" not in outcome.out + outcome.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "seconds"),
    [("asked to stop", "2,0,1,0"), ("bad input", "0,2,0,1"), ("finished", "0,0,0,2")],
)
def test_an_exit_code_survives_ranks_that_take_long_to_end(ending, seconds, tmp_path):
    check_code(ending, seconds, tmp_path / "run")


@pytest.mark.study
@pytest.mark.parametrize("ending", ENDINGS)
def test_an_exit_code_survives_a_busy_machine(ending, tmp_path):
    with contextlib.ExitStack() as busy:
        for _ in range(2 * (os.cpu_count() or 1)):
            busy.enter_context(started([sys.executable, "-c", "while True: pass"]))
        for number in range(10):
            seconds = ",".join(str((number * (rank + 1)) % 4) for rank in range(4))
            check_code(ending, seconds, tmp_path / str(number))


@pytest.mark.parametrize("ranks", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_an_end_loses_nothing(ranks, tmp_path):
    """Neither under a launcher, where a rank leaves in haste, nor without."""
    words = [*TINY, "algorithm=user_endings:Leaves", "--quiet", "--output", tmp_path / "run"]
    outcome = launch(ranks, *words, LEFT_IN=str(tmp_path))
    assert (outcome.code, outcome.messages) == (0, []), outcome
    assert outcome.err.count("RuntimeError: the user's last mistake") == max(1, ranks)
    for rank in range(max(1, ranks)):
        for name in ("text", "handler", "thread", "pool"):
            assert (tmp_path / f"{name}-{rank}").read_text() == "done"
        with h5py.File(tmp_path / f"data-{rank}.h5") as file:
            assert file["values"][:].tolist() == list(range(100))
        assert f"printed by {rank}\n" in outcome.out
        assert f"printed in C by {rank}\n" in outcome.out


@pytest.mark.slow
@pytest.mark.parametrize("what", ["a thread", "a function at the exit"])
@pytest.mark.parametrize("ranks", [0, 2])
def test_what_never_ends_does_not_hold_the_end_up(ranks, what, tmp_path):
    words = [*TINY, "algorithm=user_endings:NeverEnds", "--quiet", "--output", tmp_path / "run"]
    outcome = launch(ranks, *words, NEVER_ENDS=what)
    assert outcome.code == 0, outcome
    assert (tmp_path / "run" / "DONE").exists()
    (line,) = outcome.messages
    where = f"rank 1 on {socket.gethostname()} (clients 2 to 3): " if ranks else ""
    name = "the thread 'left over'" if what == "a thread" else "a function registered with atexit"
    assert line == f"mpifed: {where}{name} has not ended 2 s after the run, which ends without it"
    assert "BAD TERMINATION" not in outcome.out + outcome.err


ENDS = """
import atexit, ctypes, sys
from mpifed.watchdog import exit as leaving
from mpifed.watchdog import guard
kind = sys.argv[1]
class NoOnExit:
    def __init__(self, name):
        self._libc = libc
    def __getattr__(self, name):
        if name == "on_exit":
            raise AttributeError(name)
        return getattr(self._libc, name)
libc = ctypes.CDLL(None)
if kind == "no on_exit":
    ctypes.CDLL = NoOnExit
def action():
    if kind == "no output":
        sys.stdout = None
    if kind == "MPI before":
        import mpi4py.MPI
    if kind != "too early":
        leaving.skip_teardown()
    if kind == "raises":
        raise SystemExit(7)
    atexit.register(lambda: print("handled", file=sys.stderr))
    print("said", end="")
    return 7
sys.exit(guard.guarded(action))
"""


@pytest.mark.parametrize(
    "kind", ["as usual", "no on_exit", "MPI before", "too early", "no output", "raises"]
)
@pytest.mark.parametrize("guarded", [True, False])
def test_a_process_ends_with_its_code_whatever_is_loaded(kind, guarded):
    """Without torch, and without MPI but where it is named."""
    done = subprocess.run(
        [sys.executable, "-c", ENDS, kind],
        env=environment(**({"SLURM_PROCID": "0"} if guarded else {})),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 7, done
    if kind != "raises":
        assert done.stdout == ("" if kind == "no output" else "said")
        assert done.stderr == "handled\n"


def test_torch_keeps_its_operators_at_the_end_and_others_are_finalised():
    class Held:
        pass

    held = Held()
    own = weakref.finalize(held, print)
    library = torch.library.Library("mpifed_test_leaving", "DEF")
    library.define("nothing(Tensor x) -> Tensor")
    every = [one for one in weakref.finalize._registry if one.atexit]
    removals = [one for one in every if one.peek()[1] is torch.library._del_library]
    assert any(one.peek()[0] is library for one in removals)
    try:
        leaving.keep_operators()
        assert own.atexit
        assert not any(one.atexit for one in removals)
    finally:
        for one in removals:
            one.atexit = True
        own.detach()
        library._destroy()


def test_a_process_that_ends_removes_no_operators():
    """They are removed one by one where nothing prevents it."""
    done = subprocess.run(
        [sys.executable, "-c", REMOVES],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (7, "ends\n"), done


@pytest.mark.parametrize("prefork", ["0", "1"])
def test_guards_close_their_sockets(prefork, tmp_path):
    shown = {"PYTHONWARNINGS": "always::ResourceWarning", "MPIFED_PREFORK": prefork}
    ended = launch(2, *TINY, "--quiet", "--output", tmp_path / "run", **shown)
    assert (ended.code, "unclosed" in ended.err) == (0, False), ended
