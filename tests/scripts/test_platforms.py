"""Other Pythons, libraries and MPIs than those of this environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from distributions import ROOT

import mpifed

# Of MPIs as PyPI and Debian have them: the launcher, and where its library is.
MPICH = Path(sys.executable).with_name("mpirun"), Path(sys.prefix, "lib").glob("libmpi.so.12")
OPEN_MPI = Path("/usr/bin/mpirun.openmpi"), Path("/usr/lib").glob("*/libmpi.so.40")


@pytest.mark.platforms
def test_debian_13_installs_it_and_passes_tests():
    done = subprocess.run(
        [ROOT / "scripts" / "platforms", "debian13", "--quick"],
        capture_output=True,
        text=True,
        timeout=900,
    )
    if done.returncode == 77:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "Python 3.13" in done.stdout
    digests = dict(re.findall(r"^(\d) ranks: (\w{64})$", done.stdout, re.M))
    assert [*digests] == ["1", "3"] and digests["1"] == digests["3"]


@pytest.mark.platforms
def test_one_environment_takes_either_mpi(tmp_path):
    """``MPI4PY_LIBMPI`` and the launcher choose the MPI; nothing is installed anew."""
    found = {}
    for name, (launcher, libraries) in {"mpich": MPICH, "openmpi": OPEN_MPI}.items():
        library = next(libraries, None)
        if library is not None:
            assert f"{library.name} " in (ROOT / "docs" / "install.md").read_text()
        if library is None or shutil.which(launcher) is None:
            pytest.skip(f"{launcher} or its library is not there")
        words = ["mpifed", "run", "digits-fedem", "rounds=3", "--quiet", "--expect-ranks", "2"]
        mca = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        subprocess.run(
            [launcher, "-n", "2", sys.executable, "-m", *words, "--output", tmp_path / name],
            env={**os.environ, **mca, "MPI4PY_LIBMPI": str(library), "OMP_NUM_THREADS": "1"},
            check=True,
            timeout=120,
        )
        found[name] = mpifed.read(tmp_path / name).summary["state_digest"]
    assert found["mpich"] == found["openmpi"]
