"""Checks of whether a script would run, as far as they are possible in advance."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from mpifed.errors import InputError
from mpifed.jobs import slurm
from mpifed.jobs.plan import Job, experiment_file
from mpifed.sweep import plan as sweep

PATIENCE = 60


def checks(job: Job, script: str) -> Iterator[str]:
    """Check a job and its script."""
    layout = job.layout
    nodes = f" on {layout.nodes} nodes" if layout.nodes else ""
    yield f"{len(job.runs)} run{'s' * (len(job.runs) > 1)} of {layout.ranks} ranks{nodes}"
    yield from found_here(job)
    _tool("bash", "-n", script=script)
    yield "bash reads the script"
    # shellcheck's hints on style are for whoever writes templates; what is quoted may look odd
    if shutil.which("shellcheck"):
        _tool("shellcheck", "--severity=warning", "-", script=script)
        yield "shellcheck finds no fault"
    else:
        yield "shellcheck is not installed: left out"
    yield slurm.test_only(script) if slurm.present() else "there is no SLURM here: left out"


def found_here(job: Job) -> Iterator[str]:
    """Look for the programs and data that a job needs, on this machine."""
    options = job.options
    if options.image is None and options.stage is None:
        yield _program("python", options.python or sys.executable, job)
        if options.launcher == "mpirun" and options.mpirun is not None:
            yield _program("mpirun", options.mpirun, job)
    if options.launcher == "srun" and options.mpi != "auto" and slurm.present():
        plugins = slurm.mpi_plugins()
        if options.mpi not in plugins:
            raise InputError(f"job.mpi is '{options.mpi}'; this SLURM has {', '.join(plugins)}")
        yield f"SLURM has srun --mpi={options.mpi}"
    # pyxis takes names of a registry too
    image = None if options.pyxis else options.image
    for name, path in (("stage", options.stage), ("image", image)):
        if path is not None and not Path(path).exists():
            raise InputError(f"job.{name} is '{path}'; there is no such file here")
    with experiment_file(job.experiment, job.text) as source:
        sweep.check_data(source, job.runs)
    yield "the data can be read here"


def _program(name: str, program: str, job: Job) -> str:
    options = job.options
    if "/" not in program and (options.modules or options.prologue or options.login_shell):
        return f"job.{name} is left to the job, whose modules or prologue may bring {program}"
    if not shutil.which(program):
        raise InputError(f"job.{name} is '{program}'; there is no such program here")
    return f"job.{name} is {program}"


def _tool(*command: str, script: str) -> None:
    answer = subprocess.run(
        command, input=script, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    if answer.returncode:
        said = (answer.stdout + answer.stderr).strip().splitlines()
        raise InputError(f"{command[0]} finds a fault in the script: {'; '.join(said[:4])}")
