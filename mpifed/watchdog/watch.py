"""The watch over one rank: what a guard observes, when it reports a fault, how it ends the job."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import signal
import socket
import time
from typing import Any

from mpifed.errors import EXIT_FAILED, complain
from mpifed.watchdog import heartbeat
from mpifed.watchdog.launcher import Launch, end_job, has_ended, watch_process
from mpifed.watchdog.pace import (
    EARLIER_DEATH_GRACE,
    GRACE,
    LONGEST_TURN,
    PMIX_GRACE,
    SHARED_FAILURE_GRACE,
    TICK,
    TURN,
    pause_between_looks,
)
from mpifed.watchdog.peers import Peers
from mpifed.watchdog.rank_process import UNSEEN, RankProcess, Signals
from mpifed.watchdog.rendezvous import open_meeting_socket, receive_exit_code, send_exit_code
from mpifed.watchdog.shared_memory import remove_abandoned, remove_segments, segments_of
from mpifed.watchdog.starting import Starting
from mpifed.watchdog.stillness import Stillness


class Watch:
    """The guard of one rank."""

    def __init__(
        self,
        launch: Launch,
        reading: int,
        board: mmap.mmap,
        listening: socket.socket | None,
        starting: Starting | None = None,
    ) -> None:
        self.launch, self.reading, self.board = launch, reading, board
        self.listening, self.starting = listening, starting
        self.announced = False
        self.stillness = Stillness()
        self.failure: str | None = None
        self.peers: Peers | None = None
        self.code: int | None = None
        self._meeting: socket.socket | None = None
        self._launcher_end: int | None = None
        self._signals = Signals()
        self._segments: tuple[str, ...] = ()
        self._said, self._tick = b"", TICK
        self._process: RankProcess

    def wait_for(self, rank: RankProcess) -> int | None:
        """Wait until the rank, its launcher or the job ends, or a fault is found."""
        self._process = rank
        try:
            return self._observe(rank)
        except OSError as error:  # a rank without its guard may keep the others waiting for ever
            return self._report((self.launch.rank, f"its guard failed: {error.strerror or error}"))

    def _observe(self, rank: RankProcess) -> int | None:
        """Do what ``wait_for`` says, but raise what the system refuses."""
        self._signals.pass_on_to(rank)
        os.set_blocking(self.reading, False)
        self._tick = pause_between_looks(self.launch, os.cpu_count() or 1)
        if self._launcher_end is None:
            self._meeting = open_meeting_socket(self.launch)
            self._launcher_end = watch_process(self.launch.process)
            remove_abandoned()
        last = time.monotonic()
        while True:
            self._look()
            now = time.monotonic()
            # A guard that was itself stopped or kept from running has seen nothing meanwhile.
            passed, last = min(now - last, 2 * self._tick), now
            if rank.code is not None:
                return self._ended(rank.code)
            if rank.refused:
                self._signals.release()
                return None
            fault = self._fault(passed)
            requested = self._requested_exit_code()
            if requested is not None:
                self._end_rank()
                return requested
            if fault is not None:
                return self._report(fault)
            if has_ended(self._launcher_end):
                return self._orphaned()
            if self.peers is not None or self.announced:
                self.starting = None
            if self.starting is not None:
                self.starting.say(rank.pid is None, heartbeat.read(self.board).waiting)
            self._rest()

    def close(self) -> None:
        """Close what belongs to the guard alone: at its end, and in a copy of its process."""
        os.close(self.reading)
        for made in (self.listening, self._meeting):
            if made is not None:
                made.close()
        if self._launcher_end is not None:
            os.close(self._launcher_end)

    def _look(self) -> None:
        """Update what is known of the rank: its state and its messages."""
        self._read()
        self._process.look()
        self.stillness.stopped = self._process.stopped
        if self._process.code is not None:
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

    def _note(self, message: dict[str, Any]) -> None:
        """Store a message of the rank, which by its first one handles signals."""
        self._signals.deliver()
        if "limit" in message:
            self.stillness.limit = message["limit"]
        if "failure" in message:
            self.failure = message["failure"]
        if "code" in message:
            self.code = message["code"]
        if "peers" in message:
            self._segments = self._mapped_segments()
            if self.listening is not None:
                self.peers = Peers.of(message, self.listening)
        if "places" in message and self.peers is not None:
            for peer, place in zip(self.peers.peers, message["places"], strict=True):
                peer.clients = place

    def _requested_exit_code(self) -> int | None:
        """The exit code with which another guard has ended the job; None if none has."""
        if self.peers is not None and self.peers.ended:
            return EXIT_FAILED
        return receive_exit_code(self._meeting) if self._meeting is not None else None

    def _fault(self, passed: float) -> tuple[int, str] | None:
        """The faulty rank and its fault after ``passed`` more seconds; None if there is none."""
        signs, peers = heartbeat.read(self.board), self.peers
        lost = peers.tick(passed, signs.round) if peers is not None else None
        if peers is not None and lost is not None:
            silent = peers.peers[lost].silent
            return lost, f"neither the process nor its guard was heard of for {silent:.0f} s"
        what = self.stillness.fault(signs, passed)
        return (self.launch.rank, what) if what is not None else None

    def _ended(self, code: int) -> int:
        if code == UNSEEN and self.announced:
            code = EXIT_FAILED if self.code is None else self.code
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
            self.peers.announce_death()
        hasty = {"SLURM_PROCID", "PMIX_RANK"} <= os.environ.keys()
        requested = self._await_exit_code(PMIX_GRACE if hasty else GRACE + self._turn())
        if requested is not None:
            return requested
        how = f"left with code {code}" if code != UNSEEN else "has ended"
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            how += " (out of memory?)" if code == -signal.SIGKILL else ""
        return self._report((self.launch.rank, f"the process {how}"))

    def _failed_early(self, code: int) -> int:
        """Handle a rank that ended before MPI knew of it; the others may wait for it."""
        if code != EXIT_FAILED and (self._meeting is None or not self.launch.on_one_host):
            return code  # bad arguments, which every rank refuses
        if self.launch.rank == 0:
            self._send_exit_code(code)
            return code
        requested = self._await_exit_code(SHARED_FAILURE_GRACE + self._turn())
        if requested is not None:
            return requested
        why = self.failure or f"the process left with code {code}"
        return self._report((self.launch.rank, why), code)

    def _orphaned(self) -> int:
        """End the rank after its launcher has ended, since no other process would."""
        requested = self._await_exit_code(self._turn() + 2 * TICK * (self.launch.rank > 0))
        if requested is None:
            return self._report((self.launch.rank, "the launcher has ended before its ranks"))
        self._end_rank()
        return requested

    def _turn(self) -> float:
        return min(LONGEST_TURN, TURN * self.launch.rank)

    def _await_exit_code(self, patience: float) -> int | None:
        """As ``_requested_exit_code``, with a wait; longer if another rank died first."""
        peers, began = self.peers, time.monotonic()
        while True:
            extra = EARLIER_DEATH_GRACE if peers is not None and peers.another_died_first() else 0.0
            if time.monotonic() - began > patience + extra:
                return None
            time.sleep(TURN)
            lost = peers.tick(0.0, -1) if peers is not None else None
            requested = self._requested_exit_code()
            if lost is None and requested is not None:
                return requested

    def _report(self, fault: tuple[int, str], code: int = EXIT_FAILED) -> int:
        """Report a fault on standard error, and end this rank and all others."""
        number, what = fault
        host, clients, round = socket.gethostname(), "", heartbeat.read(self.board).round
        if self.peers is not None:
            peer = self.peers.peers[number]
            host, clients = peer.host, f" ({peer.clients})" if peer.clients else ""
            # Ranks are never more than a round apart, and a lost one may have said nothing of it.
            round = max(round, peer.round)
            if round < 0:  # nor does a rank without clients
                round = max(known.round for known in self.peers.peers)
        when = f"round {round}" if round >= 0 else "before the first round"
        with contextlib.suppress(OSError):  # whoever read it may have gone with the launcher
            complain("mpifed", f"rank {number} on {host}{clients}: {when}: {what}")
        if self.peers is not None:
            self.peers.end(number)
        self._end_rank()
        if self.peers is None and self.launch.size > 1 and not self._send_exit_code(code):
            end_job()
        return code

    def _send_exit_code(self, code: int) -> bool:
        """Whether all ranks have received ``code`` by ``rendezvous``."""
        return self._meeting is not None and send_exit_code(self._meeting, self.launch, code)

    def _end_rank(self) -> None:
        """Kill the rank and remove the shared memory that MPI can no longer remove itself."""
        segments = {*self._segments, *self._mapped_segments()}
        self._process.send(signal.SIGKILL)
        remove_segments(segments)

    def _mapped_segments(self) -> tuple[str, ...]:
        return segments_of(self._process.pid) if self._process.pid is not None else ()

    def _rest(self) -> None:
        """Wait, but return early on a message, or when the rank or the launcher ends."""
        shown = self._process.sources()
        often = self.starting is not None or not shown  # what shows nothing can only be looked at
        heard = [*([] if self.announced else [self.reading]), *shown]
        heard += filter(None, [self._launcher_end])
        heard += [made.fileno() for made in (self.listening, self._meeting) if made]
        with contextlib.suppress(OSError):
            select.select(heard, [], [], TICK if often else self._tick)
