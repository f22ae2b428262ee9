"""The run directory: metrics.csv, clients.h5, summary.json, config.yaml, log.txt, DONE.

Only rank 0 has a recorder. Every file but the growing metrics.csv and log.txt is written beside its
final name and renamed, so that a reader never sees half of one.
"""

from __future__ import annotations

import csv
import errno
import fcntl
import io
import json
import os
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mpifed.checkpoint.files import what_is_left
from mpifed.checkpoint.hdf5 import writing
from mpifed.errors import InputError, RunError
from mpifed.reading.hdf5 import disk_reason
from mpifed.replacing import replace_bytes, replacing
from mpifed.training.scores import ClientResults

COLUMNS = [
    "round",
    "seconds",
    "train_loss",
    "train_accuracy",
    "test_loss",
    "test_accuracy",
    "test_accuracy_p10",
    "test_accuracy_min",
    "test_accuracy_std",
    "active_clients",
    "up_bits",
    "down_bits",
    "consensus_distance",
    "state_digest",
]
PATIENCE = 5.0
"""Seconds to wait for a process that was killed to let go of the run directory."""

UNSEEN_COLUMNS = ["unseen_train_accuracy", "unseen_test_accuracy"]


class Recorder:
    """Writes one run's directory, and keeps other processes out of it until closed."""

    def __init__(
        self,
        directory: Path,
        columns: list[str],
        rows: list[list[str]],
        config: str,
        settle: Callable[[], None],
        admit: Callable[[], None],
    ) -> None:
        """Begins a run, or goes on with one of whose rows ``rows`` are kept and all others cut.

        ``settle`` waits for a checkpoint that is being written meanwhile, so that a failure names
        the newest one. ``admit`` raises ``InputError`` if the directory is no longer what it was
        when it was chosen. Raises ``InputError`` while another process writes there.
        """
        self.directory, self.columns, self.rows = directory, columns, list(rows)
        self._settle, self._admit = settle, admit
        self._log: io.FileIO | None = None
        try:
            self._guard(self._begin, config)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Lets others write in the directory."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _begin(self, config: str) -> None:
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        # Private, unless the user made it beforehand: then it stays as it is.
        self.directory.mkdir(mode=0o700, exist_ok=True)
        self._log = _appending(self.directory / "log.txt", os.O_CREAT)
        self._lock(self._log)
        self._admit()
        for name in ("DONE", "summary.json"):
            (self.directory / name).unlink(missing_ok=True)
        for leftover in (*self.directory.glob(".*.partial"), *self._checkpoints_in_writing()):
            leftover.unlink(missing_ok=True)
        replace_bytes(self.directory / "config.yaml", config.encode())
        text = "".join(_line(row) for row in [self.columns, *self.rows])
        replace_bytes(self.directory / "metrics.csv", text.encode())

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

    def _checkpoints_in_writing(self) -> list[Path]:
        """What a killed run left behind; nobody else writes in its directory."""
        return list((self.directory / "checkpoints").glob(".round-*.partial"))

    def _guard(self, action: Callable[..., None], *arguments: Any) -> None:
        """``action(*arguments)``; what a disk or HDF5 refuses becomes a ``RunError``."""
        try:
            action(*arguments)
        except (OSError, RuntimeError) as error:
            self._settle()
            why, left = disk_reason(error), what_is_left(self.directory / "checkpoints")
            raise RunError(
                f"the run directory {self.directory} cannot be written: {why}; {left}"
            ) from error

    def row(self, values: Mapping[str, Any]) -> None:
        """Appends a row to metrics.csv; a column that is missing or None stays empty."""
        row = [_text(values.get(name)) for name in self.columns]
        self.rows.append(row)
        self._guard(self._append_row, row)

    def _append_row(self, row: list[str]) -> None:
        with _appending(self.directory / "metrics.csv") as file:
            _append(file, _line(row))

    def log(self, line: str) -> None:
        """Appends a line to log.txt."""
        if self._log is None:
            raise ValueError("the recorder is closed")
        self._guard(_append, self._log, line + "\n")

    def clients(self, results: ClientResults, learnt: Mapping[str, np.ndarray]) -> None:
        """Writes clients.h5: a dataset for each kind of result, and in the group ``learnt`` what
        belongs to no client, if there is anything.
        """
        self._guard(self._clients, results, learnt)

    def _clients(self, results: ClientResults, learnt: Mapping[str, np.ndarray]) -> None:
        with (
            replacing(self.directory / "clients.h5") as partial,
            writing(partial, "w") as file,
        ):
            file["client_id"] = np.arange(len(results.n_train))
            known = {name: values for name, values in vars(results).items() if name != "more"}
            for name, values in {**known, **results.more}.items():
                if values is not None:
                    file[name] = values
            for name, part in learnt.items():
                file[f"learnt/{name}"] = part

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Writes summary.json, then DONE if the run is finished."""
        text = json.dumps(summary, indent=2) + "\n"
        self._guard(replace_bytes, self.directory / "summary.json", text.encode())
        if summary["status"] == "finished":
            self._guard(replace_bytes, self.directory / "DONE", b"")


def _text(value: Any) -> str:
    # repr of a float is the shortest text that reads back as the same float.
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def _line(row: list[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(row)
    return buffer.getvalue()


def _appending(path: Path, more: int = 0) -> io.FileIO:
    """``path`` opened to append to it.

    A link or a pipe of that name, which somebody else may have put into an open directory, is not
    written to: ``InputError``.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | more
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise _refused(path) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _refused(path)
    return io.FileIO(descriptor, "a")


def _refused(path: Path) -> InputError:
    return InputError(
        f"--output {path.parent} has a link or a pipe named {path.name}, which is not written to; "
        "remove it, or choose another directory"
    )


def _append(file: io.FileIO, text: str) -> None:
    before = os.fstat(file.fileno()).st_size
    content = text.encode()
    if file.write(content) != len(content):
        # The disk took a part of it: no line is better than half of one.
        file.truncate(before)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
