"""What the names of files tell of a run directory that a command is given.

It needs neither torch nor HDF5, so a command refuses a wrong directory before it imports them.
"""

from __future__ import annotations

import os
from pathlib import Path

from mpifed.errors import InputError


def check_finished(directory: Path) -> None:
    """Refuse what is not the directory of a finished run.

    Parameters
    ----------
    directory : Path
        What was given as ``RUN``.

    Raises
    ------
    InputError
        If it is missing, a file, or without a file DONE.
    """
    if not os.path.isdir(directory):  # False also for names that are too long
        what = "a file" if os.path.exists(directory) else "missing"
        raise InputError(f"RUN is '{directory}', which is {what}; it must be a run directory")
    if not (directory / "DONE").exists():
        raise InputError(f"RUN is '{directory}', which holds no finished run (it has no DONE)")


def check_checkpointed(directory: Path) -> None:
    """Refuse a run directory without a checkpoint.

    Parameters
    ----------
    directory : Path
        What was given as ``RUN_DIR``.

    Raises
    ------
    InputError
        If there is no file that may be one.
    """
    if not any(Path(directory, "checkpoints").glob("*.h5")):
        raise no_checkpoint(directory)


def no_checkpoint(directory: Path) -> InputError:
    """Return the refusal of a run directory that has no intact checkpoint."""
    return InputError(f"RUN_DIR is '{directory}', which holds no intact checkpoint of a run")


def check_resumed(path: Path) -> None:
    """Refuse a path for ``--resume`` where there is nothing.

    Parameters
    ----------
    path : Path
        A checkpoint, or a run directory.

    Raises
    ------
    InputError
        If there is neither.
    """
    if not os.path.exists(path):
        raise InputError(f"--resume {path}: there is no such file")


def check_output(output: Path) -> None:
    """Refuse a file where a run directory is to be made.

    Parameters
    ----------
    output : Path
        What was given as ``--output``.

    Raises
    ------
    InputError
        If it is a file.
    """
    if os.path.exists(output) and not os.path.isdir(output):
        raise InputError(f"--output {output} is a file; it must be a directory, or not exist yet")


def chosen_rounds(rounds: tuple[int, int] | int | None, last: int) -> tuple[int, int]:
    """Return the first and the last round to repeat of a run.

    Parameters
    ----------
    rounds : tuple of int, int or None
        The first and the last; how many of the last; or None for all.
    last : int
        The last round of the run.

    Raises
    ------
    InputError
        If the run has no such rounds.

    Examples
    --------
    >>> chosen_rounds(None, 20), chosen_rounds(5, 20), chosen_rounds((3, 4), 20)
    ((1, 20), (16, 20), (3, 4))
    """
    if rounds is None:
        return 1, last
    if isinstance(rounds, int):
        if not 1 <= rounds <= last:
            raise InputError(f"--last is {rounds}; the run has {last} rounds")
        return last - rounds + 1, last
    if not 1 <= rounds[0] <= rounds[1] <= last:
        given = f"{rounds[0]}:{rounds[1]}"
        raise InputError(f"--rounds is {given}; it must be A:B with 1 <= A <= B <= {last}")
    return rounds
