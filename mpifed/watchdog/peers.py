"""Guards of one job that know each other, and the datagrams between them."""

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
from typing import Any

# Seconds between two signs of life of a guard in a small job; see :func:`pause_between_beats`.
BEAT = 1.0

# Seconds without a sign of life after which a rank is taken for lost.
SILENCE = 20.0

# Signs of life a second that wake the guard of rank 0, as long as one gives four in SILENCE.
HEARD = 20.0

# Seconds by which each rank waits longer for rank 0 than the rank before it, and at most.
TURN, LONGEST_TURN = 0.2, 10.0

# Datagrams read per turn, so that a flood of them cannot occupy a guard.
MOST = 1000

ALIVE, ANSWER, LEAVING, END, DIED = range(5)
_FORM = struct.Struct("=BIqQ")
_SIGNATURE = 16


def pause_between_beats(size: int) -> float:
    """Return the seconds between two signs of life of a guard in a job of ``size`` ranks."""
    return max(BEAT, min(SILENCE / 4, size / HEARD))


def listen(on_one_host: bool) -> socket.socket | None:
    """Open the UDP socket of a guard."""
    try:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.bind(("127.0.0.1" if on_one_host else "", 0))
        made.setblocking(False)
        return made
    except OSError:
        return None


class Peer:
    """What a guard knows of a rank."""

    def __init__(
        self,
        host: str,
        port: int | None,
        guard: int,
        clients: str = "",
        address: str | None = None,
    ) -> None:
        self.host, self.port, self.guard = host, port, guard
        self.clients, self.address = clients, address
        self.heard = self.gone = False
        self.silent, self.round = 0.0, -1


class Peers:
    """The other guards of a job, as seen by the guard of ``rank``."""

    def __init__(self, rank: int, key: bytes, peers: list[Peer], listening: socket.socket) -> None:
        self.rank, self.key, self.peers, self.listening = rank, key, peers, listening
        self.ended = False
        self.deaths: dict[int, int] = {}
        self._sent, self._since = 0, SILENCE
        self._latest: dict[int, int] = {}

    @classmethod
    def of(cls, message: dict[str, Any], listening: socket.socket) -> Peers:
        """Create the peers from the message in which a rank names them."""
        peers = [Peer(*about) for about in message["peers"]]
        here = peers[message["rank"]].host
        addresses = {here: "127.0.0.1"}
        for host in {peer.host for peer in peers} - {here}:
            with contextlib.suppress(OSError):
                addresses[host] = socket.gethostbyname(host)
        for peer in peers:
            peer.address = addresses.get(peer.host)
        return cls(message["rank"], bytes.fromhex(message["key"]), peers, listening)

    @property
    def own(self) -> Peer:
        """The peer that is this rank."""
        return self.peers[self.rank]

    def tick(self, seconds: float, round: int) -> int | None:
        """Send and receive datagrams."""
        self._since += seconds
        if self._since >= pause_between_beats(len(self.peers)) and self.rank:
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
        """Notify the other guards that this rank ends in order."""
        self._tell(LEAVING, [0] if self.rank else range(1, len(self.peers)), -1)

    def announce_death(self) -> None:
        """Notify the other guards that this rank has just died unannounced."""
        self.deaths[self.rank] = time.time_ns()
        self._tell(DIED, range(len(self.peers)), self.deaths[self.rank])

    def another_died_first(self) -> bool:
        """Whether another rank is known to have died, and before this one if this one did."""
        return (
            bool(self.deaths)
            and min((when, rank) for rank, when in self.deaths.items())[1] != self.rank
        )

    def end(self, culprit: int) -> None:
        """Make all other guards end the job because of rank ``culprit``."""
        self._tell(END, range(len(self.peers)), culprit)
        self._remove(culprit)

    def _remove(self, culprit: int) -> None:
        """End a guard on this host that can no longer end itself: a launcher would wait for it."""
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
        elif kind == DIED:
            self.deaths[number] = round
        elif kind == END:
            self.ended = True
            # A rank that died on its own names itself, and its guard is at its own end.
            if 0 <= round < len(self.peers) and round != number:
                self._remove(round)
