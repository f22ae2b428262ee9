"""One process per node that imports what ranks need and forks them, instead of each
importing it.
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

# Stubs that may wait while the forker imports; others try again.
WAITING = 1024


def usable(launch: Launch) -> bool:
    """Return whether a rank of this job may be forked from a process that several ranks share."""
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
    """Ask the forker of this node for a rank, after starting it if there is none yet."""
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
