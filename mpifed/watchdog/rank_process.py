"""The process of a rank as its guard sees it: the guard's child, or forked by another process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import time
from pathlib import Path
from typing import Any, Protocol

from mpifed.watchdog.launcher import has_ended, watch_process

# Signals that a guard passes on to its rank.
PASSED_ON = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTERM", "SIGCONT")

# In place of the exit code of a process that has ended when nobody was there to see how.
UNSEEN = 256

# Seconds that a guard waits to hear how a rank has ended which it has seen to be gone.
STATUS_PATIENCE = 5.0

# Seconds between two looks at whether a forked rank is suspended, which has to read a file.
LOOK = 1.0

_LONGEST = 1 << 12


class RankProcess(Protocol):
    """What a guard can observe of its rank and do to it."""

    pid: int | None
    stopped: bool
    code: int | None

    @property
    def refused(self) -> bool: ...

    def look(self) -> None:
        """Update the attributes."""

    def send(self, number: int) -> None:
        """Send it a signal, if it still runs."""

    def sources(self) -> list[int]:
        """Return descriptors that become readable when there is something to look at."""


class Signals:
    """Signals that a guard receives for its rank, also before there is one."""

    def __init__(self) -> None:
        self._rank: RankProcess | None = None
        self._early: list[int] = []
        self._before: dict[int, Any] = {}

    def pass_on_to(self, rank: RankProcess) -> None:
        """Begin to pass signals on; those that come before there is a process are kept."""
        self._rank = rank
        numbers = [getattr(signal, name) for name in PASSED_ON]
        self._before = {number: signal.signal(number, self._handle) for number in numbers}

    def release(self) -> None:
        """Handle signals as before, so that a fork of this process does."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def deliver(self) -> None:
        """Send what was kept, if the rank is there; call it when the rank can handle signals."""
        while self._early and self._rank is not None and self._rank.pid is not None:
            self._rank.send(self._early.pop(0))

    def _handle(self, number: int, frame: Any) -> None:
        if self._rank is None or self._rank.pid is None:
            self._early.append(number)
        else:
            self._rank.send(number)


class Child:
    """A rank that is the guard's own child; see ``RankProcess``."""

    def __init__(self, pid: int) -> None:
        self.pid: int | None = pid
        self.stopped = False
        self.code: int | None = None
        self.refused = False
        self._child = pid
        self._end = watch_process(pid)

    def look(self) -> None:
        flags = os.WNOHANG | os.WUNTRACED | getattr(os, "WCONTINUED", 0)
        with contextlib.suppress(ChildProcessError):
            pid, status = os.waitpid(self._child, flags)
            if pid and os.WIFSTOPPED(status):
                self.stopped = True
            elif pid and os.WIFCONTINUED(status):
                self.stopped = False
            elif pid:
                self.code = os.waitstatus_to_exitcode(status)

    def send(self, number: int) -> None:
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child, number)

    def sources(self) -> list[int]:
        return [] if self._end is None else [self._end]


class Forked:
    """A rank that another process forks and reaps; see ``RankProcess`` and ``forker``."""

    def __init__(self, line: Line) -> None:
        self.pid: int | None = None
        self.stopped = False
        self.code: int | None = None
        self._line = line
        self._end = -1
        self._gone_at: float | None = None
        self._next_look = 0.0

    @property
    def refused(self) -> bool:
        """Whether it will not be forked."""
        return self.pid is None and self._line.closed

    def look(self) -> None:
        for said, received in self._line.hear():
            if "pid" in said and received:
                self.pid, self._end = said["pid"], received[0]
            if "code" in said:
                self.code = said["code"]
        if self.pid is None or self.code is not None:
            return
        now = time.monotonic()
        if not has_ended(self._end):
            if now > self._next_look:
                self._next_look = now + LOOK
                self.stopped = _state(self.pid) == "T"
            return
        self._gone_at = self._gone_at or now
        if self._line.closed or now - self._gone_at > STATUS_PATIENCE:
            self.code = UNSEEN

    def send(self, number: int) -> None:
        if self.pid is not None and self.code is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._end, number)

    def sources(self) -> list[int]:
        ends = [self._end] if self.pid is not None and self._gone_at is None else []
        return ends + self._line.sources()

    def close(self) -> None:
        """Close the connection."""
        self._line.close()


def _state(process: int) -> str:
    """The state of a process as a letter; empty where it is gone."""
    with contextlib.suppress(OSError, IndexError):
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        return text.rsplit(")", 1)[1].split()[0]
    return ""


class Line:
    """A connection to the process that forks ranks, which may still have to be made."""

    # Seconds in which a name that is taken must answer.
    CONNECTING = 1.0

    def __init__(
        self,
        connection: socket.socket,
        name: bytes | None,
        request: tuple[str, list[int]],
        forker: int | None = None,
    ) -> None:
        self.closed = False
        self._connection, self._name, self._request = connection, name, request
        self._forker = forker
        self._began = time.monotonic()
        self._sent = False
        connection.setblocking(False)

    def hear(self) -> list[tuple[dict[str, int], list[int]]]:
        """Return the messages that have come, each with its descriptors; never waits."""
        if self.closed:
            self._reap()
            return []
        heard = []
        try:
            self._send()
            while self._sent:
                data, received, _, _ = socket.recv_fds(self._connection, _LONGEST, 1)
                if not data:
                    self.close()
                    break
                heard.append((json.loads(data), received))
        except BlockingIOError:
            pass
        except ConnectionRefusedError:
            # Either it is not listening yet, or whoever had the name has just ended.
            if time.monotonic() - self._began > self.CONNECTING:
                self.close()
        except (OSError, ValueError):
            self.close()
        return heard

    def _send(self) -> None:
        if self._name is not None:
            self._connection.connect(self._name)
            self._name = None
            if peer_of(self._connection)[1] != os.getuid():
                raise PermissionError
        if not self._sent:
            text, descriptors = self._request
            socket.send_fds(self._connection, [text.encode()], descriptors)
            self._sent = True

    def _reap(self) -> None:
        if self._forker is not None:
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(self._forker, os.WNOHANG)[0]:
                    self._forker = None

    def sources(self) -> list[int]:
        """Return the descriptor to wait at, if the connection is made."""
        return [self._connection.fileno()] if self._sent and not self.closed else []

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
        self.closed = True


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return process and user at the other end of a Unix socket, as the kernel knows them."""
    form = struct.Struct("3i")
    made = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size)
    process, user, _ = form.unpack(made)
    return process, user
