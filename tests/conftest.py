from __future__ import annotations

import importlib
import io
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings

from mpifed.sweep import dry_runs
from mpifed.watchdog import guard

settings.register_profile("thorough", max_examples=100, deadline=None)  # machines may be busy
settings.register_profile("quick", max_examples=50, deadline=None)
settings.load_profile("quick")  # unless pytest is told --hypothesis-profile=thorough

LIMIT = 120
"""Seconds after which a dry run is ended."""


@pytest.fixture(autouse=True)
def no_end() -> Iterator[None]:
    """A test must not call what is to end its process, which would end that of pytest later."""
    yield
    assert guard._Process.code is None


@pytest.fixture
def forked_dry_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dry runs that look for data are copies of this process, which spares them the imports."""
    monkeypatch.setattr(dry_runs, "subprocess", SimpleNamespace(run=_fork))


def _fork(words: list[str], input: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """``python -m mpifed.dry_runs`` as ``subprocess.run`` would answer it."""
    assert words == [sys.executable, "-m", dry_runs.MODULE]
    with tempfile.TemporaryFile("w+") as out:
        child = os.fork()
        if not child:
            _run(input, out.fileno())
        _, status = os.waitpid(child, 0)
        out.seek(0)
        return subprocess.CompletedProcess(words, os.waitstatus_to_exitcode(status), out.read())


def _run(asked: str, out: int) -> None:
    code = 70
    try:
        signal.alarm(LIMIT)
        os.dup2(out, 1)
        sys.stdin = io.StringIO(asked)
        importlib.import_module(dry_runs.MODULE).main()
        code = 0
    finally:
        os._exit(code)
