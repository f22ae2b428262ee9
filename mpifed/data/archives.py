"""Published sets of files: a directory, a zip archive or a tar archive, read in one way."""

from __future__ import annotations

import contextlib
import lzma
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from mpifed.data.compressed import MOST_TIMES, OPENERS, UNCHECKED, Stream, opened
from mpifed.errors import InputError, one_line
from mpifed.memory import check_memory
from topologies.inputs import open_regular

TARS = (".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2")

MOST_MEMBERS = 1 << 21
"""Members of an archive, or files of a directory, that are looked at."""

Wanted = Callable[[str], bool]

UNREADABLE = (
    *(OSError, EOFError, ValueError, NotImplementedError, RuntimeError),
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError),
    *(OverflowError, LookupError, struct.error),
)
"""What zipfile, tarfile and decompression raise for damaged archives and encrypted members."""


def is_archive(path: Path) -> bool:
    """Return whether the name of a file is that of a zip or tar archive.

    Examples
    --------
    >>> is_archive(Path("cifar-10-python.tar.gz")), is_archive(Path("data_batch_1"))
    (True, False)
    """
    return path.name.endswith((".zip", *TARS))


def contents(place: Path, wanted: Wanted, held: float = 1.0) -> Iterator[tuple[str, bytes]]:
    """Yield the names and the bytes of files of a directory or archive.

    Parameters
    ----------
    place : Path
        A directory, or an archive (zip, or tar plain or compressed).
    wanted : callable
        Whether a file is read, by its name: relative to ``place``, with slashes.
    held : float
        Bytes of memory that the caller takes for each byte of a file.

    Yields
    ------
    tuple of str and bytes
        A file whose name ends in .gz, .xz or .bz2 is decompressed. Files of a directory and of a
        zip archive come in the order of their names, those of a tar archive in its own.

    Raises
    ------
    InputError
        If the archive is damaged, or a file grows by more than ``MOST_TIMES`` or beyond memory when
        it is decompressed.
    """
    with _readable(place):
        for name, stream in _members(place, wanted, held):
            with _readable(place / name):
                content = stream.read()
            yield name, content


@contextlib.contextmanager
def member(place: Path, name: str, held: float = 1.0) -> Iterator[Stream]:
    """Open one file of a directory or archive for reading its bytes, decompressed.

    Parameters
    ----------
    place, held
        As for ``contents``.
    name : str
        The name of the file.

    Raises
    ------
    InputError
        If there is none, and as by ``contents`` while the file is open.
    """
    with _readable(place / name):
        for _, stream in _members(place, lambda found: found == name, held):
            yield stream
            return
    raise InputError(f"'{place}' has no file '{name}'")


def names(place: Path) -> list[str]:
    """Return the names of all files in a directory or a zip archive, sorted."""
    found: list[str] = []

    def note(name: str) -> bool:
        found.append(name)
        return False

    with _readable(place):
        for _ in _members(place, note, 0.0):
            pass
    return sorted(found)


@contextlib.contextmanager
def _readable(place: Path) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except UNREADABLE as error:
        reason = one_line(getattr(error, "strerror", None) or str(error), 120)
        raise InputError(f"'{place}' cannot be read: {reason}") from error


def _members(place: Path, wanted: Wanted, held: float) -> Iterator[tuple[str, Stream]]:
    if place.is_dir():
        yield from _of_directory(place, wanted, held)
    elif place.name.endswith(".zip"):
        yield from _of_zip(place, wanted, held)
    else:
        yield from _of_tar(place, wanted, held)


def _of_directory(place: Path, wanted: Wanted, held: float) -> Iterator[tuple[str, Stream]]:
    found = []
    for folder, folders, files in os.walk(place):
        folders.sort()
        found += [Path(folder, name) for name in files]
        _check_count(place, len(found))
    for path in sorted(found):
        name = path.relative_to(place).as_posix()
        if wanted(name):
            with opened(path, held) as stream:
                yield name, stream


def _of_zip(place: Path, wanted: Wanted, held: float) -> Iterator[tuple[str, Stream]]:
    with open_regular(place) as file, zipfile.ZipFile(file) as archive:
        _check_count(place, len(archive.infolist()))
        for info in sorted(archive.infolist(), key=lambda each: each.filename):
            if info.is_dir() or not wanted(info.filename):
                continue
            said = f"'{place}', member '{info.filename}'"
            if info.file_size > max(MOST_TIMES * info.compress_size, UNCHECKED):
                raise InputError(f"{said}, grows by more than {MOST_TIMES} times when unpacked")
            _check_memory(held * info.file_size, said)
            with archive.open(info) as raw, _decompressed(place, info.filename, raw, held) as inner:
                yield info.filename, inner


def _of_tar(place: Path, wanted: Wanted, held: float) -> Iterator[tuple[str, Stream]]:
    # A compressed archive is read as a stream of blocks, so that it cannot grow unseen.
    with (
        opened(place, 0.0, ".gz" if place.name.endswith(".tgz") else None) as stream,
        tarfile.open(fileobj=stream, mode="r|") as archive,
    ):
        for number, info in enumerate(archive):
            _check_count(place, number)
            if not (info.isfile() and wanted(info.name)):
                continue
            _check_memory(held * info.size, f"'{place}', member '{info.name}'")
            raw = archive.extractfile(info)
            assert raw is not None
            with _decompressed(place, info.name, raw, held) as inner:
                yield info.name, inner


@contextlib.contextmanager
def _decompressed(place: Path, name: str, raw: IO[bytes], held: float) -> Iterator[Stream]:
    ending = Path(name).suffix
    if ending in OPENERS:
        with opened(place / name, held, ending, raw) as stream:
            yield stream
    else:
        yield raw


def _check_memory(needed: float, said: str) -> None:
    # Asking the system takes longer than reading a small member.
    if needed > UNCHECKED:
        check_memory(needed, f"{said}, cannot be read: it")


def _check_count(place: Path, count: int) -> None:
    if count > MOST_MEMBERS:
        raise InputError(f"'{place}' holds more than {MOST_MEMBERS} files")


def places(raw: str | None, folder: str) -> list[Path]:
    """Return the directories and archives that the option ``data.raw`` means.

    Parameters
    ----------
    raw : str or None
        A directory or an archive. None is the directory ``folder`` of ``$MPIFED_DATA``.
    folder : str
        The name of that directory.

    Returns
    -------
    list of Path
        The archive, or the directory and then the archives in it by name.

    Raises
    ------
    InputError
        If there is no such directory or archive.
    """
    home = os.environ.get("MPIFED_DATA")
    if raw is None and not home:
        raise InputError(
            "data.raw is empty and MPIFED_DATA is not set; one of them must say where the files are"
        )
    place = Path(home or "", folder) if raw is None else Path(raw).expanduser()
    if os.path.isfile(place) and is_archive(place):
        return [place]
    if not os.path.isdir(place):  # False also for names that are too long
        if raw is None:
            raise InputError(
                f"data.raw is empty, and MPIFED_DATA, '{home}', has no directory '{folder}'; one "
                "of them must say where the files are"
            )
        raise InputError(
            f"data.raw is '{place}', but there is no such directory or archive (zip, tar)"
        )
    return [place, *sorted(path for path in place.iterdir() if is_archive(path))]
