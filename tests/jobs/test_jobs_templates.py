"""Templates that a user changes and submits by hand, on schedulers of small programs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from fake_slurm import FakeSlurm, fake_slurm
from rendering import TEMPLATES
from test_jobs_render import shellcheck
from test_jobs_script import ended, requeued

MOST_LINES = 40
SCRIPTS = [TEMPLATES / name for name in ("slurm.sbatch", "pbs.sh", "flux.sh")]
WORDS = ["synthetic-fedem", "clients=100"]
FLUX = """case $1 in
getattr) echo "$2" ;;
run) shift; while case $1 in -o) shift ;; -*) ;; *) false ;; esac; do shift; done; exec "$@" ;;
*) echo "$RUN_DIR $RESTARTS" >"$FAKE/handed" ;;
esac"""
QSUB = 'echo "$*" >"$FAKE/handed"'


@pytest.fixture
def cluster(tmp_path: Path) -> FakeSlurm:
    """Commands of SLURM, PBS and Flux, and ranks that do what ``FAKE/ranks`` says."""
    found = fake_slurm(tmp_path / "cluster")
    ranks = 'printf "%s\\n" "$@" >"$FAKE/words"; source "$FAKE/ranks"'
    for name, body in {
        "qsub": f'echo "$*" >>"$FAKE/qsub.calls"; {QSUB}',
        "flux": f'echo "$*" >>"$FAKE/flux.calls"; {FLUX}',
        "mpirun": 'shift 2; exec "$@"',
        "python3": ranks,
        "sleep": 'exec /bin/sleep "$@"',
    }.items():
        program = found.directory / "bin" / name
        program.write_text(f"#!/bin/bash\n{body}\n")
        program.chmod(0o700)
    return found


def submitted(
    path: Path, cluster: FakeSlurm, tmp_path: Path, ranks: str, *words: str, **more: str
) -> tuple[int, Path]:
    """The exit code of the script as its scheduler starts it, and the run directory."""
    cluster.answer("ranks", ranks)
    run = tmp_path / "a run"
    variables = {"RUN_DIR": str(run), "PBS_O_WORKDIR": str(tmp_path), "PBS_JOBID": "7.pbs"}
    variables |= {"SLURM_JOB_NAME": "mpifed", "PBS_JOBNAME": "mpifed", **more}
    script = f"cd {tmp_path}\nset -- {' '.join(words)}\n{path.read_text()}"
    code, _ = ended(cluster, script, **variables)
    return code, run


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_template_is_short_and_shellcheck_finds_nothing(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MOST_LINES
    command = [shellcheck(), "--shell=bash", "--severity=warning", str(path)]
    subprocess.run(command, check=True, timeout=60)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_template_runs_what_it_was_submitted_with(
    path: Path, cluster: FakeSlurm, tmp_path: Path
) -> None:
    code, run = submitted(path, cluster, tmp_path, 'touch "$RUN_DIR/DONE"', *WORDS)
    assert code == 0
    words = (cluster.directory / "words").read_text().splitlines()
    assert words[: 2 + len(WORDS)] == ["-m", "mpifed.run", *WORDS]
    assert words[2 + len(WORDS) :][:3] == ["--output", str(run), "--resume"]


@pytest.mark.parametrize(
    ("ranks", "code", "again"),
    [
        ("exit 75", (0, 75), True),
        ("exit 0", (0, 75), True),
        ("exit 1", (1,), False),
        ('touch "$RUN_DIR/job/stop"; exit 75', (75,), False),
    ],
)
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_template_goes_on_until_the_run_is_finished(
    path: Path, ranks: str, code: tuple[int, ...], again: bool, cluster: FakeSlurm, tmp_path: Path
) -> None:
    found, run = submitted(path, cluster, tmp_path, ranks, *WORDS)
    assert found in code
    handed = cluster.directory / "handed"
    if path.suffix == ".sbatch":
        assert requeued(cluster) == (["requeue 7"] if again else [])
    else:
        assert handed.exists() == again
        assert not again or (f"{run}" in handed.read_text() and "1" in handed.read_text())
    more = {"SLURM_RESTART_COUNT": "100", "RESTARTS": "100"}
    if again:
        assert submitted(path, cluster, tmp_path, ranks, *WORDS, **more)[0] == 76
