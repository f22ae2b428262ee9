"""Published files as they lie on a disk: found by name, plain or compressed."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from mpifed.errors import InputError

Stream = IO[bytes] | gzip.GzipFile | lzma.LZMAFile | bz2.BZ2File

OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Stream]:
    """``path`` opened for reading bytes, decompressed if its name ends in .gz, .xz or .bz2.

    What the disk or the decompression refuses meanwhile becomes an ``InputError``.
    """
    try:
        with OPENERS.get(path.suffix, open)(path, "rb") as stream:
            yield stream
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise InputError(f"'{path}' cannot be read: {error}") from error


def located(given: str | None, folder: str, raw: str | None = None) -> Path:
    """The file that ``data.path`` = ``given`` in the directory ``data.raw`` = ``raw`` means.

    With ``raw``, ``given`` is a name in it, or null for its only file; else it is a path, or a name
    in ``$MPIFED_DATA/folder``. The ending of a compressed file may be left out. Raises
    ``InputError`` if there is no such file.
    """
    if raw is not None and not Path(raw).expanduser().is_dir():
        raise InputError(f"data.raw is '{raw}', but there is no such directory")
    if given is None:
        return _only_file(raw)
    home = os.environ.get("MPIFED_DATA")
    places = [Path(given).expanduser()]
    if raw is not None:
        places = [Path(raw).expanduser() / given]
    elif home and os.sep not in given:
        places.append(Path(home) / folder / given)
    for place in places:
        for ending in ("", *OPENERS):
            path = place.with_name(place.name + ending) if place.name else place
            if path.is_file():
                return path
    hint = "(MPIFED_DATA or data.raw may name a directory)"
    if len(places) > 1 or raw is not None:
        hint = f"in '{places[-1].parent}'"
    raise InputError(
        f"data.path is '{given}', but there is no such file, plain or with {', '.join(OPENERS)}, "
        f"{hint}"
    )


def _only_file(raw: str | None) -> Path:
    if raw is None:
        raise InputError("data.path is empty; it must name a file, or data.raw its directory")
    files = [path for path in Path(raw).expanduser().iterdir() if path.is_file()]
    if len(files) != 1:
        raise InputError(
            f"data.raw is '{raw}', which holds {len(files)} files; data.path must name one of them"
        )
    return files[0]


def bare_name(path: Path) -> str:
    """The name of a file without the ending of a compression."""
    return path.stem if path.suffix in OPENERS else path.name
