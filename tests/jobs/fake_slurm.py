"""SLURM's commands as small programs that note how they were called, for tests without a SLURM.

What they answer is what SLURM 22.05 was seen to answer; tests/slurm asks the real one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

COMMANDS = {
    "sbatch": 'cat >"$FAKE/script"; env >"$FAKE/environment"; echo "${FAKE_JOB:-7};cluster"',
    "squeue": 'cat "$FAKE/queue" 2>/dev/null; exit 0',
    "scontrol": 'case "$*" in show*) cat "$FAKE/show" 2>/dev/null ;;\n'
    'requeue*) : >"$FAKE/queue" ;; esac; exit 0',
    "scancel": "exit 0",
    "sleep": "exit 0",
    "srun": 'if [ "$1" = --mpi=list ]; then echo "none pmi2 pmix"; exit 0; fi\n'
    'while case $1 in --*) true ;; *) false ;; esac; do shift; done; exec "$@"',
}


@dataclass(frozen=True)
class FakeSlurm:
    """Programs in ``directory``, which goes before the PATH."""

    directory: Path

    def calls(self, name: str) -> list[str]:
        """The words of every call of a command."""
        path = self.directory / f"{name}.calls"
        return path.read_text().splitlines() if path.exists() else []

    def answer(self, name: str, text: str) -> None:
        (self.directory / name).write_text(text)

    def variables(self, **more: str) -> dict[str, str]:
        path = f"{self.directory / 'bin'}:{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "FAKE": str(self.directory), **more}


def fake_slurm(directory: Path) -> FakeSlurm:
    """The commands, in ``directory/bin``."""
    (directory / "bin").mkdir(parents=True)
    for name, body in COMMANDS.items():
        program = directory / "bin" / name
        program.write_text(f'#!/bin/bash\nprintf "%s\\n" "$*" >>"$FAKE/{name}.calls"\n{body}\n')
        program.chmod(0o700)
    return FakeSlurm(directory)
