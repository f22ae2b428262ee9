"""What scripts/hosts and scripts/slurm believe of processes that they are to end or to enter."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


def run(script: str, variable: str, root: Path, *words: str) -> int:
    line = ["env", f"{variable}={root}", str(SCRIPTS / script), *words]
    return subprocess.run(line, capture_output=True, timeout=60, check=False).returncode


def born(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[19]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = tmp_path / "root"
    directory.mkdir(mode=0o700)
    return directory


@pytest.fixture
def victim(root: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that could be a daemon of this directory, but for when it began."""
    shutil.copy(shutil.which("sleep") or "sleep", root / "munged")
    with subprocess.Popen([root / "munged", "60"]) as process:
        yield process
        process.kill()


def test_slurm_ends_a_process_only_if_it_began_when_that_of_slurm_did(root, victim):
    (root / "run").mkdir()
    (root / ".mpifed-slurm").touch()
    (root / "run" / "munged.pid").write_text(str(victim.pid))
    for began in (None, "1", str(int(born(victim.pid)) + 1)):
        if began is not None:
            (root / "run" / "munged.born").write_text(began)
        assert run("slurm/stop", "LOCAL_SLURM_ROOT", root) == 0
        assert victim.poll() is None
    (root / "run" / "munged.born").write_text(born(victim.pid))
    root.chmod(0o755)
    for script in ("slurm/stop", "slurm/start"):
        assert run(script, "LOCAL_SLURM_ROOT", root) == 2
    assert victim.poll() is None
    root.chmod(0o700)
    assert run("slurm/stop", "LOCAL_SLURM_ROOT", root) == 0
    assert victim.wait(10) == -15


def test_hosts_are_entered_only_by_the_process_that_was_started_for_them(root, victim):
    (root / "node1").write_text(f"{victim.pid} {int(born(victim.pid)) + 1}")
    assert run("hosts/enter", "LOCAL_HOSTS_ROOT", root, "node1", "true") == 2
    (root / "node1").write_text(str(victim.pid))
    assert run("hosts/enter", "LOCAL_HOSTS_ROOT", root, "node1", "true") == 2
    assert victim.poll() is None


@pytest.mark.parametrize("script", ["enter", "link", "start", "stop"])
def test_hosts_are_kept_in_a_directory_of_nobody_else(script, root, tmp_path):
    root.chmod(0o755)
    (tmp_path / "link").symlink_to(root)
    for directory in (root, tmp_path / "link"):
        assert run(f"hosts/{script}", "LOCAL_HOSTS_ROOT", directory, "2", "whole") == 2
    assert root.exists() and not list(root.iterdir())
