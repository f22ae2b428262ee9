"""The cache: federated files of data that take long to make, named by a hash of their arguments."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mpifed.data.federated_format import VERSION, Contents, read_contents
from mpifed.errors import InputError, RunError
from mpifed.replacing import PARTIAL

ABANDONED = 24 * 3600.0
"""Seconds after which an unfinished file is taken for one whose job was killed."""

log = logging.getLogger(__name__)


def cache_directory() -> Path:
    """Return the directory of the cache, which need not exist yet.

    It is ``$MPIFED_CACHE``, else ``$XDG_CACHE_HOME/mpifed``, else ``~/.cache/mpifed``.

    Raises
    ------
    InputError
        If neither variable is set and there is no home directory.
    """
    own, shared = os.environ.get("MPIFED_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return Path(own).expanduser().absolute()
    if shared and Path(shared).is_absolute():
        return Path(shared) / "mpifed"
    try:
        return Path.home() / ".cache" / "mpifed"
    except RuntimeError:
        raise InputError("MPIFED_CACHE is empty and there is no home directory; set it") from None


def cached(
    label: str, arguments: Mapping[str, Any], contents: Contents, make: Callable[[Path], None]
) -> Path:
    """Return the path of the cached federated file for ``arguments``, made if it is missing.

    A file that does not hold ``contents`` is made again, which is logged. Jobs may make the same
    file at once: each replaces it by an equal one.

    Parameters
    ----------
    label : str
        How the name of the file begins; a hash of the rest follows.
    arguments : mapping
        Everything that decides what is in the file, as values of JSON. The hash is of these and of
        the version of the format.
    contents : Contents
        What the file must hold.
    make : callable
        ``make(path)`` writes the file and gives it its name only when it is complete.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    InputError
        If the directory cannot be made or written.
    RunError
        If the disk refuses the file, for instance because it is full.
    """
    directory = cache_directory()
    text = json.dumps({"format": VERSION, **arguments}, sort_keys=True)
    path = directory / f"{label}-{hashlib.sha256(text.encode()).hexdigest()[:32]}.h5"
    if path.exists():
        try:
            if read_contents(path).same_rows(contents):
                return path
            log.warning("'%s' does not hold what its name says; it is made again", path)
        except InputError as error:
            log.warning("%s; it is made again", error)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_abandoned(directory)
    except OSError as error:
        raise InputError(
            f"the cache directory is '{directory}', which cannot be made ({error.strerror}); "
            "set MPIFED_CACHE to a directory that may be written"
        ) from None
    if not os.access(directory, os.W_OK | os.X_OK):
        raise InputError(
            f"the cache directory is '{directory}', which may not be written; "
            "set MPIFED_CACHE to one that may"
        )
    try:
        make(path)
    except RunError as error:
        raise RunError(f"{error}; MPIFED_CACHE may name another directory") from error
    return path


def _remove_abandoned(directory: Path) -> None:
    for partial in directory.glob(f".*{PARTIAL}"):
        try:
            if time.time() - partial.stat().st_mtime > ABANDONED:
                partial.unlink()
        except FileNotFoundError:
            continue
