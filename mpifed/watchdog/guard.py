"""A guard for every rank of a job: a process that reports a rank which dies or stops
responding.
"""

from __future__ import annotations

import mmap
import os
import resource
import socket
from collections.abc import Callable

from mpifed.errors import EXIT_BAD_INPUT, complain
from mpifed.watchdog import exit as leaving
from mpifed.watchdog import heartbeat
from mpifed.watchdog.heartbeat import Ends
from mpifed.watchdog.launcher import Launch, die_with_parent, end_job, launched, started_at
from mpifed.watchdog.peers import listen
from mpifed.watchdog.rank_process import Child
from mpifed.watchdog.starting import Starting
from mpifed.watchdog.stub import join, usable
from mpifed.watchdog.watch import Watch

# Files that a process must be allowed to open; two ranks of MPICH on one host need 28.
FEWEST_FILES = 32


def guarded(
    action: Callable[[], int], preload: Callable[[], bool] | None = None, quiet: bool = True
) -> int:
    """Run ``action`` in another process under a guard if a launcher started this one, else
    here.
    """
    leaving.prepare()
    launch = launched()
    if launch is None or not hasattr(os, "fork"):
        return leaving.leave(action())
    if (refused := _few_files(launch)) is not None:
        return refused
    shared = preload is not None and usable(launch)
    reading, ends, listening = _new_ends(launch.on_one_host, shared)
    says = launch.rank == 0 and launch.size > 1 and not quiet
    starting = Starting(launch) if says else None
    watch = Watch(launch, reading, ends.board, listening, starting)
    joined = join(launch, ends, preload, watch.close) if preload is not None and shared else None
    if isinstance(joined, Ends):
        return _work(action, joined)
    if joined is not None:
        code = watch.wait_for(joined)
        joined.close()
        if code is not None:
            watch.close()
            return code
    child = os.fork()
    if child:
        os.close(ends.pipe)
        code = watch.wait_for(Child(child))
        assert code is not None
        watch.close()
        return code
    watch.close()
    die_with_parent(ends.guard)
    return _work(action, ends)


def _few_files(launch: Launch) -> int | None:
    """Return the exit code where this process may open too few files for MPI, after saying so."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if most == resource.RLIM_INFINITY or most >= FEWEST_FILES:
        return None
    if launch.rank == 0 or not launch.on_one_host:
        complain(
            "mpifed",
            f"ulimit -n is {most} on {socket.gethostname()}, so that a process may open {most} "
            f"files; a rank needs at least {FEWEST_FILES}",
        )
    if not launch.on_one_host:  # others may have another limit, and would wait
        end_job()
    return EXIT_BAD_INPUT


def _new_ends(on_one_host: bool, shared: bool) -> tuple[int, Ends, socket.socket | None]:
    """Return the guard's end of a pipe, the ends of the rank, and the guard's UDP socket."""
    reading, writing = os.pipe()
    memory = -1
    if shared:
        memory = os.memfd_create("mpifed-signs")
        os.ftruncate(memory, mmap.PAGESIZE)
    listening = listen(on_one_host)
    port = listening.getsockname()[1] if listening is not None else None
    board = heartbeat.new_board(memory)
    return reading, Ends(board, memory, writing, port, os.getpid(), started_at()), listening


def _work(action: Callable[[], int], ends: Ends) -> int:
    """Run ``action`` as a rank that is connected to its guard."""
    heartbeat.begin(ends.board, ends.pipe, ends.port, ends.guard, ends.began)
    heartbeat.step()  # the guard may have waited long for a process to fork this one
    try:
        return leaving.leave(action())
    finally:
        heartbeat.announce_orderly_end()
