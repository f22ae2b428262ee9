"""The process of a node that imports what ranks need once, and from which ranks are forked."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import selectors
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from mpifed.watchdog import heartbeat, likeness
from mpifed.watchdog.handover import (
    MOST,
    Belongings,
    call_process,
    end_with,
    hold_signals,
    inherited_descriptors,
    open_descriptors,
    take_over,
)
from mpifed.watchdog.heartbeat import Ends
from mpifed.watchdog.launcher import die_with_parent, outlive_parent
from mpifed.watchdog.rank_process import peer_of

# Its name in ``ps`` and ``top``.
NAME = "mpifed-forker"

# Bytes of a request at most.
LONGEST = 1 << 18

# Descriptors that a request begins with: signs of life, messages to the guard, leash.
OWN = 3


@dataclass(frozen=True)
class _Request:
    """What a stub asks for, with its descriptors as they are numbered here."""

    said: dict[str, Any]
    descriptors: list[int]


class Forker:
    """Forks a rank for each stub that asks."""

    def __init__(self, listening: socket.socket, traits: dict[str, str]) -> None:
        self._listening, self._traits = listening, traits
        listening.setblocking(False)
        self._starter = os.getppid()
        self._selector = selectors.DefaultSelector()
        self._stubs: dict[int, socket.socket] = {}
        self._served: set[int] = set()
        self._ranks: dict[int, tuple[int, int]] = {}
        self._foreign: set[int] = set()

    def serve(self, ends: Ends, preload: Callable[[], bool]) -> Ends:
        """Import, then fork ranks until all have ended."""
        name = Path("/proc/self/comm").read_text(encoding="utf-8", errors="replace").strip()
        printed = self._let_go(ends)
        try:
            ready = preload()
        except BaseException:  # ranks that import for themselves report it
            ready = False
        if not ready or likeness.threads() != 1:
            os._exit(0)
        outlive_parent()
        heartbeat.pause()
        ends.board.close()
        os.close(ends.pipe)
        gc.collect()
        gc.freeze()
        request = self._first_of_fork(printed)
        output = printed.read()
        self._close_own(printed)
        memory, pipe, leash = request.descriptors[:OWN]
        belongings = Belongings(**request.said["belongings"])
        kept = take_over(belongings, request.descriptors[OWN:], [memory, pipe, leash])
        end_with(kept[2])
        call_process(name)
        for place, text in enumerate(output, start=1):
            with contextlib.suppress(OSError), open(place, "wb", closefd=False) as stream:
                stream.write(text)
        _reseed()
        return Ends.of_memory(*kept[:2], **request.said["ends"])

    def _let_go(self, ends: Ends) -> _Printed:
        """Part from the guard that has started this process, and from its launcher."""
        os.setpgid(0, 0)
        die_with_parent(self._starter)  # while it imports, which may take for ever
        hold_signals()
        call_process(NAME)
        for number in inherited_descriptors(pipes=True):
            if number > 2:
                os.close(number)
        os.close(ends.memory)
        heartbeat.begin(ends.board, ends.pipe, ends.port)
        return _Printed.instead_of_streams()

    def _first_of_fork(self, printed: _Printed) -> _Request:
        """Serve; returns, in each forked process, what its stub has asked for."""
        starter = os.pidfd_open(self._starter)
        own = {
            self._listening.fileno(),
            self._selector.fileno(),
            starter,
            *(file.fileno() for file in printed.files),
        }
        self._foreign = set(open_descriptors()) - own - {0, 1, 2}
        self._ranks[starter] = (0, -1)
        for number in (self._listening.fileno(), starter):
            self._selector.register(number, selectors.EVENT_READ)
        while self._ranks or self._stubs:
            for key, _ in self._selector.select():
                request = self._attend(key.fd)
                if request is not None:
                    return request
        os._exit(0)

    def _attend(self, number: int) -> _Request | None:
        """Handle what has come on a descriptor; returns a request in a forked process alone."""
        if number == self._listening.fileno():
            self._admit()
        elif number in self._ranks:
            self._reap(number)
        elif number in self._served:
            self._dismiss(number)  # the stub has ended, and the kernel ends its rank
        elif number in self._stubs:
            return self._answer(number)
        return None

    def _admit(self) -> None:
        """Accept a stub. The one that has started this process need not be waited for any more."""
        with contextlib.suppress(OSError):
            stub, _ = self._listening.accept()
            process, user = peer_of(stub)
            if user != os.getuid():
                stub.close()
                return
            stub.setblocking(False)
            self._stubs[stub.fileno()] = stub
            self._selector.register(stub, selectors.EVENT_READ)
            for number, (rank, _) in list(self._ranks.items()):
                if rank == 0 and process == self._starter:
                    self._forget(number)

    def _answer(self, number: int) -> _Request | None:
        """Fork a rank for a stub; returns what it has asked for in the forked process alone."""
        try:
            request = _receive(self._stubs[number])
        except BlockingIOError:
            return None
        child = -1
        if self._fits(request):
            with contextlib.suppress(OSError):
                child = os.fork()
        if child == 0:
            return request
        for one in request.descriptors:
            os.close(one)
        if child < 0:
            self._dismiss(number)
            return None
        ended = os.pidfd_open(child)
        self._served.add(number)
        self._ranks[ended] = (child, number)
        self._selector.register(ended, selectors.EVENT_READ)
        self._tell(number, {"pid": child}, [ended])
        return None

    def _fits(self, request: _Request) -> bool:
        """Whether a fork of this process may become the rank."""
        if not request.said:
            return False
        places = request.said["belongings"]["descriptors"]
        alike = likeness.alike(request.said["traits"], self._traits)
        whole = len(places) + OWN == len(request.descriptors)
        return alike and whole and not self._foreign.intersection(places)

    def _reap(self, number: int) -> None:
        rank, stub = self._ranks[number]
        if rank:
            code = os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1])
            self._tell(stub, {"code": code}, [])
        self._forget(number)

    def _tell(self, number: int, said: dict[str, int], descriptors: list[int]) -> None:
        if number in self._stubs:
            with contextlib.suppress(OSError):
                socket.send_fds(self._stubs[number], [json.dumps(said).encode()], descriptors)

    def _forget(self, number: int) -> None:
        """Stop watching a process."""
        del self._ranks[number]
        self._selector.unregister(number)
        os.close(number)

    def _dismiss(self, number: int) -> None:
        """Close the connection of a stub."""
        self._served.discard(number)
        stub = self._stubs.pop(number)
        self._selector.unregister(stub)
        stub.close()

    def _close_own(self, printed: _Printed) -> None:
        """Close, in a forked process, what belongs to the one it was forked from."""
        self._selector.close()
        self._listening.close()
        for stub in self._stubs.values():
            stub.close()
        for number in self._ranks:
            os.close(number)
        printed.close()


def _receive(stub: socket.socket) -> _Request:
    """Read a request; one that is cut, or whose stub is gone, says nothing."""
    try:
        data, descriptors, flags, _ = socket.recv_fds(stub, LONGEST, MOST + OWN)
    except BlockingIOError:
        raise
    except OSError:
        return _Request({}, [])
    cut = flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)
    return _Request(json.loads(data) if data and not cut else {}, list(descriptors))


@dataclass(frozen=True)
class _Printed:
    """Files without a name in which standard output and error of this process end."""

    files: tuple[BinaryIO, BinaryIO]

    @classmethod
    def instead_of_streams(cls) -> _Printed:
        """Redirect the standard streams; nothing can be read from standard input."""
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        files = (_nameless(), _nameless())
        for place, file in enumerate(files, start=1):
            os.dup2(file.fileno(), place)
        return cls(files)

    def read(self) -> list[bytes]:
        """Return what was printed to standard output and to standard error."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        numbers = [file.fileno() for file in self.files]
        return [os.pread(number, os.fstat(number).st_size, 0) for number in numbers]

    def close(self) -> None:
        """Close the files."""
        for file in self.files:
            file.close()


def _nameless() -> BinaryIO:
    return os.fdopen(os.memfd_create("mpifed-printed"), "w+b", buffering=0)


def _reseed() -> None:
    """Seed numpy's global generator anew, else it would draw the same in all ranks."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
