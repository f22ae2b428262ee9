"""Guards of one job that know each other, and the datagrams between them.

The guard of rank 0 hears from every other once in some seconds and answers; a guard that notices an
end which was not announced notifies all others, so that the job ends even where the launcher does
not end it. A rank may crash because one that it communicates with has died; of ranks that die, the
guard of the first reports. Datagrams are signed with a key that only this job knows; all others
are ignored. Only a guard that was heard before can be missed: where hosts cannot reach each
other, every rank still has its guard.
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
from typing import Any

BEAT = 1.0
"""Seconds between two signs of life of a guard in a small job; see :func:`pause_between_beats`."""

SILENCE = 20.0
"""Seconds without a sign of life after which a rank is taken for lost."""

HEARD = 20.0
"""Signs of life a second that wake the guard of rank 0, as long as one gives four in SILENCE."""

TURN, LONGEST_TURN = 0.2, 10.0
"""Seconds by which each rank waits longer for rank 0 than the rank before it, and at most."""

MOST = 1000
"""Datagrams read per turn, so that a flood of them cannot occupy a guard."""

ALIVE, ANSWER, LEAVING, END, DIED = range(5)
_FORM = struct.Struct("=BIqQ")
_SIGNATURE = 16


def pause_between_beats(size: int) -> float:
    """Return the seconds between two signs of life of a guard in a job of ``size`` ranks.

    Examples
    --------
    >>> [pause_between_beats(size) for size in (4, 60, 10_000)]
    [1.0, 3.0, 5.0]
    """
    return max(BEAT, min(SILENCE / 4, size / HEARD))


def listen(on_one_host: bool) -> socket.socket | None:
    """Open the UDP socket of a guard.

    Parameters
    ----------
    on_one_host : bool
        Whether all ranks are on this host; the socket then accepts no datagrams from others.

    Returns
    -------
    socket.socket or None
        None if the system has no socket to give.
    """
    try:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.bind(("127.0.0.1" if on_one_host else "", 0))
        made.setblocking(False)
        return made
    except OSError:
        return None


class Peer:
    """What a guard knows of a rank.

    Attributes
    ----------
    host : str
        Name of its host.
    port : int or None
        UDP port of its guard.
    guard : int
        Process id of its guard.
    clients : str
        The clients that it hosts, in words.
    address : str or None
        Internet address of its host, if the name resolves.
    heard : bool
        Whether anything was heard from its guard.
    gone : bool
        Whether it has ended in order.
    silent : float
        Seconds since its guard was last heard.
    round : int
        Its last known round, -1 before training.
    """

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
    """The other guards of a job, as seen by the guard of ``rank``.

    Attributes
    ----------
    rank : int
        The rank that this guard watches.
    key : bytes
        The key with which datagrams are signed.
    peers : list of Peer
        All ranks in order, this one included.
    listening : socket.socket
        The socket for datagrams.
    ended : bool
        Whether another guard has ended the job.
    deaths : dict of int to int
        When ranks died unannounced, in nanoseconds since the epoch.
    """

    def __init__(self, rank: int, key: bytes, peers: list[Peer], listening: socket.socket) -> None:
        self.rank, self.key, self.peers, self.listening = rank, key, peers, listening
        self.ended = False
        self.deaths: dict[int, int] = {}
        self._sent, self._since = 0, SILENCE
        self._latest: dict[int, int] = {}

    @classmethod
    def of(cls, message: dict[str, Any], listening: socket.socket) -> Peers:
        """Create the peers from the message in which a rank names them.

        Parameters
        ----------
        message : dict
            ``rank``; ``key``, in hexadecimal; and ``peers``, the (host, port, guard) of every rank.
        listening : socket.socket
            The socket of this guard.

        Returns
        -------
        Peers
            The guards of the job.
        """
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
        """Send and receive datagrams.

        Parameters
        ----------
        seconds : float
            Seconds that have passed since the last call.
        round : int
            The round of this rank.

        Returns
        -------
        int or None
            A rank that was not heard for ``SILENCE`` seconds or more, if there is one.
        """
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
