"""The MPI that ``scripts/environment.sh`` chooses, and what it changes in the environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from distributions import ROOT

# Keeps a record of what it is to install or remove, and of nothing else.
PYTHON = f"""#!/bin/sh
if [ "$1 $2" != "-m pip" ]; then exec {sys.executable} "$@"; fi
echo "$*" >>"$(dirname "$0")/pip.log"
[ "$3" != "$FAILS" ]
"""

# Starts both ranks, except at its first starts.
MPIRUN = """#!/bin/sh
for folder; do :; done
echo >>"$0.starts"
[ "$(wc -l <"$0.starts")" -gt {failures} ] && touch "$folder/0-of-2" "$folder/1-of-2"
"""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def chosen(
    place: Path, failures: int, **variables: str
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Source the script beside an environment with an MPI, and an MPI of the system."""
    (place / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "environment.sh", place / "scripts")
    for name in ("setup.py", "pyproject.toml", "constraints.txt"):
        (place / name).touch()
    write(place / ".venv" / "bin" / "python", PYTHON)
    write(place / ".venv" / "bin" / "mpirun", MPIRUN.format(failures=failures))
    write(place / "system" / "mpirun", MPIRUN.format(failures=0))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "source scripts/environment.sh; echo $MPIRUN"],
        cwd=place,
        env=os.environ | {"PATH": f"{place / 'system'}:{os.environ['PATH']}", **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    log = (place / ".venv" / "bin" / "pip.log").read_text().splitlines()
    return done, [line for line in log if " uninstall " in line]


@pytest.mark.parametrize("failures", [0, 1])
def test_an_mpi_that_starts_at_the_second_try_stays(failures, tmp_path):
    done, removed = chosen(tmp_path, failures)
    assert (done.returncode, removed) == (0, [])
    assert done.stdout == f"{tmp_path / '.venv' / 'bin' / 'mpirun'}\n"


@pytest.mark.parametrize("variables", [{}, {"MPIFED_MPI": "mpich", "FAILS": "download"}])
def test_an_mpi_is_kept_where_no_other_was_chosen_or_can_be_had(variables, tmp_path):
    done, removed = chosen(tmp_path, 9, **variables)
    assert (done.returncode, removed) == (1, [])
    assert "stays as it is" in done.stderr


def test_an_mpi_is_removed_where_that_of_the_system_was_chosen(tmp_path):
    done, removed = chosen(tmp_path, 0, MPIFED_MPI="system")
    assert (done.returncode, len(removed)) == (0, 2)
    assert done.stdout == f"{tmp_path / 'system' / 'mpirun'}\n"
