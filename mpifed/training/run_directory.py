"""The run directory: metrics.csv, clients.h5, summary.json, config.yaml, log.txt, DONE."""

from __future__ import annotations

import errno
import fcntl
import io
import itertools
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mpifed.checkpoint.files import what_is_left
from mpifed.errors import InputError, RunError
from mpifed.io.atomic import replace_bytes
from mpifed.io.hdf5 import disk_reason, texts_to_store
from mpifed.results.results import COMPLETE, line_of, metrics_text
from mpifed.results.run_directories import check_free
from mpifed.training.evaluation import ClientResults
from mpifed.watchdog import heartbeat

# Seconds to wait for a process that was killed to release the run directory.
PATIENCE = 5.0


# What a run leaves in its directory that another one would replace.
REPLACED = (
    "checkpoints",  # first: where it cannot be moved, nothing is
    *("config.yaml", "metrics.csv", "clients.h5", "summary.json", "DONE", "tracking.json"),
)


class Recorder:
    """Writes the directory of one run, and locks it against other processes until it is closed."""

    def __init__(self, directory: Path, configuration: dict[str, Any], config: str) -> None:
        """Write nothing yet; ``config`` is the text of config.yaml."""
        self.directory, self.configuration, self._config = directory, configuration, config
        self.columns: list[str] = []
        self._settle: Callable[[], None] = lambda: None
        self._log: io.FileIO | None = None

    def begin(
        self,
        columns: list[str],
        rows: list[list[str]],
        settle: Callable[[], None],
        is_new: bool,
        set_aside: Sequence[str] = (),
    ) -> None:
        """Lock the directory, move what is set aside, and write config.yaml and metrics.csv."""
        self.columns, self._settle = columns, settle
        try:
            self._guard(self._begin, rows, is_new, set_aside)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the lock of the directory."""
        if self._log is not None:
            self._log.close()
            self._log = None

    @property
    def metrics(self) -> str:
        """The text of metrics.csv so far, which a long run does not keep in memory."""
        return metrics_text(self.directory / "metrics.csv")

    def _begin(self, rows: list[list[str]], is_new: bool, set_aside: Sequence[str]) -> None:
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        # Private, unless the user made it before: then its mode is kept.
        self.directory.mkdir(mode=0o700, exist_ok=True)
        self._log = _appending(self.directory / "log.txt", os.O_CREAT)
        self._lock(self._log)
        heartbeat.set_log(str((self.directory / "log.txt").absolute()))
        if is_new:  # another process may have begun a run since the directory was looked at
            check_free(self.directory)
        if set_aside:
            self._move_aside(set_aside)
        for name in ("DONE", "summary.json"):
            (self.directory / name).unlink(missing_ok=True)
        for names in (".*.partial", "checkpoints/.round-*.partial"):  # of a run that was killed
            for leftover in self.directory.glob(names):
                leftover.unlink(missing_ok=True)
        replace_bytes(self.directory / "config.yaml", self._config.encode())
        text = "".join(line_of(row) for row in [self.columns, *rows])
        replace_bytes(self.directory / "metrics.csv", text.encode())

    def _move_aside(self, names: Sequence[str]) -> None:
        """Move files of an earlier run into a new directory, ``replaced-1`` or the next free."""
        taken = (self.directory / f"replaced-{number}" for number in itertools.count(1))
        folder = next(path for path in taken if not path.exists())
        for name in names:
            if (self.directory / name).exists():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (self.directory / name).rename(folder / name)

    def _lock(self, log: io.FileIO) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise InputError(
                        f"--output {self.directory} is in use: another process is running this run"
                    ) from None
                time.sleep(0.05)
            except OSError as error:
                self.log(f"{disk_reason(error)}: no lock keeps a second process out of here")
                return

    def _guard(self, action: Callable[..., None], *arguments: Any) -> None:
        """Call an action; errors of the disk or of HDF5 become a ``RunError``."""
        try:
            action(*arguments)
        except (OSError, RuntimeError) as error:
            self._settle()
            why, left = disk_reason(error), what_is_left(self.directory / "checkpoints")
            raise RunError(
                f"the run directory {self.directory} cannot be written: {why}; {left}"
            ) from error

    def row(self, values: Mapping[str, Any]) -> None:
        """Append a row to metrics.csv."""
        self._guard(self._append_row, [field_of(values.get(name)) for name in self.columns])

    def _append_row(self, row: list[str]) -> None:
        with _appending(self.directory / "metrics.csv") as file:
            _append(file, line_of(row))

    def log(self, line: str) -> None:
        """Append a line to log.txt; raise ``ValueError`` after ``close``."""
        if self._log is None:
            raise ValueError("the recorder is closed")
        self._guard(_append, self._log, line + "\n")

    def clients(
        self,
        results: ClientResults,
        learnt: Mapping[str, np.ndarray],
        client_names: Sequence[str],
        class_names: Sequence[str],
    ) -> None:
        """Replace clients.h5."""
        # Made in memory: HDF5 cannot close a file on a disk that becomes full.
        content = io.BytesIO()
        # In this format an attribute may have more than 64 kB.
        with h5py.File(content, "w", libver=("v108", "v108")) as file:
            for name, values in results_of(results, learnt, client_names).items():
                file[name] = texts_to_store(values) if values.dtype.kind == "U" else values
            if class_names:
                file.attrs["class_names"] = texts_to_store(np.array(class_names))
        self._guard(replace_bytes, self.directory / "clients.h5", content.getvalue())

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json, then DONE if the run is complete."""
        text = json.dumps(summary, indent=2) + "\n"
        self._guard(replace_bytes, self.directory / "summary.json", text.encode())
        if summary["status"] in COMPLETE:
            self._guard(replace_bytes, self.directory / "DONE", b"")


def results_of(
    results: ClientResults, learnt: Mapping[str, np.ndarray], client_names: Sequence[str]
) -> dict[str, np.ndarray]:
    """Return the content of clients.h5 by name; the parameters are those of ``clients``."""
    fields = {
        n: values for n, values in vars(results).items() if n not in ("extra", "ids", "pooled")
    }
    by_client = {"client_id": results.client_ids, **fields, **results.extra}
    if client_names:
        by_client["client_name"] = np.array(client_names)[results.client_ids]
    of_run = {f"learnt/{name}": part for name, part in learnt.items()}
    return {name: values for name, values in {**by_client, **of_run}.items() if values is not None}


def field_of(value: Any) -> str:
    """Return the text of a value in metrics.csv, empty for None."""
    # repr of a float is the shortest text that reads back as the same float.
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def _appending(path: Path, extra_flags: int = 0) -> io.FileIO:
    """Open ``path`` to append to it; ``OSError`` for a link, or a pipe that nobody reads."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | extra_flags
    return io.FileIO(os.open(path, flags, 0o666), "a")


def _append(file: io.FileIO, text: str) -> None:
    before = os.fstat(file.fileno()).st_size
    content = text.encode()
    if file.write(content) != len(content):
        # The disk took a part of it: an incomplete line is removed.
        file.truncate(before)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
