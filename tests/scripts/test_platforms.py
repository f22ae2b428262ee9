"""mpifed with the Python, the MPI and the libraries of another system."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "platforms"


@pytest.mark.platforms
def test_another_debian_has_equal_digests_on_any_ranks_and_passes_tests():
    done = subprocess.run(
        [SCRIPT, "debian13", "--quick"], capture_output=True, text=True, timeout=850, check=False
    )
    if done.returncode == 77:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Python 3.13" in done.stdout
    alone, three = (line.split()[-1] for line in done.stdout.splitlines() if " ranks: " in line)
    assert alone == three
