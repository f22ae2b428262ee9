"""A rank without MPI and torch, as test_watchdog.py starts it; what ranks share is ``colorsys``.

``python watched.py ACTION``, an action being ``leave:CODE``, ``begin-and-leave:CODE``,
``leave-a-child:CODE``, ``wait:FILE``, ``grow:RANK`` or ``hang``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import weakref

from mpifed.watchdog import heartbeat
from mpifed.watchdog.guard import guarded
from mpifed.watchdog.launcher import release_signals, started_at


def preload() -> None:
    how = os.environ.get("PRELOAD", "")
    if how == "hangs":
        heartbeat.set_stall_limit(1.0)
        time.sleep(60)
    if how == "raises":
        raise ImportError("no such library")
    if how == "takes a while":
        time.sleep(2.5)
    if how == "forks slowly":
        time.sleep(1.0)
        os.register_at_fork(before=lambda: time.sleep(0.3))
        weakref.finalize(preload, print, "of the imports", flush=True)
    if how == "is slow":  # in all, longer than the limit
        heartbeat.set_stall_limit(2.0)
        for name in ("aifc", "chunk", "colorsys", "mailcap", "sndhdr", "sunau", "this"):
            time.sleep(0.5)
            sys.modules[name] = type(sys)(name)
    import colorsys  # noqa: F401


def action() -> int:
    came: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))
    release_signals()
    heartbeat.await_forks()
    weakref.finalize(action, print, "of the rank", flush=True)
    about = {
        "began": started_at("self"),
        "went_on": time.clock_gettime(time.CLOCK_BOOTTIME),
        "rank": int(os.environ["PMI_RANK"]),
        "forked": "colorsys" in sys.modules,
        "process": os.getpid(),
        "parent": os.getppid(),
        "processors": sorted(os.sched_getaffinity(0)),
        "characters": sum(map(len, os.environ.values())),
        "held": os.read(int(os.environ["PMI_FD"]), 9).decode() if "PMI_FD" in os.environ else None,
    }
    print(json.dumps(about), flush=True)
    what, _, rest = sys.argv[1].partition(":")
    if what == "begin-and-leave":
        heartbeat.mpi_has_begun(heartbeat.leader())
    elif what == "leave-a-child":
        child = os.fork()
        if not child:
            os.setsid()
            time.sleep(60)
            os._exit(0)
        print(child, flush=True)
    elif what == "wait":
        while not came and not os.path.exists(rest):
            heartbeat.step()
            time.sleep(0.01)
        return 75 if came else 0
    elif what == "grow":
        if os.environ["PMI_RANK"] != rest:
            time.sleep(60)
        held = []
        while True:
            held.append(bytearray(1 << 20))
            heartbeat.step()
    elif what == "hang":
        heartbeat.set_stall_limit(1.0)
        time.sleep(60)
    elif what != "leave":
        raise ValueError(what)
    return int(rest)


if __name__ == "__main__":
    sys.exit(guarded(action, preload))
