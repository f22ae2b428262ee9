"""Ranks under the supervisor of their node, which forks them for the processes of a launcher."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from importlib.util import source_hash

from mpifed.errors import complain
from mpifed.watchdog import heartbeat, launcher

TYPE_CHECKING = False
if TYPE_CHECKING:  # ``typing`` would cost every guard 5 ms
    from typing import Any

# Seconds that the supervisor of a node may take to answer.
ANSWERING = 10.0

# What tells jobs apart that one process has started.
JOBS = ("PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID")

# What else must be equal for ranks to be forked from one process, in ``/proc/self``.
LINKS = ("root", "cwd", "ns/ipc", "ns/mnt", "ns/net", "ns/pid", "ns/user", "ns/uts")


class _Process:
    """The exit code of this process once it is known."""

    code: int | None = None


def guarded(action: Callable[[], int], preload: Callable[[], object] | None = None) -> int:
    """Run ``action`` in a rank of its own if a launcher started this process, else here.

    The ranks of a node are forked from one process, in which ``preload`` was called.
    """
    atexit.register(_finish)
    launch = launcher.launched()
    if launch is None or sys.platform != "linux":
        _Process.code = action()
        return _Process.code
    shares = preload is not None and os.environ.get("MPIFED_PREFORK") != "0"
    connection, supervisor = _joined(launch, preload if shares else None)
    if connection is None:  # this is a rank
        if preload is None:
            launcher.release_signals()
        try:
            _Process.code = action()
        finally:
            heartbeat.announce_orderly_end()
        return _Process.code
    return _exit_code(launch, connection, supervisor)


def _joined(
    launch: launcher.Launch, preload: Callable[[], object] | None
) -> tuple[socket.socket | None, int]:
    """Connect to the supervisor of this node after starting it if there is none; None in a rank."""
    name = _name(launch) if launch.together > 1 else b""
    deadline, supervisor = time.monotonic() + ANSWERING, 0
    descriptors = [0, 1, 2, *([int(os.environ["PMI_FD"])] if "PMI_FD" in os.environ else [])]
    while True:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with listening, contextlib.suppress(OSError):  # another process may have come first
            if not supervisor:
                listening.bind(name)
                listening.listen(socket.SOMAXCONN)
                name = listening.getsockname()
                supervisor = os.fork()
                if not supervisor:
                    from mpifed.watchdog.supervisor import supervise  # larger than this module

                    supervise(launch, listening, preload)
                    return None, 0
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(name)
            socket.send_fds(connection, [str(launch.rank).encode()], descriptors)
            return connection, supervisor
        except (ConnectionError, FileNotFoundError, BlockingIOError):
            # It does not listen yet, or has just ended.
            connection.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _name(launch: launcher.Launch) -> bytes:
    """Return the name at which processes meet that could stand in for each other."""
    started = launcher.stat_of(launch.process)[19:20]
    alike = [os.getuid(), socket.gethostname(), launch.process, started]
    alike += [sys.executable, sys.orig_argv, sys.path, *map(os.environ.get, JOBS)]
    variables = sorted(os.environ.items())
    alike += [item for item in variables if not item[0].startswith(launcher.LAUNCHERS)]
    with contextlib.suppress(OSError):
        alike.append(launcher.read("/proc/self/cgroup"))
    alike += [os.readlink(f"/proc/self/{name}") for name in LINKS]
    alike.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    # The hash of Python's own that no key makes differ; ``hashlib`` takes the time of half a start.
    return b"\0mpifed-" + source_hash(ascii(alike).encode()).hex().encode()


def _exit_code(launch: launcher.Launch, connection: socket.socket, supervisor: int) -> int:
    """Pass signals on until the rank has ended; return its exit code.

    The handler holds the connection until this process ends, for which the supervisor waits.
    """

    def pass_on(number: int, frame: Any) -> None:
        with contextlib.suppress(OSError):
            connection.send(bytes([number]))

    for number in launcher.PASSED_ON:
        signal.signal(number, pass_on)
    answer = _await_answer(connection, supervisor)
    if not answer:
        # A launcher may be about to kill this process too: it takes up to a second, or a few where
        # it waits for another host.
        time.sleep((1.0 if supervisor else 2.0) if launch.on_one_host else 4.0)
    if supervisor and not answer:
        where = f"rank {launch.rank} on {socket.gethostname()}"
        line = f"{where}: the process that watches the ranks of this node has ended"
        with contextlib.suppress(ChildProcessError):  # where the launcher ignores ends
            ended, status = os.waitpid(supervisor, os.WNOHANG)
            line += f" with code {os.waitstatus_to_exitcode(status)}" if ended else ""
        complain("mpifed", line)
    if not answer or answer == launcher.END_JOB:
        sys.stderr.flush()
        launcher.end_job()
    return answer[0]


def _await_answer(connection: socket.socket, supervisor: int) -> bytes:
    """Return the supervisor's answer; empty where it has ended or, started here, stays stopped."""
    stopped = 0
    while not select.select([connection], [], [], 1.0 if supervisor else None)[0]:
        stopped = stopped + 1 if launcher.is_stopped(supervisor) else 0
        if stopped > launcher.STOPPED:
            os.kill(supervisor, signal.SIGKILL)
    with contextlib.suppress(OSError):
        try:
            return connection.recv(64)
        except ConnectionResetError:  # a signal was passed on too late; the answer lies behind it
            return connection.recv(64)
    return b""


def skip_teardown() -> None:
    """End a rank before the libraries loaded so far are torn down; call it before MPI begins.

    It takes seconds of torch where many ranks share cores.
    """
    libc = ctypes.CDLL(None)
    if heartbeat.watched():
        libc.on_exit(libc._exit, None)


def _finish() -> None:
    """End the process without deallocating objects, after all other functions at the exit."""
    if _Process.code is None:
        return
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # as Python itself ignores it at the exit
            stream.flush()
    if (hdf5 := sys.modules.get("h5py.h5f")) is not None:
        for file in hdf5.get_obj_ids(types=hdf5.OBJ_FILE):
            hdf5.flush(file)
    module = sys.modules.get("mpi4py.MPI")
    if module is not None and module.Is_initialized() and not module.Is_finalized():
        heartbeat.set_waiting(True)
        module.Finalize()
    # Not the interpreter's own exit: MPICH leaves the launcher in a function at the exit of C.
    libc = ctypes.PyDLL(None)
    libc.fflush(None)
    libc.exit(_Process.code)
