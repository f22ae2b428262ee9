"""A guard for every rank of a job: a process that says so if the rank dies or stands still.

A rank that is killed (out of memory, a crash in a library, ``os._exit``) cannot name itself, and
some launchers then end the job silently, late, or even with exit code 0. One that is stopped, or
goes round in a loop, keeps all others waiting for ever. Under a launcher every rank is therefore
the child of a small process that waits for it, passes signals on, watches its signs of life
(``heartbeat``), reports an end that the rank has not announced, and tells the guards of the other
ranks (``peers``), so that the whole job ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from mpifed.errors import EXIT_FAILED, complain
from mpifed.supervision import exit as leaving
from mpifed.supervision import heartbeat
from mpifed.supervision.peers import Peers, listen

PASSED_ON = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTERM", "SIGCONT")
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
PR_SET_PDEATHSIG = 1

TICK = 0.2
"""Seconds between two looks at the rank; a longer pause is one of this process, not of the rank."""

GRACE, TURN, LONGEST_TURN = 0.1, 0.005, 1.0
"""Seconds before a dead rank is reported: a launcher that kills the job kills the guard too, and of
several ranks that die at once the first one reports. No longer, for some launchers kill the job as
soon as a rank is gone.
"""

HASTE = 0.005
"""The same where SLURM sees by PMIx that a rank is gone, and kills the step at once."""

YIELDING = 3.0
"""Seconds more that a rank's guard leaves the report to that of one that died before."""

STOPPED = 5.0
"""Seconds that a rank may be stopped (SIGSTOP) while its guard is not."""

WAITING = 60.0
"""Seconds that a rank which waits for others has on top of the limit of one that computes."""


def launched_rank() -> int | None:
    """The number of this process in its job, as far as the launcher tells; None without one."""
    for name in RANK_VARIABLES:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return None


def guarded(action: Callable[[], int]) -> int:
    """``action()`` in a child process, if a launcher started this one, else here.

    Returns the exit code, in the child too where it has not left the job before. To be called
    before anything has started a thread or initialised MPI.
    """
    rank = launched_rank()
    if rank is None or not hasattr(os, "fork"):
        return action()
    reading, writing = os.pipe()
    board, listening = heartbeat.new_board(), listen()
    parent = os.getpid()
    child = os.fork()
    if child:
        os.close(writing)
        return _Watch(child, rank, reading, board, listening).until_the_end()
    os.close(reading)
    _die_with(parent)
    port = listening.getsockname()[1] if listening is not None else None
    if listening is not None:
        listening.close()
    heartbeat.begin(board, writing, port)
    try:
        code = action()
    finally:
        heartbeat.announce()
    leaving.leave(code)
    return code


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(EXIT_FAILED)


def segments_of(process: int) -> tuple[str, ...]:
    """Files of MPICH's in which ranks of one node share memory, as far as ``process`` maps them."""
    try:
        with open(f"/proc/{process}/maps", encoding="utf-8") as maps:
            words = {line.split()[-1] for line in maps}
    except OSError:
        return ()
    return tuple(sorted(word for word in words if word.startswith("/dev/shm/mpich_shm_")))


def remove_segments(paths: Iterable[str]) -> None:
    """Removes shared memory that MPI will not remove itself; ranks that still run keep theirs."""
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)


@dataclass
class _Watch:
    """The guard of process ``child``, which is rank ``rank``."""

    child: int
    rank: int
    reading: int
    board: mmap.mmap
    listening: socket.socket | None
    announced: bool = False
    limit: float | None = None
    peers: Peers | None = None
    code: int | None = None
    _stopped: bool = False
    _stopped_for: float = 0.0
    _still_for: float = 0.0
    _steps: int = -1
    _end: int | None = None
    _segments: tuple[str, ...] = ()
    _said: bytes = field(default=b"", repr=False)

    def until_the_end(self) -> int:
        """Waits for the rank; its exit code, or 1 after a report."""
        for name in PASSED_ON:
            signal.signal(getattr(signal, name), lambda number, frame: self._kill(number))
        os.set_blocking(self.reading, False)
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self._end = os.pidfd_open(self.child)
        last = time.monotonic()
        while True:
            self._look()
            now = time.monotonic()
            # A guard that was itself stopped or kept from running has seen nothing meanwhile.
            passed, last = min(now - last, 2 * TICK), now
            if self.code is not None:
                return self._ended()
            fault = self._fault(passed)
            if self.peers is not None and self.peers.ended:
                self._end_rank()
                return EXIT_FAILED
            if fault is not None:
                return self._report(fault)
            self._rest(TICK)

    def _look(self) -> None:
        """What has become of the rank, and what it has said."""
        self._read()
        flags = os.WNOHANG | os.WUNTRACED | getattr(os, "WCONTINUED", 0)
        with contextlib.suppress(ChildProcessError):
            pid, status = os.waitpid(self.child, flags)
            if pid and os.WIFSTOPPED(status):
                self._stopped = True
            elif pid and os.WIFCONTINUED(status):
                self._stopped, self._stopped_for = False, 0.0
            elif pid:
                self.code = os.waitstatus_to_exitcode(status)
                self._read()

    def _read(self) -> None:
        # A process that the rank has left behind may hold the pipe open: no waiting for its end.
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self.reading, 1 << 16):
                self._said += part
        *lines, self._said = self._said.split(b"\n")
        for line in lines:
            if line == heartbeat.ORDERLY.encode():
                self.announced = True
            else:
                told = json.loads(line)
                self.limit = told["limit"]
                self._segments = segments_of(self.child)
                if self.listening is not None:
                    self.peers = Peers.of(told, self.listening)

    def _fault(self, passed: float) -> tuple[int, str] | None:
        """What is wrong with which rank, after ``passed`` seconds more; None if nothing is."""
        signs = heartbeat.read(self.board)
        lost = self.peers.tick(passed, signs.round) if self.peers is not None else None
        if lost is not None:
            assert self.peers is not None
            silent = self.peers.peers[lost].silent
            return lost, f"neither the process nor its guard was heard of for {silent:.0f} s"
        if self.announced:
            return None
        if self._stopped:
            self._stopped_for += passed
            if self._stopped_for > STOPPED:
                return self.rank, f"the process has been stopped for {STOPPED:.0f} s"
        if signs.steps != self._steps:
            self._steps, self._still_for = signs.steps, 0.0
        self._still_for += passed
        if self.limit is not None and signs.round >= 0:
            if signs.waiting and self._still_for > self.limit + WAITING:
                return self.rank, f"no other rank answered for {self._still_for:.0f} s"
            if not signs.waiting and self._still_for > self.limit:
                return self.rank, f"no step forward for {self._still_for:.0f} s (stall_limit)"
        return None

    def _ended(self) -> int:
        code = self.code
        assert code is not None
        if self.announced and code >= 0:
            if self.peers is not None:
                if code == EXIT_FAILED:
                    self.peers.end(self.rank)
                self.peers.leave()
            return code
        # MPI libraries kill, or end in an orderly way, ranks that talk to one that is gone.
        if self._another_reports():
            return EXIT_FAILED
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            how += " (out of memory?)" if code == -signal.SIGKILL else ""
        else:
            how = f"left with code {code}"
        return self._report((self.rank, f"the process {how}"))

    def _another_reports(self) -> bool:
        """Whether, after this rank died, the guard of another has ended the job."""
        peers, began = self.peers, time.monotonic()
        if peers is not None:
            peers.fall()
        patience = GRACE + min(LONGEST_TURN, TURN * self.rank)
        if {"SLURM_PROCID", "PMIX_RANK"} <= os.environ.keys():
            patience = HASTE
        while True:
            yielding = YIELDING if peers is not None and peers.fell_later() else 0.0
            if time.monotonic() - began > patience + yielding:
                return False
            time.sleep(TURN)
            if peers is not None and peers.tick(0.0, -1) is None and peers.ended:
                return True

    def _report(self, fault: tuple[int, str]) -> int:
        """Says what happened, and ends this rank and all others."""
        number, what = fault
        host, clients, round = socket.gethostname(), "", heartbeat.read(self.board).round
        if self.peers is not None:
            peer = self.peers.peers[number]
            host, clients = peer.host, f" ({peer.clients})"
            # Ranks are never more than a round apart, and a lost one may have said nothing of it.
            round = max(round, peer.round)
        when = f"round {round}" if round >= 0 else "before the first round"
        complain("mpifed", f"rank {number} on {host}{clients}: {when}: {what}")
        if self.peers is not None:
            self.peers.end(number)
        self._end_rank()
        return EXIT_FAILED

    def _end_rank(self) -> None:
        """Kills the rank and removes the shared memory that MPI can no longer remove itself."""
        self._kill(signal.SIGKILL)
        remove_segments(self._segments)

    def _rest(self, seconds: float) -> None:
        """Waits, but wakes up for what the rank says, and when it ends."""
        heard = [self.reading] if not self.announced else []
        if self._end is not None:
            heard.append(self._end)
        if self.listening is not None:
            heard.append(self.listening.fileno())
        with contextlib.suppress(OSError):
            select.select(heard, [], [], seconds)

    def _kill(self, number: int) -> None:
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child, number)
