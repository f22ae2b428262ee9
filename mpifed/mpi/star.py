"""Small reductions among the ranks of one node, without polling."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np

from mpifed.mpi.protocol import Communicator

# Bytes of a message at most; a socket's buffer holds several.
LONGEST = 1 << 15

# Seconds after which a rank that waits lets MPI move messages on, which others may wait for.
LOOK = 0.2

# Seconds in which all ranks must have connected.
MEETING = 10.0

_RANK, _PEER = struct.Struct("=q"), struct.Struct("3i")


class Star:
    """Connections between rank 0 and every other rank."""

    def __init__(
        self, links: Sequence[socket.socket], central: bool, progress: Callable[[], object]
    ) -> None:
        self._links, self._central, self._progress = links, central, progress
        for link in links:
            link.settimeout(None)
            seconds = struct.pack("@ll", int(LOOK), int(LOOK % 1 * 1e6))
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)

    @staticmethod
    def carries(values: np.ndarray) -> bool:
        """Return whether a message of that size is sent this way."""
        return 0 < values.nbytes <= LONGEST

    def reduce(self, values: np.ndarray, operation: np.ufunc) -> np.ndarray | None:
        """Combine the arrays of all ranks. Collective."""
        answer = values.copy()
        try:
            if self._central:
                self._combine(answer, operation)
            else:
                self._links[0].send(values.tobytes())
                self._receive(self._links[0], answer)
        except OSError:
            self.close()
            return None
        except BaseException:  # an interrupt: what comes later would be taken for this answer
            self.close()
            raise
        return answer

    def _combine(self, answer: np.ndarray, operation: np.ufunc) -> None:
        """Combine what the other ranks send with ``answer``, and send them the result."""
        came = np.empty_like(answer)
        for link in self._links:
            self._receive(link, came)
            operation(answer, came, out=answer)
        data = answer.tobytes()
        for link in self._links:
            link.send(data)

    def _receive(self, link: socket.socket, into: np.ndarray) -> None:
        """Wait for a message."""
        while True:
            try:
                if link.recv_into(into.data.cast("B")) != into.nbytes:
                    raise ConnectionResetError
                return
            except BlockingIOError:
                self._progress()

    def close(self) -> None:
        """Close the connections, so that this and all other ranks leave the rest to MPI."""
        for link in self._links:
            link.close()


def star_among(communicator: Communicator, progress: Callable[[], object]) -> Star | None:
    """Connect the ranks of a communicator, which are all on one node. Collective."""
    links: list[socket.socket] = []
    with contextlib.ExitStack() as held:
        listening = held.enter_context(_listening()) if communicator.rank == 0 else None
        name = communicator.broadcast_object(listening.getsockname() if listening else None)
        with contextlib.suppress(OSError, AttributeError):
            if listening is None:
                links = [_connected(name, communicator.rank)]
            elif name:
                links = _accepted(listening, communicator.size)
        lacking = len(links) != (communicator.size - 1 if communicator.rank == 0 else 1)
        small = any(_buffer(link) < 4 * LONGEST for link in links)
        if communicator.max(np.array([int(lacking or small)]))[0]:
            for link in links:
                link.close()
            return None
    return Star(links, communicator.rank == 0, progress)


def _listening() -> socket.socket:
    """Return a socket with a name that the kernel has chosen; without a name where it has none."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            made.bind(b"")
            made.listen(socket.SOMAXCONN)
    return made


def _connected(name: bytes, rank: int) -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        link.settimeout(MEETING)
        link.connect(name)
        link.send(_RANK.pack(rank))
    except OSError:
        link.close()
        raise
    return link


def _accepted(listening: socket.socket, size: int) -> list[socket.socket]:
    """Return the connections of ranks 1, 2, ...; fewer if one of them has not come."""
    found: dict[int, socket.socket] = {}
    deadline = time.monotonic() + MEETING
    with contextlib.suppress(OSError):
        while len(found) < size - 1:
            listening.settimeout(max(0.01, deadline - time.monotonic()))
            link, _ = listening.accept()
            link.settimeout(MEETING)
            made = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            data = link.recv(64) if _PEER.unpack(made)[1] == os.getuid() else b""
            rank = _RANK.unpack(data)[0] if len(data) == _RANK.size else 0
            if 0 < rank < size and rank not in found:
                found[rank] = link
            else:
                link.close()
    return [found[rank] for rank in sorted(found)]


def _buffer(link: socket.socket) -> int:
    return link.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
