"""Guards of one job on one host, which find each other by the job's name before MPI
initialises.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import struct
import sys
import time

from mpifed.watchdog.launcher import Launch

# Seconds that a guard waits for others whose process has only just been started.
LATEST = 5.0

PAUSE = 0.02
# Datagrams read per turn, so that a flood of them cannot occupy a guard.
MOST = 100

_CREDENTIALS = struct.Struct("3i")


def open_meeting_socket(launch: Launch) -> socket.socket | None:
    """Open the socket at which other guards find this one."""
    if sys.platform != "linux":
        return None
    try:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    except OSError:
        return None
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


def count_present(launch: Launch) -> int:
    """Count the ranks of the job whose guards have come, on this host."""
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
            names = {line.rsplit(" ", 1)[-1].strip() for line in file}
    except OSError:
        return 1
    wanted = (_name(launch, rank).replace(b"\0", b"@").decode() for rank in range(launch.size))
    return max(1, sum(name in names for name in wanted))


def receive_exit_code(own: socket.socket) -> int | None:
    """Receive the exit code with which another guard ends the job."""
    for _ in range(MOST):
        try:
            data, about, _, _ = own.recvmsg(8, socket.CMSG_SPACE(_CREDENTIALS.size))
        except OSError:
            return None
        users = [_CREDENTIALS.unpack(sender)[1] for _, _, sender in about]
        if users == [os.getuid()] and len(data) == 1:
            return data[0]
    return None


def send_exit_code(own: socket.socket, launch: Launch, code: int) -> bool:
    """Send the guards of this host the exit code with which the job ends."""
    left = set(range(launch.size)) - {launch.rank}
    deadline = time.monotonic() + LATEST
    while True:
        for rank in sorted(left):
            with contextlib.suppress(OSError):
                own.sendto(bytes([code]), _name(launch, rank))
                left.discard(rank)
        if launch.size - len(left) >= (launch.here or launch.size):
            return not left
        if receive_exit_code(own) is not None:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(PAUSE)
