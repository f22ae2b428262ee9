"""Real jobs: launchers, sweeps, and words that a shell would take for something else."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest
from local_slurm import (
    LocalSlurm,
    mpirun,
    newest_job,
    rows,
    summary,
    told,
    until,
)

pytestmark = pytest.mark.slurm


@pytest.mark.parametrize("launcher", ["mpirun", "srun"])
def test_two_nodes_with_four_ranks_each(
    launcher: str, slurm: LocalSlurm, whole: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    layout = ["job.nodes=2", "job.ranks=8", f"job.launcher={launcher}"]
    job = slurm.submit(output, *layout, pause=0)
    slurm.wait(job, "COMPLETED")
    assert rows(output) == rows(whole)
    assert summary(output)["ranks"] == 8
    assert slurm.show(job)["NodeList"] == "n[1-2]"


def test_a_sweep_is_an_array_with_a_report(slurm: LocalSlurm, tmp_path: Path) -> None:
    experiment, output = tmp_path / "two seeds.yaml", tmp_path / "sweep"
    experiment.write_text(
        "job: {ranks: 2, array_limit: 2, time: 0:10:00}\n"
        "sweep: {seed: [0, 1], algorithm: [patient:Patient]}\n"
        "rounds: 20\nclients: 4\ndata: {name: synthetic, n_test: 20, dimension: 20}\n"
        "evaluation: {every: 2}\n"
    )
    front = ["submit", "--site", "local-test", "--output", output, experiment]
    slurm.jobs(*front, "job.environment.PAUSE=1")
    job, runs = newest_job(output), sorted(output.glob("seed=*"))
    assert [run.name.split(",")[0] for run in runs] == ["seed=0", "seed=1"]
    # The last task of an array has the array's own number, by which SLURM means all of them.
    until(lambda: len(rows(runs[1])) > 2, 90, lambda: told(output))
    slurm.call("scancel", "--signal=USR1", "--batch", f"{job}_1")
    table = output / "report" / "table.md"
    until(table.exists, 120, lambda: told(output) + str(slurm.queue()))
    assert [slurm.show(f"{job}_{task}")["Restarts"] for task in (0, 1)] == ["0", "1"]
    assert all((run / "DONE").exists() for run in runs)
    assert len({summary(run)["state_digest"] for run in runs}) == 2
    told_of = slurm.jobs("status", output)
    assert told_of.count("round 20 of 20") == told_of.count("finished") == 2
    assert slurm.jobs("status", runs[1]).startswith(f"{runs[1]}: job {job}_1, finished")
    assert "patient" in table.read_text().lower()


def test_words_reach_the_run_as_they_were_given(slurm: LocalSlurm, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    name = f'it\'s "$(touch {trap})" `touch {trap}`; #é\\ %j & *'
    folder = tmp_path / f'it\'s a %j "$(touch {trap.name})" ; # & * run'
    folder.mkdir()
    experiment = folder / "own.yaml"
    experiment.write_text("clients: 4\ndata: {name: synthetic, n_test: 20, dimension: 20}\n")
    output = folder / "out"
    words = [experiment, "job.ranks=2", f"job.name='{name.replace(chr(39), chr(39) * 2)}'"]
    hostile = f"job.environment.HOSTILE='{name.replace(chr(39), chr(39) * 2)}'"
    front = ["submit", "--site", "local-test", "--smoke", "--output", output]
    slurm.jobs(*front, *words, hostile)
    smoke = folder / "out-smoke"
    slurm.wait(newest_job(smoke), "COMPLETED")
    assert (smoke / "DONE").exists(), told(smoke)
    assert [row["round"] for row in rows(smoke)] == ["0", "1"]
    assert not list(tmp_path.rglob("trap*"))
    assert not output.exists()
    for path in [smoke, *smoke.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


@pytest.mark.parametrize(("launcher", "each"), [("mpirun", 2), ("srun", 1)])
def test_the_processors_of_a_node_are_shared_by_its_ranks(
    launcher: str, each: int, binding_slurm: LocalSlurm, tmp_path: Path
) -> None:
    """Where SLURM binds tasks: srun gives each rank its own, mpirun leaves all to all of them."""
    output, python = tmp_path / "run", tmp_path / "python.sh"
    python.write_text(
        "#!/bin/bash\n"
        "rank=${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-batch}}}\n"
        f'grep Cpus_allowed: /proc/self/status >"{tmp_path}/rank-$rank"\n'
        f'exec "{sys.executable}" "$@"\n'
    )
    python.chmod(0o700)
    words = [f"job.mpirun={mpirun()}", f"job.launcher={launcher}", f"job.python={python}"]
    job = binding_slurm.submit(output, "job.ranks=2", *words, rounds=2, pause=0)
    binding_slurm.wait(job, "COMPLETED", "FAILED")
    assert (output / "DONE").exists(), told(output)
    masks = [int(path.read_text().split()[1], 16) for path in sorted(tmp_path.glob("rank-[01]"))]
    assert [mask.bit_count() for mask in masks] == [each, each]
    assert (masks[0] | masks[1]).bit_count() == 2


def test_ranks_run_inside_a_container(slurm: LocalSlurm, whole: Path, tmp_path: Path) -> None:
    """A program stands in for Apptainer: it notes the image and runs the rest."""
    output, apptainer, image = tmp_path / "run", tmp_path / "apptainer", tmp_path / "an image.sif"
    image.touch()
    apptainer.write_text(
        f'#!/bin/bash\n[ "$*" != "" ] && echo "$1|$2|$3|$4" >>"{tmp_path}/seen"\nexec "${{@:5}}"\n'
    )
    apptainer.chmod(0o700)
    inside = [f"job.image={image}", f"job.container={apptainer}", f"job.python={sys.executable}"]
    more = ["job.container_options=[--bind, /tmp]", "job.launcher=srun", "job.ranks=2"]
    job = slurm.submit(output, *inside, *more, pause=0)
    slurm.wait(job, "COMPLETED", "FAILED")
    assert rows(output) == rows(whole), told(output)
    assert set((tmp_path / "seen").read_text().splitlines()) == {f"exec|--bind|/tmp|{image}"}
