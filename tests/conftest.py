from __future__ import annotations

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

from mpifed import launch
from mpifed.supervision import exit as leaving
from mpifed.sweep import plan

settings.register_profile("thorough", max_examples=100, deadline=None)  # machines may be busy
settings.register_profile("quick", max_examples=50, deadline=None)
settings.load_profile("quick")  # unless pytest is told --hypothesis-profile=thorough

LIMIT = 120
"""Seconds after which a dry run is ended."""


@pytest.fixture(autouse=True)
def no_end() -> Iterator[None]:
    """A test must not call what is to end its process, which would end that of pytest later."""
    yield
    assert leaving._Ending.code is None


@pytest.fixture
def forked_dry_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dry runs that look for data are copies of this process, which spares them the imports."""
    monkeypatch.setattr(plan, "subprocess", SimpleNamespace(run=_fork))


def _fork(words: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """``python -m mpifed.run WORDS`` as ``subprocess.run`` would answer it."""
    assert words[:3] == [sys.executable, "-m", "mpifed.run"]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if not child:
            _run(words[3:], out.fileno(), err.fileno())
        _, status = os.waitpid(child, 0)
        out.seek(0)
        err.seek(0)
        code = os.waitstatus_to_exitcode(status)
        return subprocess.CompletedProcess(words, code, out.read(), err.read())


def _run(words: list[str], out: int, err: int) -> None:
    code = 70
    try:
        signal.alarm(LIMIT)
        sys.stdout, sys.stderr = os.fdopen(out, "w"), os.fdopen(err, "w")
        code = launch.main(words)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)
