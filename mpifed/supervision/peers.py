"""Guards of one job that know of each other, by datagrams of their own.

The guard of rank 0 hears from every other once a second and answers; whoever notices an end that
was not announced tells all others, so that the job ends even where the launcher does not see to it.
A rank may crash because one that it talked to is gone; of ranks that die, the guard of the first
reports.
Datagrams are signed with a key that only this job knows; whatever else arrives is ignored. Nobody
is missed who was not heard before: where hosts cannot reach each other, every rank still has its
own guard.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import signal
import socket
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

BEAT = 1.0
"""Seconds between two signs of life."""

SILENCE = 20.0
"""Seconds without one after which a rank is given up."""

TURN, LONGEST_TURN = 0.2, 10.0
"""Seconds by which each rank gives up rank 0 after the one before it, and at most."""

MOST = 1000
"""Datagrams read in a turn, so that nobody can keep a guard from its work."""

ALIVE, ANSWER, LEAVING, END, FALLEN = range(5)
_FORM = struct.Struct("=BIqQ")
_SIGNATURE = 16


def listen(on_one_host: bool) -> socket.socket | None:
    """A socket for a guard; None where the system has none to give.

    Where all ranks are on one host, other hosts cannot reach it.
    """
    try:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.bind(("127.0.0.1" if on_one_host else "", 0))
        made.setblocking(False)
        return made
    except OSError:
        return None


@dataclass
class Peer:
    """What a guard knows of a rank; ``guard`` is a process id, ``silent`` seconds."""

    host: str
    port: int | None
    guard: int
    clients: str = ""
    address: str | None = None
    heard: bool = False
    gone: bool = False
    silent: float = 0.0
    round: int = -1


@dataclass
class Peers:
    """The other guards, as the guard of ``rank`` sees them.

    ``fallen``: when ranks died without a word, in nanoseconds of the clock that hosts share.
    """

    rank: int
    key: bytes
    peers: list[Peer]
    listening: socket.socket
    ended: bool = False
    fallen: dict[int, int] = field(default_factory=dict)
    _sent: int = 0
    _latest: dict[int, int] = field(default_factory=dict)
    _since: float = BEAT

    @classmethod
    def of(cls, told: dict[str, Any], listening: socket.socket) -> Peers:
        """From what the rank told its guard."""
        peers = [Peer(*about) for about in told["peers"]]
        here = peers[told["rank"]].host
        addresses = {here: "127.0.0.1"}
        for host in {peer.host for peer in peers} - {here}:
            with contextlib.suppress(OSError):
                addresses[host] = socket.gethostbyname(host)
        for peer in peers:
            peer.address = addresses.get(peer.host)
        return cls(told["rank"], bytes.fromhex(told["key"]), peers, listening)

    @property
    def own(self) -> Peer:
        return self.peers[self.rank]

    def tick(self, seconds: float, round: int) -> int | None:
        """``seconds`` have passed; the rank is in ``round``. A rank that is lost, if one is."""
        self._since += seconds
        if self._since >= BEAT and self.rank:
            self._since = 0.0
            self._send(0, ALIVE, round)
        self._hear(round)
        for number, peer in enumerate(self.peers):
            if number == self.rank or not peer.heard or peer.gone:
                continue
            peer.silent += seconds
            patience = SILENCE + (0.0 if not self.rank else min(LONGEST_TURN, TURN * self.rank))
            if peer.silent > patience:
                return number
        return None

    def leave(self) -> None:
        """Says that this rank ends in order."""
        self._tell(LEAVING, [0] if self.rank else range(1, len(self.peers)), -1)

    def fall(self) -> None:
        """Says that this rank has just died without a word."""
        self.fallen[self.rank] = time.time_ns()
        self._tell(FALLEN, range(len(self.peers)), self.fallen[self.rank])

    def fell_later(self) -> bool:
        """Whether another rank is known to have died, and before this one if this one did."""
        return (
            bool(self.fallen)
            and min((when, rank) for rank, when in self.fallen.items())[1] != self.rank
        )

    def end(self, culprit: int) -> None:
        """Tells all others to end, because of rank ``culprit``."""
        self._tell(END, range(len(self.peers)), culprit)
        self._remove(culprit)

    def _remove(self, culprit: int) -> None:
        """Ends a guard on this host that no longer does so itself: a launcher would wait for it."""
        peer = self.peers[culprit]
        if culprit != self.rank and peer.host == self.own.host:
            with contextlib.suppress(OSError):
                os.kill(peer.guard, signal.SIGKILL)

    def _tell(self, kind: int, whom: Iterable[int], about: int) -> None:
        for _ in range(2):
            for number in whom:
                if number != self.rank:
                    self._send(number, kind, about)

    def _send(self, to: int, kind: int, round: int) -> None:
        peer = self.peers[to]
        if peer.address is None or peer.port is None:
            return
        self._sent += 1
        body = _FORM.pack(kind, self.rank, round, self._sent)
        with contextlib.suppress(OSError):
            self.listening.sendto(body + self._sign(body), (peer.address, peer.port))

    def _sign(self, body: bytes) -> bytes:
        return hashlib.blake2b(body, digest_size=_SIGNATURE, key=self.key).digest()

    def _hear(self, own_round: int) -> None:
        for _ in range(MOST):
            try:
                data = self.listening.recv(256)
            except OSError:
                return
            body = data[: _FORM.size]
            if not hmac.compare_digest(data[_FORM.size :], self._sign(body)):
                continue
            kind, number, round, sent = _FORM.unpack(body)
            # Neither twice nor late: what is old may have been recorded by somebody.
            if number >= len(self.peers) or sent <= self._latest.get(number, 0):
                continue
            self._latest[number] = sent
            self._heard(kind, number, round, own_round)

    def _heard(self, kind: int, number: int, round: int, own_round: int) -> None:
        peer = self.peers[number]
        peer.heard, peer.silent = True, 0.0
        if kind == ALIVE:
            peer.round = round
            self._send(number, ANSWER, own_round)
        elif kind == ANSWER:
            peer.round = round
        elif kind == LEAVING:
            peer.gone = True
        elif kind == FALLEN:
            self.fallen[number] = round
        elif kind == END:
            self.ended = True
            # A rank that died on its own names itself, and its guard is at its own end.
            if 0 <= round < len(self.peers) and round != number:
                self._remove(round)
