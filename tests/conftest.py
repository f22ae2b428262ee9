from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from hypothesis import settings

from mpifed.watchdog import guard

settings.register_profile("thorough", max_examples=75, deadline=None)  # machines may be busy
settings.register_profile("quick", max_examples=25, deadline=None)
settings.load_profile("quick")  # unless pytest is told --hypothesis-profile=thorough


def pytest_collection_finish() -> None:
    """Spare the garbage collector thousands of tests, and torch, which stay to the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_end() -> Iterator[None]:
    """A test must not call what is to end its process, which would end that of pytest later."""
    yield
    assert guard._Process.code is None
