"""Files as they are published: plain or compressed, in directories, in zip and tar archives."""

from __future__ import annotations

import bz2
import contextlib
import functools
import gzip
import io
import lzma
import math
import os
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from mpifed.errors import InputError, PeerFailure, RunError, StopRequested, one_line
from mpifed.io.memory import check_memory
from mpifed.io.text import refuse_spreadsheet
from mpifed.watchdog.heartbeat import raise_if_stop_requested
from topologies import memory_limits
from topologies.regular_files import check_archive, open_regular

Stream = IO[bytes] | io.BufferedReader
OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
TARS = (".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2")

# Directories that may hold the files of clients for training and for tests.
PARTS = ("train", "test")

# Bytes that are read at once, after which memory and requests to stop are looked at.
BUFFER = 1 << 20


# The name of a file in an archive, its bytes, and what opens it.
Member = tuple[str, int, Callable[[], IO[bytes]]]


@dataclass(frozen=True)
class FileOfClient:
    """A file of one client's samples, or without its name of samples that all have."""

    path: Path
    client: str
    is_test: bool = False


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever is raised by a file, or by what reads it, into an ``InputError``."""
    try:
        yield
    except (InputError, RunError, StopRequested, PeerFailure):
        raise
    except Exception as error:  # libraries raise almost anything for damaged files
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise InputError(f"'{path}' cannot be read: {one_line(reason, 200)}") from error


@contextlib.contextmanager
def opened(path: Path, held: float = 0.0) -> Iterator[Stream]:
    """Open a file for reading, decompressed by its name; ``held`` is the memory for each byte."""
    refuse_spreadsheet(path)
    with reading(path), open_regular(path) as raw, _decompressed(path, raw, held) as stream:
        if _opener(path) is None:
            check_memory(held * os.fstat(raw.fileno()).st_size, f"'{path}' cannot be read: it")
        yield stream


def _opener(path: Path) -> Callable[..., Any] | None:
    ending = path.suffix.lower()
    return OPENERS.get({".tgz": ".gz", ".txz": ".xz"}.get(ending, ending))


@contextlib.contextmanager
def _decompressed(path: Path, raw: IO[bytes], held: float) -> Iterator[Stream]:
    opener = _opener(path)
    if opener is None:
        yield io.BufferedReader(_Guarded(path, raw, 0.0), BUFFER)
        return
    with opener(raw, "rb") as inner:
        yield io.BufferedReader(_Guarded(path, inner, held), BUFFER)


class _Guarded(io.RawIOBase):
    """What ``inner`` gives, until memory for all of it is lacking, or a stop is requested."""

    def __init__(self, path: Path, inner: IO[bytes], held: float) -> None:
        self._path, self._inner, self._held, self._bytes = path, inner, held, 0
        self._available = memory_limits.available_memory() if held else math.inf

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        raise_if_stop_requested()
        piece = self._inner.read(len(buffer))
        buffer[: len(piece)] = piece
        self._bytes += len(piece)
        if self._held * self._bytes > self._available:
            unpacked = f"{memory_limits.in_bytes(self._bytes)} or more of it"
            check_memory(self._held * self._bytes, f"'{self._path}' cannot be read: {unpacked}")
        return len(piece)


@contextlib.contextmanager
def opened_npz(path: Path) -> Iterator[Mapping[str, Any]]:
    """Open an `.npz` file, of which pickled objects are refused."""
    with reading(path):
        check_archive(path)
        with np.load(path, allow_pickle=False) as file:
            yield file


def bare_name(path: Path) -> str:
    """Return the name of a file without the ending of a compression."""
    return path.stem if path.suffix.lower() in OPENERS else path.name


def is_archive(path: Path) -> bool:
    """Return whether a file is named as a zip or tar archive."""
    return path.name.lower().endswith((".zip", *TARS))


def home(raw: str | None, folder: str) -> Path:
    """Return the directory or archive ``data.raw``, or else ``folder`` in ``$MPIFED_DATA``."""
    common = os.environ.get("MPIFED_DATA")
    if raw is None and not common:
        raise InputError(
            "data.raw is empty and MPIFED_DATA is not set; one of them must say where the files are"
        )
    path = Path(common or "", folder) if raw is None else Path(os.path.expanduser(raw))
    # False also for names that are too long.
    if os.path.isdir(path) or (os.path.isfile(path) and is_archive(path)):
        return path
    value = f"empty, and MPIFED_DATA is '{common}'" if raw is None else f"'{raw}'"
    raise InputError(f"data.raw is {value}, but there is no such directory or archive '{path}'")


def homes(raw: str | None, folder: str) -> list[Path]:
    """Return what ``home`` does, and the archives in that directory."""
    root = home(raw, folder)
    within = root.iterdir() if root.is_dir() else ()
    return [root, *sorted(path for path in within if is_archive(path))]


def located(path: str | None, folder: str, raw: str | None = None) -> Path:
    """Return the file ``data.path``, there or in ``home``, or else the only file in ``home``."""
    if path is None:
        directory = home(raw, folder)
        files = [each for each in directory.iterdir() if each.is_file()]
        if len(files) == 1:
            return files[0]
        raise InputError(
            f"data.raw is '{directory}', which holds {len(files)} files; data.path must name one"
        )
    candidates = [Path(os.path.expanduser(path)) if raw is None else home(raw, folder) / path]
    if raw is None and os.sep not in path and os.environ.get("MPIFED_DATA"):
        candidates.append(Path(os.environ["MPIFED_DATA"]) / folder / path)
    for candidate in candidates:
        for ending in ("", *OPENERS):
            if os.path.isfile(f"{candidate}{ending}"):
                return Path(f"{candidate}{ending}")
    raise InputError(
        f"data.path is '{path}', but there is no such file, plain or with {', '.join(OPENERS)}, as "
        f"'{candidates[-1]}'; MPIFED_DATA or data.raw may name its directory"
    )


def files_by_client(directory: Path, endings: Sequence[str]) -> list[FileOfClient]:
    """Return the files of a directory, in the order of their names, as those of clients.

    Those in its directory ``test`` are for tests, where the others are in ``train`` beside it.
    """
    folders = [directory / part for part in PARTS]
    folders = folders if all(map(os.path.isdir, folders)) else [directory]
    files = []
    for folder in folders:
        for path in sorted(folder.iterdir()):
            ending = next((e for e in endings if path.name.lower().endswith(e)), "")
            if ending and path.is_file() and not path.name.startswith("."):
                client = path.name[: len(path.name) - len(ending)]
                files.append(FileOfClient(path, client, folder == directory / "test"))
    for (client, _), count in Counter((file.client, file.is_test) for file in files).items():
        if count > 1:
            raise InputError(f"'{directory}' has several files of the client '{client}'")
    if not files:
        raise InputError(f"'{directory}' holds no file that ends in {', '.join(endings)}")
    return files


def streams(
    root: Path, selects: Callable[[str], bool], held: float = 0.0
) -> Iterator[tuple[str, Stream]]:
    """Yield names and streams, decompressed, of files of a directory or archive."""
    with reading(root):
        if root.is_dir():
            for path in sorted(path for path in root.rglob("*") if path.is_file()):
                name = path.relative_to(root).as_posix()
                if selects(name):
                    with opened(path, held) as stream:
                        yield name, stream
            return
        members = _of_zip(root) if root.suffix.lower() == ".zip" else _of_tar(root)
        for name, size, open_member in members:
            if selects(name):
                declared = f"with the {memory_limits.in_bytes(size)} that the archive declares, it"
                check_memory(held * size, f"'{root / name}' cannot be read: {declared}")
                with open_member() as raw, _decompressed(root / name, raw, held) as stream:
                    yield name, stream


def _of_zip(path: Path) -> Iterator[Member]:
    with zipfile.ZipFile(path) as archive:
        for info in sorted(archive.infolist(), key=lambda each: each.filename):
            if not info.is_dir():
                yield info.filename, info.file_size, functools.partial(archive.open, info)


def _of_tar(path: Path) -> Iterator[Member]:
    # A compressed archive is read as a stream of blocks, so that it is never held whole.
    with (
        opened(path) as blocks,
        tarfile.open(fileobj=cast(Any, _Ending(blocks)), mode="r|") as archive,
    ):
        for info in archive:
            if info.isfile():
                yield info.name, info.size, functools.partial(cast(Any, archive.extractfile), info)


class _Ending:
    """A stream that raises where it is read on after its end, as far as a header may say."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._has_ended = stream, False

    def read(self, size: int) -> bytes:
        piece = self._stream.read(size)
        if not piece and self._has_ended:
            raise EOFError("it ends within a file in it, whose header declares more")
        self._has_ended = not piece
        return piece


def contents(
    root: Path, selects: Callable[[str], bool], held: float = 1.0
) -> Iterator[tuple[str, bytes]]:
    """Yield names and bytes of files of a directory or archive; ``held`` as for ``opened``."""
    for name, stream in streams(root, selects, held):
        with reading(root / name):
            content = stream.read()
        yield name, content


def names(root: Path) -> list[str]:
    """Return the names of all files of a directory or archive."""
    members: list[str] = []
    list(streams(root, lambda name: bool(members.append(name))))  # type: ignore[func-returns-value]
    return members
