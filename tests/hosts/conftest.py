from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig import HERE, SCRIPTS


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    can = os.getuid() == 0 and shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    for item in items:
        if Path(item.fspath).parent == HERE and not can:
            item.add_marker(pytest.mark.skip(reason="needs root and iproute2 (scripts/hosts)"))


@pytest.fixture
def hosts() -> Iterator[None]:
    """Four hosts with whole links."""
    subprocess.run([SCRIPTS / "stop"], check=True)
    subprocess.run([SCRIPTS / "start", "4"], check=True)
    yield
    subprocess.run([SCRIPTS / "stop"], check=True)
