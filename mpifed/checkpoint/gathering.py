"""Gathering the rows of all clients into one file on rank 0, in pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpifed.checkpoint.copies import Part
from mpifed.checkpoint.disk import PIECE, Sink
from mpifed.checkpoint.format import Place
from mpifed.federation.clients import Federation
from mpifed.mpi.communicator import Communicator


@dataclass(frozen=True)
class Piece:
    """A block of a tensor: a range of clients, and a range of bytes in the row of each."""

    first: int
    last: int
    begin: int
    end: int


def pieces(n_clients: int, row_bytes: int) -> Iterator[Piece]:
    """Divide a tensor into pieces of at most ``PIECE`` bytes, in the order of the file."""
    if row_bytes > PIECE:
        for client in range(n_clients):
            for begin in range(0, row_bytes, PIECE):
                yield Piece(client, client + 1, begin, min(begin + PIECE, row_bytes))
    elif row_bytes:
        step = PIECE // row_bytes
        for first in range(0, n_clients, step):
            yield Piece(first, min(first + step, n_clients), 0, row_bytes)


def bytes_of(part: Part) -> np.ndarray:
    """Return the values of a part as bytes."""
    rows = len(part.values) if part.is_rows else 1
    flat = np.ascontiguousarray(part.values).reshape(-1).view(np.uint8)
    return flat.reshape(rows, part.row_bytes)


def fill(
    path: Path,
    places: Sequence[Place],
    parts: Sequence[Part],
    federation: Federation,
    communicator: Communicator,
) -> None:
    """Write all tensors into the file and seal it; rank 0's part, while other ranks ``feed``."""
    by_name = {part.name: part for part in parts}
    sink = Sink(path)
    try:
        for place in places:
            part = by_name[place.name]
            values, offset = bytes_of(part), place.offset
            n_rows = federation.n_clients if part.is_rows else 1
            for piece in pieces(n_rows, part.row_bytes):
                if part.is_rows:
                    made = _assemble(piece, values, federation, communicator)
                else:
                    made = values[:, piece.begin : piece.end]
                sink.put(offset, made)
                part.release()
                offset += made.size
        sink.close()
    finally:
        sink.abandon()


def _assemble(
    piece: Piece, own: np.ndarray, federation: Federation, communicator: Communicator
) -> np.ndarray:
    """Return the bytes of a piece, received from its hosts: uint8, (clients, bytes)."""
    owners = federation.owner[piece.first : piece.last]
    if not owners.any():
        start, stop = np.searchsorted(federation.hosted, (piece.first, piece.last))
        return own[start:stop, piece.begin : piece.end]
    made = np.empty((piece.last - piece.first, piece.end - piece.begin), np.uint8)
    for rank in np.unique(owners):
        theirs = owners == rank
        if rank == 0:
            made[theirs] = _part_of(piece, own, federation)
        else:
            shape = (int(theirs.sum()), made.shape[1])
            made[theirs] = communicator.receive(shape, np.uint8, int(rank))
    return made


def feed(
    order: Sequence[str],
    parts: Sequence[Part],
    federation: Federation,
    communicator: Communicator,
) -> None:
    """Send rank 0 the rows that this rank hosts, piece by piece."""
    by_name = {part.name: part for part in parts}
    for name in order:
        part = by_name.get(name)
        if part is None or not part.is_rows or not len(federation.hosted):
            continue
        values = bytes_of(part)
        for piece in pieces(federation.n_clients, part.row_bytes):
            rows = _part_of(piece, values, federation)
            if len(rows):
                communicator.send(rows, 0)
            part.release()


def _part_of(piece: Piece, own: np.ndarray, federation: Federation) -> np.ndarray:
    """Return the rows that this rank hosts of a piece."""
    start, stop = np.searchsorted(federation.hosted, (piece.first, piece.last))
    return own[start:stop, piece.begin : piece.end]
