"""One process per node that imports what ranks need and forks them, instead of each importing it.

Importing torch takes seconds of a core and thousands of look-ups in the file system, in every rank.
Of the ranks that a launcher has started on a node, the guard that comes first starts a ``forker``,
which imports all that a run needs except MPI. Every guard of the node then asks it for its rank,
and becomes a *stub*, which forwards signals and the exit status:

* It connects to a socket in Linux's abstract namespace, whose name is made from the process that
  supervises the ranks of the node (hydra's proxy, ``prted``, ``slurmstepd``), the time when that
  was started, the job and the user, so that jobs do not meet each other.
* It sends its ``likeness`` and its ``handover``: what must be equal in both processes, and what the
  rank takes over, with the descriptors. Where it is not like the forker, as where a launcher gives
  each rank a control group of its own, the connection is closed, and the guard forks its rank
  itself, which then imports for itself. So it is where the forker cannot import, is killed, or has
  more than one thread.
* The forker forks the rank, sends its process id with a pidfd, reaps it, and sends its exit status.
  One that is killed later is missed by nobody: a guard sees by the pidfd that its rank has ended,
  and knows from the rank itself with which code.
* A rank whose stub ends is killed by the kernel (``handover.end_with``).

Nothing here waits: the guard looks at the connection as it looks at everything else, and
``stall_limit`` bounds the imports of the forker as those of a rank. ``MPIFED_PREFORK=0`` in the
environment switches all of this off.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from mpifed.errors import EXIT_FAILED
from mpifed.watchdog import likeness
from mpifed.watchdog.handover import MOST, Belongings
from mpifed.watchdog.heartbeat import Ends
from mpifed.watchdog.launcher import Launch
from mpifed.watchdog.rank_process import Forked, Line

SWITCH = "MPIFED_PREFORK"

WAITING = 1024
"""Stubs that may wait while the forker imports; others try again."""


def usable(launch: Launch) -> bool:
    """Return whether a rank of this job may be forked from a process that several ranks share.

    Parameters
    ----------
    launch : Launch
        The place of this process in its job.
    """
    return (
        sys.platform == "linux"
        and os.environ.get(SWITCH) != "0"
        and launch.together > 1
        and all(hasattr(os, name) for name in ("pidfd_open", "memfd_create"))
        and None not in (sys.stdin, sys.stdout, sys.stderr)
        and not likeness.observed()
    )


def join(
    launch: Launch, ends: Ends, preload: Callable[[], bool], forget: Callable[[], None]
) -> Ends | Forked | None:
    """Ask the forker of this node for a rank, after starting it if there is none yet.

    Parameters
    ----------
    launch : Launch
        The place of this process in its job.
    ends : Ends
        What connects the rank to this process.
    preload : callable
        Imports what ranks need; returns False if they should rather begin by themselves.
    forget : callable
        Closes, in a copy of this process, what belongs to this process alone.

    Returns
    -------
    Ends, Forked or None
        Ends in the rank, which is another process; in this process, the rank as it can be observed
        from here; None if the system refuses something.
    """
    belongings, traits = Belongings.of_this_process(), likeness.traits()
    if belongings.descriptors[:3] != [0, 1, 2] or len(belongings.descriptors) > MOST:
        return None
    name, forker = _name(launch), None
    try:
        os.close(os.pidfd_open(os.getpid()))  # some systems know the call and refuse it
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            with contextlib.suppress(OSError):  # another guard has come first
                listening.bind(name)
                listening.listen(WAITING)
                forker = os.fork()
            if forker == 0:
                return _serve(listening, traits, ends, preload, forget)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        leash, _ = os.pipe()
    except OSError:
        return None
    said = {"traits": traits, "belongings": belongings._asdict(), "ends": ends.said()}
    request = (json.dumps(said), [ends.memory, ends.pipe, leash, *belongings.descriptors])
    # Both ends of the leash stay open here: the end of this process closes the one that counts.
    return Forked(Line(connection, name, request, forker))


def _serve(
    listening: socket.socket,
    traits: dict[str, str],
    ends: Ends,
    preload: Callable[[], bool],
    forget: Callable[[], None],
) -> Ends:
    """Be the forker; returns in ranks alone. Nothing may return or raise into the guard's code."""
    try:
        from mpifed.watchdog.forker import Forker  # here, since every guard would import it

        forget()
        return Forker(listening, traits).serve(ends, preload)
    except BaseException:
        os._exit(EXIT_FAILED)


def _name(launch: Launch) -> bytes:
    """Return the name at which guards with the same launcher on this node meet."""
    started = ""
    with contextlib.suppress(OSError, IndexError):
        text = Path(f"/proc/{launch.process}/stat").read_text(encoding="utf-8", errors="replace")
        started = text.rsplit(")", 1)[1].split()[19]
    about = f"{os.getuid()} {socket.gethostname()} {launch.job} {launch.process} {started}"
    return (
        b"\0mpifed-forker-" + hashlib.blake2b(about.encode(), digest_size=16).hexdigest().encode()
    )
