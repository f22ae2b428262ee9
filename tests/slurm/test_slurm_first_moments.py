"""A rank on one of two nodes that is killed before MPI has begun."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from local_slurm import HERE, LocalSlurm, ranks, told, until

pytestmark = pytest.mark.slurm

EARLY = HERE.parent / "mpifed" / "early"


@pytest.mark.parametrize("launcher", ["mpirun", "srun"])
def test_a_rank_killed_before_mpi_has_begun_ends_the_job_on_all_nodes(
    launcher: str, slurm: LocalSlurm, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    words = ["job.nodes=2", "job.ranks_per_node=2", f"job.launcher={launcher}"]
    words += ["job.environment.MPIFED_PREFORK=0"]  # it imports torch for itself
    words += ["job.environment.EARLY=die:3:torch", f"job.environment.PYTHONPATH={EARLY}:{HERE}"]
    job = slurm.submit(output, *words)
    known = slurm.wait(job, "FAILED", "COMPLETED", "TIMEOUT", seconds=120)
    assert known["JobState"] == "FAILED", told(output)
    assert known["Restarts"] == "0"
    lines = [line for line in told(output).splitlines() if "mpifed: rank" in line]
    # Without a common parent, another node may report first what this one's end did to it.
    named = r"mpifed: rank 3 on n2: .*first round.*SIGKILL.*[\d,]+ MB"
    assert any(re.search(named, line) for line in lines), lines
    until(lambda: not ranks(output), 60)
