from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_slurm import HERE, WORDS, LocalSlurm, started

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [tool for tool in NEEDED if not shutil.which(tool, path=path)]
    for item in items:
        if Path(item.fspath).parent == HERE and missing:
            reason = f"no {missing[0]} on this machine; scripts/slurm/install installs SLURM"
            item.add_marker(pytest.mark.skip(reason=reason))


def _root(name: str) -> Path:
    return Path(f"/tmp/mpifed-slurm-{os.getpid()}-{name}")  # short, for it holds a socket


@pytest.fixture(scope="session")
def slurm() -> Iterator[LocalSlurm]:
    """Four virtual nodes; pre-emption sends a job its own signal first."""
    with started(_root("a"), 16817, gpus=2, grace=60) as found:
        yield found


@pytest.fixture(scope="module")
def blunt_slurm() -> Iterator[LocalSlurm]:
    """One whose pre-emption sends no signal of the user's."""
    with started(_root("b"), 18017, preempt_signal="no", grace=5, nodes=2) as found:
        yield found


@pytest.fixture(scope="module")
def binding_slurm() -> Iterator[LocalSlurm]:
    """One node that binds tasks to its two processors."""
    with started(_root("c"), 21017, bind="yes", nodes=1, cpus=2) as found:
        yield found


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that is never interrupted, on one rank and without SLURM."""
    output = tmp_path_factory.mktemp("whole") / "run"
    words = [*WORDS, "rounds=40", "--quiet", "--output", str(output)]
    subprocess.run(
        [sys.executable, "-m", "mpifed.run", *words],
        env=os.environ | {"PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=120,
    )
    return output
