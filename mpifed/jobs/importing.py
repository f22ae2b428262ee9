"""What it costs a rank to import mpifed and what it needs, and whether a copy costs less."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from mpifed.command import carried_out
from mpifed.errors import EXIT_FAILED, EXIT_FINISHED, InputError, RunError, complain, text_of

# Seconds after which an import is given up.
PATIENCE = 600

# Bytes of an archive that are unpacked to find out how fast that is, and in how many places: small
# files lie together, and take longer than large ones.
PROBE, PARTS = 64 << 20, 8

BLOCK = tarfile.BLOCKSIZE

# What a Python runs to count the paths that its imports ask the file system for.
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


@dataclass(frozen=True)
class Cost:
    """What one process takes to import mpifed and all that it needs."""

    seconds: float
    user: float
    system: float
    paths: int

    @property
    def waiting(self) -> float:
        """Wall seconds of the import in which nothing was computed: files were waited for."""
        return max(0.0, self.seconds - self.user - self.system)

    def of_ranks(self, ranks: int) -> str:
        """Return a line that says so, and what it is for so many ranks."""
        many = f"; {ranks} ranks look up {self.paths * ranks:,}" if ranks > 1 else ""
        return (
            f"importing takes {self.seconds:.1f} s here ({self.user:.1f} s of user and "
            f"{self.system:.1f} s of system time) and looks up {self.paths:,} paths{many}"
        )


def cost(python: str = sys.executable) -> Cost:
    """Measure one import in a process of its own."""
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


def seconds_to_unpack(archive: Path, directory: Path, probe: int = PROBE) -> float:
    """Estimate how long it takes to unpack an archive, from parts of it that are unpacked."""
    try:
        size = archive.stat().st_size
        with archive.open("rb") as source:
            parts = PARTS if size > probe and is_plain(source) else 1
            length = min(size, probe) // parts // BLOCK * BLOCK or size
            began = time.perf_counter()
            pieces = []
            for k in range(parts):
                source.seek((size - length) * k // max(1, parts - 1) // BLOCK * BLOCK)
                pieces.append(source.read(length))
            seconds = time.perf_counter() - began
        done = sum(map(len, pieces))
        if parts > 1:
            pieces = [complete(piece, f"part-{k}") for k, piece in enumerate(pieces)]
        with tempfile.TemporaryDirectory(dir=directory) as place:
            seconds += _unpacked(b"".join(pieces), place)
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"{archive} cannot be unpacked in {directory}: {why}") from None
    return seconds * size / max(1, done)


def _unpacked(archive: bytes, place: str) -> float:
    """Unpack an archive, or the beginning of one; return the seconds that it took."""
    packed, files = Path(place, "archive"), Path(place, "files")
    packed.write_bytes(archive)  # tar finds out how a file is compressed, but not a pipe
    files.mkdir()
    began = time.perf_counter()
    # It may end within a file, and have links to files that it lacks, of which tar complains.
    command = ["tar", "-x", "-f", str(packed), "-C", str(files)]
    said = subprocess.run(command, capture_output=True, check=False).stderr
    seconds = time.perf_counter() - began
    if not any(files.iterdir()):
        why = said.decode(errors="replace").strip().splitlines()
        raise OSError(f"tar says: {why[0]}" if why else "nothing was unpacked")
    return seconds


def is_plain(source: IO[bytes]) -> bool:
    """Return whether an open file begins as a tar archive that is not compressed."""
    source.seek(0)
    return _header(source.read(BLOCK)) is not None


def complete(piece: bytes, name: str) -> bytes:
    """Return a piece of an archive as one without an end, to which another can be added."""
    starts = range(0, len(piece), BLOCK)
    first = next((at for at in starts if _header(piece[at : at + BLOCK])), len(piece))
    at = first
    while (header := _header(piece[at : at + BLOCK])) is not None:
        after = at + BLOCK - (-header.size // BLOCK * BLOCK)
        if after > len(piece):
            break
        at = after
    rest = piece[at + BLOCK :] if header is not None else b""
    return (
        _as_file(f"{name}-first", piece[:first]) + piece[first:at] + _as_file(f"{name}-last", rest)
    )


def _as_file(name: str, blocks: bytes) -> bytes:
    """A file of whole blocks in an archive; nothing for none."""
    header = tarfile.TarInfo(name)
    header.size = len(blocks)
    return header.tobuf() + blocks if blocks else b""


def _header(block: bytes) -> tarfile.TarInfo | None:
    """What a block says where it is the header of a file in an archive."""
    if block[257:262] != b"ustar":
        return None
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return None


def main(words: Sequence[str] | None = None) -> int:
    """Compare unpacking an environment with an import from it; return the exit code."""
    given = list(sys.argv[1:] if words is None else words)
    try:
        if len(given) != 2:
            raise InputError("give an ARCHIVE and a DIRECTORY")
        # Unpacking first: the import leaves files in memory, which may be those of the archive.
        unpacking, importing = seconds_to_unpack(Path(given[0]), Path(given[1])), cost()
    except (InputError, RunError) as error:
        complain("mpifed.jobs.importing", text_of(error))
        return 2
    faster = unpacking < importing.waiting
    verdict = "staging is faster" if faster else "staging is not faster"
    print(
        f"{importing.of_ranks(1)}, and waits {importing.waiting:.1f} s for files; unpacking the "
        f"environment takes {unpacking:.1f} s: {verdict}"
    )
    return EXIT_FINISHED if faster else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(carried_out("mpifed.jobs", main))
