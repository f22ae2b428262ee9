"""A job of guarded ranks without MPI and torch, as test_preforking.py starts it.

``python preforked.py ACTION`` is one rank. What is shared is the module ``colorsys``.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
import time

from mpifed.watchdog import handover, heartbeat
from mpifed.watchdog.guard import guarded

RANK = os.environ["PMI_RANK"]


def preload() -> bool:
    how = os.environ.get("PRELOAD", "")
    if how == "raises":
        raise ImportError("no such library")
    if how == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "starts a thread":
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    if how == "hangs":
        heartbeat.send_to_guard(limit=1.0)
        time.sleep(60)
    if how == "prints":
        print("printed by an import")
        print("a warning of an import", file=sys.stderr)
    if how == "takes a while":
        time.sleep(2.5)
    import colorsys  # noqa: F401

    return how != "declines"


def about() -> dict[str, object]:
    """What a rank is and has."""
    with open("/proc/self/environ", "rb") as file:
        shown = file.read().split(b"\0")
    return {
        "rank": int(RANK_NOW()),
        "shown": [word.decode() for word in shown if word.startswith(b"PMI_RANK=")],
        "forked": "colorsys" in sys.modules,
        "process": os.getpid(),
        "parent": os.getppid(),
        "guard": heartbeat.guard(),
        "processors": sorted(os.sched_getaffinity(0)),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "umask": os.umask(0o022),
        "folder": os.getcwd(),
        "group": os.getpgid(0),
        "session": os.getsid(0),
        "words": sys.argv[1:],
        "own": os.environ.get("OWN"),
        "held": os.read(int(os.environ["HELD"]), 99).decode() if "HELD" in os.environ else None,
        "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
        "buffered": not sys.stdout.line_buffering,
    }


def RANK_NOW() -> str:  # noqa: N802  # beside RANK, which is that of the process it was read in
    return os.environ["PMI_RANK"]


def action() -> int:
    came: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))
    handover.release_signals()
    heartbeat.send_to_guard(limit=30.0)
    print(json.dumps(about()), flush=True)
    what, _, rest = sys.argv[1].partition(":")
    if what == "leave":
        return int(rest)
    if what == "wait":  # for a file, or a signal
        while not came and not os.path.exists(rest):
            heartbeat.step()
            time.sleep(0.01)
        return 75 if came else int(os.environ.get("CODE", "0"))
    raise ValueError(what)


if __name__ == "__main__":
    sys.exit(guarded(action, preload, "LOUD" not in os.environ))
