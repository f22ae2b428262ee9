"""Published files as they lie on a disk: found by name, plain or compressed."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from mpifed.errors import InputError, one_line
from mpifed.memory import check_memory
from topologies.inputs import open_regular

Stream = IO[bytes] | io.BufferedReader

OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}


MOST_TIMES = 500
"""By how much a compressed file may grow; published data grow less than a hundredfold."""

UNCHECKED = 1 << 26
"""Bytes up to which it may grow by more."""


@contextlib.contextmanager
def opened(
    path: Path, held: float = 0.0, ending: str | None = None, within: IO[bytes] | None = None
) -> Iterator[Stream]:
    """Open ``path`` for reading bytes, decompressed if its name ends in .gz, .xz or .bz2.

    Parameters
    ----------
    path : Path
        A regular file.
    held : float
        Bytes of memory that the reader takes for each byte that it reads.
    ending : str, optional
        The ending of the compression, where the name does not have it.
    within : file object, optional
        The bytes of the file where it is a member of an archive; ``path`` is then its name alone.

    Yields
    ------
    Stream
        The decompressed bytes, to be read from first to last.

    Raises
    ------
    InputError
        If the disk or the decompression fails while the stream is open, if a file grows by more
        than ``MOST_TIMES``, or if memory cannot hold it.
    """
    open_stream = OPENERS.get(path.suffix if ending is None else ending)
    try:
        with open_regular(path) if within is None else contextlib.nullcontext(within) as raw:
            if open_stream is None:
                size = os.fstat(raw.fileno()).st_size
                check_memory(held * size, f"'{path}' cannot be read: it")
                yield raw
                return
            with open_stream(raw, "rb") as inner:
                yield io.BufferedReader(_Growing(path, raw, inner, held), 1 << 20)
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror or error}") from error
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise InputError(f"'{path}' cannot be read: {error}") from error


class _Growing(io.RawIOBase):
    """What ``inner`` makes of ``raw``, refused where it becomes too much."""

    def __init__(self, path: Path, raw: IO[bytes], inner: IO[bytes], held: float) -> None:
        self._path, self._raw, self._inner, self._held = path, raw, inner, held
        self._made, self._unchecked = 0, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._inner.read(len(buffer))
        buffer[: len(piece)] = piece
        self._made += len(piece)
        self._unchecked += len(piece)
        if self._unchecked > UNCHECKED:
            self._check()
        return len(piece)

    def _check(self) -> None:
        self._unchecked = 0
        if self._made > MOST_TIMES * self._raw.tell():
            raise InputError(
                f"'{self._path}' cannot be read: it grows by more than {MOST_TIMES} times when it "
                "is decompressed"
            )
        # What was read so far is held already.
        check_memory(self._held * UNCHECKED, f"'{self._path}' cannot be read: the rest of it")


def located(given: str | None, folder: str, raw: str | None = None) -> Path:
    """Return the file meant by the options ``data.path`` and ``data.raw``.

    The ending of a compressed file may be left out.

    Parameters
    ----------
    given : str or None
        ``data.path``. With ``raw`` it is a name in that directory, and None its only file. Without,
        it is a path or a name in ``$MPIFED_DATA/folder``, and None the only file there.
    folder : str
        Directory of ``$MPIFED_DATA`` that is searched.
    raw : str, optional
        ``data.raw``, a directory.

    Raises
    ------
    InputError
        If the file or the directory does not exist.
    """
    home = os.environ.get("MPIFED_DATA")
    if given is None and raw is None:
        if not home:
            raise InputError(
                "data.path and data.raw are empty and MPIFED_DATA is not set; one of them must say "
                "where the file is"
            )
        raw = str(Path(home) / folder)
        if not os.path.isdir(raw):
            raise InputError(
                f"data.path and data.raw are empty, and MPIFED_DATA, '{home}', has no directory "
                f"'{folder}'; one of them must say where the file is"
            )
    if raw is not None and not os.path.isdir(Path(raw).expanduser()):
        raise InputError(f"data.raw is '{raw}', but there is no such directory")
    if given is None:
        return _only_file(Path(str(raw)).expanduser())
    places = [Path(given).expanduser()]
    if raw is not None:
        places = [Path(raw).expanduser() / given]
    elif home and os.sep not in given:
        places.append(Path(home) / folder / given)
    for place in places:
        for ending in ("", *OPENERS):
            path = place.with_name(place.name + ending) if place.name else place
            if os.path.isfile(path):  # False also for names that are too long
                return path
    hint = "; MPIFED_DATA or data.raw may name its directory"
    if len(places) > 1 or raw is not None:
        hint = f" in '{places[-1].parent}'"
    *first, last = OPENERS
    raise InputError(
        f"data.path is '{given}', but there is no such file, plain or with {', '.join(first)} or "
        f"{last}{hint}"
    )


def _only_file(raw: Path) -> Path:
    files = sorted(path for path in raw.iterdir() if path.is_file())
    if len(files) != 1:
        names = ", ".join([path.name for path in files[:5]] + ["..."] * (len(files) > 5))
        shown = f" ({one_line(names, 200)})" if files else ""
        raise InputError(
            f"data.raw is '{raw}', which holds {len(files)} files{shown}; data.path must name one "
            "of them"
        )
    return files[0]


def bare_name(path: Path) -> str:
    """Return the name of a file without the ending of a compression.

    Examples
    --------
    >>> bare_name(Path("data/a6a.txt.bz2"))
    'a6a.txt'
    """
    return path.stem if path.suffix in OPENERS else path.name
