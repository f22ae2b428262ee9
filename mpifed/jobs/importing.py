"""What it costs a rank to import mpifed and what it needs, and whether a copy costs less.

    python -m mpifed.jobs.importing ARCHIVE DIRECTORY

compares one import from this Python's environment with reading an archive of it in one piece and
writing it to a local disk. The exit code is 0 where the copy takes less time, 1 where it does not.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mpifed.errors import EXIT_FAILED, EXIT_FINISHED, InputError, RunError, complain, text_of

PATIENCE = 600
"""Seconds after which an import is given up."""

PROBE = 64 << 20
"""Bytes of an archive that are copied to find out how fast that is."""

COUNTING = """
import json, os, sys, time
began = time.perf_counter()
import importlib._bootstrap_external as finding
looked_up, stat = [0], finding._path_stat
def counted(path):
    looked_up[0] += 1
    return stat(path)
finding._path_stat = counted
def hear(event, values):
    looked_up[0] += event in ("open", "os.listdir", "os.scandir")
sys.addaudithook(hear)
import mpi4py
mpi4py.rc.initialize = False
import mpifed.api
with open("/proc/self/maps") as maps:
    libraries = {line.split()[-1] for line in maps if ".so" in line}
used = os.times()
print(json.dumps([time.perf_counter() - began, used.user, used.system,
                  looked_up[0] + len(libraries)]))
"""
"""What a Python runs to count the paths that its imports ask the file system for."""


@dataclass(frozen=True)
class Cost:
    """What one process takes to import mpifed and all that it needs.

    Attributes
    ----------
    seconds, user, system : float
        Wall seconds, and CPU seconds of the process and of the system for it.
    paths : int
        Paths that the file system was asked for, of files that are there or not.
    """

    seconds: float
    user: float
    system: float
    paths: int

    def of_ranks(self, ranks: int) -> str:
        """Return a line that says so, and what it is for so many ranks."""
        many = f"; {ranks} ranks look up {self.paths * ranks:,}" if ranks > 1 else ""
        return (
            f"importing takes {self.seconds:.1f} s here ({self.user:.1f} s of user and "
            f"{self.system:.1f} s of system time) and looks up {self.paths:,} paths{many}"
        )


def cost(python: str = sys.executable) -> Cost:
    """Measure one import in a process of its own.

    Parameters
    ----------
    python : str
        The interpreter.

    Raises
    ------
    RunError
        If it cannot import mpifed.
    """
    command = [python, "-c", COUNTING]
    try:
        said = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, check=True
        ).stdout
        seconds, user, system, paths = json.loads(said.splitlines()[-1])
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise RunError(f"{python} cannot import mpifed: {last}") from None
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
        raise RunError(f"{python} cannot import mpifed: {error}") from None
    return Cost(float(seconds), float(user), float(system), int(paths))


def seconds_to_copy(archive: Path, directory: Path, probe: int = PROBE) -> float:
    """Estimate how long it takes to copy an archive in one piece, from its first bytes.

    Parameters
    ----------
    archive : Path
        The archive.
    directory : Path
        Where it is unpacked.
    probe : int
        Bytes that are copied.

    Raises
    ------
    InputError
        If one cannot be read or the other not be written to.
    """
    try:
        size, done = archive.stat().st_size, 0
        with archive.open("rb") as source, tempfile.TemporaryFile(dir=directory) as target:
            began = time.perf_counter()
            while done < probe and (piece := source.read(1 << 22)):
                target.write(piece)
                done += len(piece)
            target.flush()
            return (time.perf_counter() - began) * size / max(1, done)
    except OSError as error:
        raise InputError(f"{archive} cannot be copied to {directory}: {error.strerror}") from None


def main(words: Sequence[str] | None = None) -> int:
    """Compare a copy of an environment with an import from it; return the exit code."""
    given = list(sys.argv[1:] if words is None else words)
    try:
        if len(given) != 2:
            raise InputError("give an ARCHIVE and a DIRECTORY")
        # The copy first: the import leaves files in memory, which may be those of the archive.
        copying, importing = seconds_to_copy(Path(given[0]), Path(given[1])), cost()
    except (InputError, RunError) as error:
        complain("mpifed.jobs.importing", text_of(error))
        return 2
    faster = copying < importing.seconds
    verdict = "staging is faster" if faster else "staging is not faster"
    print(f"{importing.of_ranks(1)}; a copy of the environment takes {copying:.1f} s: {verdict}")
    return EXIT_FINISHED if faster else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
