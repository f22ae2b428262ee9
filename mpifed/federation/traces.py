"""Availability of devices from a file: in which rounds each client can take part."""

from __future__ import annotations

import csv
import functools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge

from mpifed.errors import InputError, closest, one_line
from mpifed.io.text import read_text

# First lines that a file may have.
HEADERS = (["client", "from", "to"], ["client", "rounds"])

# A round, or the first and the last one of some, as 4, 2-9 and 7-.
ROUNDS = re.compile(r"(\d+)(-(\d*))?", re.ASCII)

# The last round of what does not end.
FOREVER = np.iinfo(np.int64).max


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Clients are there in the rounds that a file says, as recorded of devices.

    Parameters
    ----------
    path : str
        CSV file with the columns ``client,from,to``: a client that is there from one round to
        another, both included, and without ``to`` for ever. Or with the columns ``client,rounds``,
        as 1-4 7 9-. All clients are numbers from 0, or all are names as the data have them. Clients
        without a line are never there.
    period : int, optional
        Rounds after which the file begins anew. None is never.
    weights : {'renormalised'}
        How a server weighs those who take part.
    """

    name: Literal["trace"] = "trace"
    path: str
    period: Annotated[int, Ge(1)] | None = None
    weights: Literal["renormalised"] = field(
        default="renormalised", metadata={"spelled_out": False}
    )

    @property
    def names(self) -> Sequence[str]:
        """Names of the clients, in their order; empty where they have none."""
        return ()

    def present(self, clients: np.ndarray, round: int) -> np.ndarray:
        """Return which of ``clients`` are there in a round: bool, of their shape."""
        windows = self.windows()
        if self.period is not None:
            round = (round - 1) % self.period + 1
        covers = (windows.first <= round) & (round <= windows.last)
        return np.isin(clients, windows.client[covers])

    def share(self, n_clients: int) -> float:
        """Return the mean share of clients that are there: over a period, or up to the round after
        which nothing changes.
        """
        windows = self.windows()
        ends = windows.last[windows.last < FOREVER]
        rounds = self.period or int(max([*ends, *(windows.first - 1)])) + 1
        lengths = np.minimum(windows.last, rounds) - windows.first + 1
        clients = max(n_clients, len(np.unique(windows.client)))
        return float(lengths.sum() / (rounds * clients))

    def check(self, n_clients: int) -> None:
        """Raise ``InputError`` where the file names clients that there are not."""
        windows = read_windows(self.path)
        unknown = [name for name in windows.lines if name not in self.names]
        if unknown:
            names = one_line(closest(unknown[0], self.names), 400)
            allowed = names if self.names else "allowed: a whole number, at least 0"
            raise InputError(
                f"participation.path is '{self.path}', where line {windows.lines[unknown[0]]} has "
                f"'{unknown[0]}' as client; {allowed}"
            )
        largest = int(self.windows().client.max())
        if largest >= n_clients:
            raise InputError(
                f"participation.path is '{self.path}', which names client {largest}, but clients "
                f"is {n_clients}; allowed: 0 to {n_clients - 1}"
            )

    def windows(self) -> Windows:
        """Return the content of the file."""
        windows = read_windows(self.path)
        ends = windows.last[windows.last < FOREVER]
        if self.period is not None and max([*ends, *windows.first]) > self.period:
            raise InputError(
                f"participation.period is {self.period}, but '{self.path}' goes on to round "
                f"{max([*ends, *windows.first])}"
            )
        return windows


@dataclass(frozen=True, kw_only=True)
class TraceOfNamed(Trace):
    """A trace of clients that the data name."""

    client_names: Sequence[str]

    @property
    def names(self) -> Sequence[str]:
        """Names of the clients, in their order; empty where they have none."""
        return self.client_names

    def windows(self) -> Windows:
        """Return the content of the file, with the numbers of clients for their names."""
        windows, numbers = super().windows(), {name: k for k, name in enumerate(self.names)}
        if not windows.lines:
            return windows
        client = np.array([numbers[name] for name in windows.lines])[windows.client]
        return replace(windows, client=client)


@dataclass(frozen=True)
class Windows:
    """When clients are there, without overlap.

    Attributes
    ----------
    client, first, last : ndarray
        A client and its first and last round, int64 (windows,).
    lines : mapping of str to int
        The names of the clients in the order of their numbers, and the line of each; empty where
        the file numbers them.
    """

    client: np.ndarray
    first: np.ndarray
    last: np.ndarray
    lines: Mapping[str, int]


def read_windows(path: str) -> Windows:
    """Read a file of availability; ``InputError`` with its first fault."""
    file = Path(os.path.expanduser(path))
    return _windows_in(path, file.stat().st_mtime_ns if file.exists() else 0)


@functools.lru_cache(maxsize=8)
def _windows_in(path: str, changed: int) -> Windows:
    """The content of a file that was last ``changed`` so many nanoseconds after 1970."""
    rows = list(csv.reader(read_text(Path(os.path.expanduser(path))).splitlines()))
    header = [name.strip().lower() for name in rows[0]] if rows else []
    where = f"participation.path is '{path}', where"
    if header not in HEADERS:
        allowed = " or ".join(",".join(names) for names in HEADERS)
        raise InputError(f"{where} the first line must be {allowed}")
    lines: dict[str, int] = {}
    windows: dict[str, list[tuple[int, int]]] = {}
    for line, row in enumerate(rows[1:], 2):
        cells = [cell.strip() for cell in row]
        if not any(cells):
            continue
        try:
            if len(cells) != len(header):
                raise ValueError(f"has {len(cells)} columns, not {len(header)}")
            read = _from_to if len(header) == 3 else _rounds
            windows.setdefault(cells[0], []).extend(read(cells[1:]))
            lines.setdefault(cells[0], line)
        except ValueError as error:
            raise InputError(f"{where} line {line} {one_line(str(error), 200)}") from None
    if not windows:
        raise InputError(f"{where} no line says when a client is there")
    are_numbers = all(map(_is_number, windows))
    by_client: dict[int, list[tuple[int, int]]] = {}
    for number, (client, of_client) in enumerate(windows.items()):
        by_client.setdefault(int(client) if are_numbers else number, []).extend(of_client)
    joined = [
        (client, *window) for client in sorted(by_client) for window in _joined(by_client[client])
    ]
    client, first, last = np.array(joined, np.int64).T
    return Windows(client, first, last, {} if are_numbers else lines)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and int(text) < 1 << 31


def _number(text: str, name: str, least: int) -> int:
    if not _is_number(text) or int(text) < least:
        raise ValueError(f"has '{text}' as {name}; allowed: a whole number, at least {least}")
    return int(text)


def _from_to(cells: list[str]) -> list[tuple[int, int]]:
    first = _number(cells[0], "from", 1)
    last = _number(cells[1], "to", 1) if cells[1] else FOREVER
    if last < first:
        raise ValueError(f"ends in round {last}, before it begins in {first}")
    return [(first, last)]


def _rounds(cells: list[str]) -> list[tuple[int, int]]:
    words = cells[0].split()
    for word in words:
        if not ROUNDS.fullmatch(word):
            raise ValueError(f"has '{word}' among rounds; allowed: as 4, 2-9 and 7-")
    parts = [word.partition("-") for word in words]
    return [
        window
        for first, dash, last in parts
        for window in _from_to([first, last if dash else first])
    ]


def _joined(windows: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same rounds in as few windows as there can be, in their order."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(windows):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(last, joined[-1][1])
        else:
            joined.append((first, last))
    return joined
