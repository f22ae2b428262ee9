"""A guard for every rank of a job: a process that says so if the rank dies or stands still.

A rank that is killed (out of memory, a crash in a library, ``os._exit``) cannot name itself, and
some launchers then end the job silently, late, or even with exit code 0. One that is stopped, or
goes round in a loop, keeps all others waiting for ever. Under a launcher every rank is therefore
the child of a small process that waits for it, passes signals on, watches its signs of life
(``heartbeat``) and the launcher's (``launcher``), reports an end that the rank has not announced,
and tells the guards of the other ranks, so that the whole job ends: by ``peers`` once MPI has told
who they are, before that by ``rendezvous`` on this host and by the launcher on others.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mpifed.errors import EXIT_FAILED, complain
from mpifed.supervision import exit as leaving
from mpifed.supervision import heartbeat
from mpifed.supervision.launcher import (
    Launch,
    die_with,
    end_job,
    has_ended,
    launched,
    watch_process,
)
from mpifed.supervision.peers import Peers, listen
from mpifed.supervision.rendezvous import attend, tell_to_end, told_to_end
from mpifed.supervision.shared_memory import remove_abandoned, remove_segments, segments_of
from mpifed.supervision.stillness import Stillness

PASSED_ON = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTERM", "SIGCONT")

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

ALIKE = 10.0
"""Seconds that a rank which fails before MPI has begun leaves the report to rank 0, for most such
failures are met by all.
"""


def guarded(action: Callable[[], int]) -> int:
    """``action()`` in a child process, if a launcher started this one, else here.

    Returns the exit code, in the child too, whose caller then exits with it. To be called before
    anything has started a thread, registered an ``atexit`` function or initialised MPI.
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
        return _Watch(launch, child, reading, board, listening).until_the_end()
    os.close(reading)
    die_with(parent)
    port = listening.getsockname()[1] if listening is not None else None
    if listening is not None:
        listening.close()
    heartbeat.begin(board, writing, port)
    try:
        return leaving.leave(action())
    finally:
        heartbeat.announce()


@dataclass
class _Watch:
    """The guard of process ``child``, a rank of the job ``launch``."""

    launch: Launch
    child: int
    reading: int
    board: mmap.mmap
    listening: socket.socket | None
    announced: bool = False
    stillness: Stillness = field(default_factory=Stillness)
    failure: str | None = None
    peers: Peers | None = None
    code: int | None = None
    _meeting: socket.socket | None = None
    _child_end: int | None = None
    _launcher_end: int | None = None
    _segments: tuple[str, ...] = ()
    _said: bytes = b""

    def until_the_end(self) -> int:
        """Waits for the rank; its exit code, or 1 after a report."""
        for name in PASSED_ON:
            signal.signal(getattr(signal, name), lambda number, frame: self._kill(number))
        os.set_blocking(self.reading, False)
        self._meeting = attend(self.launch)
        self._child_end = watch_process(self.child)
        self._launcher_end = watch_process(self.launch.process)
        remove_abandoned()
        last = time.monotonic()
        while True:
            self._look()
            now = time.monotonic()
            # A guard that was itself stopped or kept from running has seen nothing meanwhile.
            passed, last = min(now - last, 2 * TICK), now
            if self.code is not None:
                return self._ended(self.code)
            fault = self._fault(passed)
            told = self._told_to_end()
            if told is not None:
                self._end_rank()
                return told
            if fault is not None:
                return self._report(fault)
            if has_ended(self._launcher_end):
                return self._orphaned()
            self._rest(TICK)

    def _look(self) -> None:
        """What has become of the rank, and what it has said."""
        self._read()
        flags = os.WNOHANG | os.WUNTRACED | getattr(os, "WCONTINUED", 0)
        with contextlib.suppress(ChildProcessError):
            pid, status = os.waitpid(self.child, flags)
            if pid and os.WIFSTOPPED(status):
                self.stillness.stopped = True
            elif pid and os.WIFCONTINUED(status):
                self.stillness.stopped = False
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
                self.announced = self.stillness.ending = True
            else:
                self._note(json.loads(line))

    def _note(self, told: dict[str, Any]) -> None:
        """Takes in a line that the rank has written."""
        if "limit" in told:
            self.stillness.limit = told["limit"]
        if "failure" in told:
            self.failure = told["failure"]
        if "peers" in told:
            self._segments = segments_of(self.child)
            if self.listening is not None:
                self.peers = Peers.of(told, self.listening)
        if "places" in told and self.peers is not None:
            for peer, place in zip(self.peers.peers, told["places"], strict=True):
                peer.clients = place

    def _told_to_end(self) -> int | None:
        """The exit code with which another guard has ended the job; None if none has."""
        if self.peers is not None and self.peers.ended:
            return EXIT_FAILED
        return told_to_end(self._meeting) if self._meeting is not None else None

    def _fault(self, passed: float) -> tuple[int, str] | None:
        """What is wrong with which rank, after ``passed`` seconds more; None if nothing is."""
        signs, peers = heartbeat.read(self.board), self.peers
        lost = peers.tick(passed, signs.round) if peers is not None else None
        if peers is not None and lost is not None:
            silent = peers.peers[lost].silent
            return lost, f"neither the process nor its guard was heard of for {silent:.0f} s"
        what = self.stillness.fault(signs, passed)
        return (self.launch.rank, what) if what is not None else None

    def _ended(self, code: int) -> int:
        if self.announced and code >= 0:
            if self.peers is not None:
                if code == EXIT_FAILED:
                    self.peers.end(self.launch.rank)
                self.peers.leave()
            elif code and self.launch.size > 1:
                return self._failed_early(code)
            return code
        # MPI libraries kill, or end in an orderly way, ranks that talk to one that is gone.
        if self.peers is not None:
            self.peers.fall()
        hasty = {"SLURM_PROCID", "PMIX_RANK"} <= os.environ.keys()
        told = self._told_to_end_within(HASTE if hasty else GRACE + self._turn())
        if told is not None:
            return told
        how = f"left with code {code}"
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            how += " (out of memory?)" if code == -signal.SIGKILL else ""
        return self._report((self.launch.rank, f"the process {how}"))

    def _failed_early(self, code: int) -> int:
        """A rank has left before MPI knew of it: perhaps alone, and the others wait for it."""
        if code != EXIT_FAILED and (self._meeting is None or not self.launch.on_one_host):
            return code  # bad words, which all refuse, here and where nobody can be asked
        if self.launch.rank == 0:
            self._tell_to_end(code)
            return code
        told = self._told_to_end_within(ALIKE + self._turn())
        if told is not None:
            return told
        why = self.failure or f"the process left with code {code}"
        return self._report((self.launch.rank, why), code)

    def _orphaned(self) -> int:
        """Ends the rank, which nobody else would: the launcher has gone."""
        told = self._told_to_end_within(self._turn() + 2 * TICK * (self.launch.rank > 0))
        if told is None:
            return self._report((self.launch.rank, "the launcher has ended before its ranks"))
        self._end_rank()
        return told

    def _turn(self) -> float:
        return min(LONGEST_TURN, TURN * self.launch.rank)

    def _told_to_end_within(self, patience: float) -> int | None:
        """As ``_told_to_end``, within some seconds; more if another rank died before this one."""
        peers, began = self.peers, time.monotonic()
        while True:
            yielding = YIELDING if peers is not None and peers.fell_later() else 0.0
            if time.monotonic() - began > patience + yielding:
                return None
            time.sleep(TURN)
            lost = peers.tick(0.0, -1) if peers is not None else None
            told = self._told_to_end()
            if lost is None and told is not None:
                return told

    def _report(self, fault: tuple[int, str], code: int = EXIT_FAILED) -> int:
        """Says what happened, and ends this rank and all others."""
        number, what = fault
        host, clients, round = socket.gethostname(), "", heartbeat.read(self.board).round
        if self.peers is not None:
            peer = self.peers.peers[number]
            host, clients = peer.host, f" ({peer.clients})" if peer.clients else ""
            # Ranks are never more than a round apart, and a lost one may have said nothing of it.
            round = max(round, peer.round)
        when = f"round {round}" if round >= 0 else "before the first round"
        with contextlib.suppress(OSError):  # whoever read it may have gone with the launcher
            complain("mpifed", f"rank {number} on {host}{clients}: {when}: {what}")
        if self.peers is not None:
            self.peers.end(number)
        self._end_rank()
        if self.peers is None and self.launch.size > 1 and not self._tell_to_end(code):
            end_job()
        return code

    def _tell_to_end(self, code: int) -> bool:
        """Whether all ranks have been told to end with ``code``, before MPI."""
        return self._meeting is not None and tell_to_end(self._meeting, self.launch, code)

    def _end_rank(self) -> None:
        """Kills the rank and removes the shared memory that MPI can no longer remove itself."""
        segments = {*self._segments, *segments_of(self.child)}
        self._kill(signal.SIGKILL)
        remove_segments(segments)

    def _rest(self, seconds: float) -> None:
        """Waits, but wakes up for what is said, and when the rank or the launcher ends."""
        heard = [self.reading] if not self.announced else []
        heard += [end for end in (self._child_end, self._launcher_end) if end is not None]
        heard += [made.fileno() for made in (self.listening, self._meeting) if made is not None]
        with contextlib.suppress(OSError):
            select.select(heard, [], [], seconds)

    def _kill(self, number: int) -> None:
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child, number)
