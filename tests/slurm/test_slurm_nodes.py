"""Ranks of a node add in shared memory, which the nodes of a job do not share."""

from __future__ import annotations

from pathlib import Path

import pytest
from local_slurm import LocalSlurm, rows, summary, told

pytestmark = pytest.mark.slurm


@pytest.mark.parametrize("launcher", ["mpirun", "srun"])
def test_sums_by_node_are_those_over_all_ranks(
    launcher: str, slurm: LocalSlurm, tmp_path: Path
) -> None:
    layout = ["job.nodes=2", "job.ranks=6", f"job.launcher={launcher}", "data.dimension=5000"]
    found = {}
    for way in ("auto", "flat"):
        output = tmp_path / way
        job = slurm.submit(output, *layout, f"exchange.reduction={way}", rounds=10, pause=0)
        slurm.wait(job, "COMPLETED")
        assert summary(output)["status"] == "finished", told(output)
        found[way] = output
    assert rows(found["auto"]) == rows(found["flat"])
    sent = {way: summary(output)["mpi_bytes_sent"] for way, output in found.items()}
    # Two leaders in place of six ranks hand over 8 bytes for each number of a message, once all
    # six have agreed that there is room.
    assert sent["flat"] - sent["auto"] == 10 * (6 - 2) * 5001 * 8 - 6 * 8
    assert summary(found["auto"])["up_bits"] == summary(found["flat"])["up_bits"]
