"""Guards of one job on one host, which meet by the name of the job before MPI has begun.

What one has to tell is that the job ends, and with which exit code. Sockets in Linux's abstract
namespace leave no file behind; the kernel says which user has sent a datagram, and those of others
are ignored. On other systems nobody meets, and the launcher has to see to the end.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import struct
import sys
import time

from mpifed.supervision.launcher import Launch

LATEST = 5.0
"""Seconds that a guard waits for those whose process has only just been started."""

PAUSE = 0.02
MOST = 100
"""Datagrams read in a turn, so that nobody can keep a guard from its work."""

_CREDENTIALS = struct.Struct("3i")


def attend(launch: Launch) -> socket.socket | None:
    """The socket at which other guards find this one; None where the system has none."""
    if sys.platform != "linux":
        return None
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        made.bind(_name(launch, launch.rank))
    except OSError:
        made.close()
        return None
    return made


def _name(launch: Launch, rank: int) -> bytes:
    about = f"{os.getuid()} {socket.gethostname()} {launch.job} {rank}".encode()
    return b"\0mpifed-" + hashlib.blake2b(about, digest_size=16).hexdigest().encode()


def told_to_end(own: socket.socket) -> int | None:
    """The exit code with which another guard says that the job ends; None if none has."""
    for _ in range(MOST):
        try:
            data, about, _, _ = own.recvmsg(8, socket.CMSG_SPACE(_CREDENTIALS.size))
        except OSError:
            return None
        users = [_CREDENTIALS.unpack(sender)[1] for _, _, sender in about]
        if users == [os.getuid()] and len(data) == 1:
            return data[0]
    return None


def tell_to_end(own: socket.socket, launch: Launch, code: int) -> bool:
    """Tells the guards of this host to end with ``code``, also those that are yet to come.

    Returns
    -------
    bool
        Whether all ranks of the job have been told, by this guard or by another.
    """
    left = set(range(launch.size)) - {launch.rank}
    deadline = time.monotonic() + LATEST
    while True:
        for rank in sorted(left):
            with contextlib.suppress(OSError):
                own.sendto(bytes([code]), _name(launch, rank))
                left.discard(rank)
        if launch.size - len(left) >= (launch.here or launch.size):
            return not left
        if told_to_end(own) is not None:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(PAUSE)
