"""What the names of files tell of a run directory that a command is given."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from mpifed.errors import InputError

# What a run or its job may have left in a directory before the run began to record.
BESIDE = ("job", "log.txt", "tensorboard", "tracking.json")


def check_finished(directory: Path) -> None:
    """Refuse what is not the directory of a finished run."""
    if not os.path.isdir(directory):  # False also for names that are too long
        what = "a file" if os.path.exists(directory) else "missing"
        raise InputError(f"RUN is '{directory}', which is {what}; it must be a run directory")
    if not (directory / "DONE").exists():
        raise InputError(f"RUN is '{directory}', which holds no finished run (it has no DONE)")


def check_output(output: Path) -> None:
    """Refuse a place where no directory can be made or written."""
    if os.path.exists(output) and not os.path.isdir(output):
        raise InputError(f"--output {output} is a file; it must be a directory, or not exist yet")
    try:
        ancestor = output.absolute()
        while not _is_there(ancestor):
            ancestor = ancestor.parent
        if not ancestor.is_dir():
            what = "a file" if ancestor.exists() else "a link that leads nowhere"
            raise InputError(f"--output {output} cannot be made: {ancestor} is {what}")
        with tempfile.TemporaryDirectory(dir=ancestor):  # access() permits root what /proc does not
            pass
    except OSError as error:
        raise InputError(
            f"--output {output} cannot be written in {ancestor}: {error.strerror}"
        ) from None


def _is_there(path: Path) -> bool:
    """Return whether a file, a directory or a link has this name."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def holds_run(directory: Path) -> bool:
    """Return whether ``directory`` holds a run, finished or not."""
    names = ("config.yaml", "metrics.csv", "DONE")
    begun = any(os.path.exists(directory / name) for name in names)
    return begun or any(directory.glob("checkpoints/round-*"))


def check_free(output: Path) -> None:
    """Check that a directory holds no run, which would be overwritten, and no foreign files."""
    if holds_run(output):
        raise InputError(
            f"--output {output} already holds a run; add --resume to continue it, --restart to "
            "begin anew, or choose another directory"
        )
    check_own(output)


def check_own(output: Path) -> None:
    """Check that a directory without a run holds no file that a run or a job does not write."""
    if not os.path.isdir(output) or holds_run(output):
        return
    foreign = sorted({path.name for path in output.iterdir()} - {*BESIDE})
    foreign = [name for name in foreign if not name.startswith((".", "replaced-"))]
    if foreign:
        raise InputError(
            f"--output {output} holds other files ('{foreign[0]}'); choose another directory"
        )


def chosen_rounds(rounds: tuple[int, int] | int | None, last: int) -> tuple[int, int]:
    """Return the first and the last round to repeat of a run."""
    if rounds is None:
        return 1, last
    if isinstance(rounds, int):
        if not 1 <= rounds <= last:
            raise InputError(f"--last is {rounds}; the run has {last} rounds")
        return last - rounds + 1, last
    if not 1 <= rounds[0] <= rounds[1] <= last:
        interval = f"{rounds[0]}:{rounds[1]}"
        raise InputError(f"--rounds is {interval}; it must be A:B with 1 <= A <= B <= {last}")
    return rounds
