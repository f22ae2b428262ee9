"""Published sets of files: a directory, a zip archive or a tar archive, read in one way."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from mpifed.errors import InputError, one_line
from mpifed.io.memory import check_memory
from topologies.inputs import open_regular

Stream = IO[bytes] | io.BufferedReader

OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}


# By how much a compressed file may grow; published data grow less than a hundredfold.
MOST_TIMES = 500

# Bytes up to which it may grow by more.
UNCHECKED = 1 << 26


@contextlib.contextmanager
def opened(
    path: Path, held: float = 0.0, ending: str | None = None, within: IO[bytes] | None = None
) -> Iterator[Stream]:
    """Open ``path`` for reading bytes, decompressed if its name ends in .gz, .xz or .bz2."""
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
    """Return the file meant by the options ``data.path`` and ``data.raw``."""
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
    """Return the name of a file without the ending of a compression."""
    return path.stem if path.suffix in OPENERS else path.name


TARS = (".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2")

# Members of an archive, or files of a directory, that are looked at.
MOST_MEMBERS = 1 << 21

Wanted = Callable[[str], bool]

# What zipfile, tarfile and decompression raise for damaged archives and encrypted members.
UNREADABLE = (
    *(OSError, EOFError, ValueError, NotImplementedError, RuntimeError),
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError),
    *(OverflowError, LookupError, struct.error),
)


def is_archive(path: Path) -> bool:
    """Return whether the name of a file is that of a zip or tar archive."""
    return path.name.endswith((".zip", *TARS))


def contents(place: Path, wanted: Wanted, held: float = 1.0) -> Iterator[tuple[str, bytes]]:
    """Yield the names and the bytes of files of a directory or archive."""
    with _readable(place):
        for name, stream in _members(place, wanted, held):
            with _readable(place / name):
                content = stream.read()
            yield name, content


@contextlib.contextmanager
def member(place: Path, name: str, held: float = 1.0) -> Iterator[Stream]:
    """Open one file of a directory or archive for reading its bytes, decompressed."""
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
    """Return the directories and archives that the option ``data.raw`` means."""
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
