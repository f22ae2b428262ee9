"""A guard for every rank of a job: a process that reports a rank which dies or stops responding.

A rank that is killed (out of memory, a crash in a library, ``os._exit``) cannot report its own
end, and some launchers then end the job silently, late, or even with exit code 0. One that is
suspended, or caught in a loop, keeps all others waiting for ever. Under a launcher every rank is
therefore the child of a small process that waits for it, forwards signals, watches its signs of
life (``heartbeat``) and the launcher's (``launcher``), reports an end that the rank has not
announced, and notifies the guards of the other ranks, so that the whole job ends: through
``peers`` once MPI has initialised, before that through ``rendezvous`` on the same host and
through the launcher on others.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from mpifed.supervision import exit as leaving
from mpifed.supervision import heartbeat
from mpifed.supervision.launcher import die_with_parent, launched
from mpifed.supervision.peers import listen
from mpifed.supervision.watch import Watch


def guarded(action: Callable[[], int]) -> int:
    """Run ``action`` in a child process under a guard if a launcher started this one, else here.

    Call it before anything has started a thread, registered an ``atexit`` function or initialised
    MPI, since the process forks.

    Parameters
    ----------
    action : callable
        The work of the rank; returns its exit code.

    Returns
    -------
    int
        The exit code. It is returned in the child too, whose caller must exit with it.
    """
    leaving.prepare()
    launch = launched()
    if launch is None or not hasattr(os, "fork"):
        return leaving.leave(action())
    reading, writing = os.pipe()
    board, listening = heartbeat.new_board(), listen(launch.on_one_host)
    parent = os.getpid()
    child = os.fork()
    if child:
        os.close(writing)
        return Watch(launch, child, reading, board, listening).wait_for_rank()
    os.close(reading)
    die_with_parent(parent)
    port = listening.getsockname()[1] if listening is not None else None
    if listening is not None:
        listening.close()
    heartbeat.begin(board, writing, port)
    try:
        return leaving.leave(action())
    finally:
        heartbeat.announce_orderly_end()
