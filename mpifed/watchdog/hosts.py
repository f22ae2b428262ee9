"""Supervisors of several hosts: each keeps a TCP connection to the one of rank 0.

Each end of a connection begins with a challenge, 32 random bytes. All else are messages of one
size, each with an HMAC-SHA256 by the key of the job over the role of its sender, both challenges,
the number of the message and its content. So a first message proves that its sender knows the key,
which itself is sent by MPI alone, and nothing can be repeated or sent back. Who connects is the
first to prove it: all that a stranger gets from rank 0's supervisor is a challenge.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import json
import secrets
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from mpifed.errors import one_line
from mpifed.watchdog.heartbeat import TEXTS
from mpifed.watchdog.launcher import Launch

# Seconds between two messages of a supervisor, and without any until its host counts as lost.
BEAT, SILENCE = 1.0, 20.0

# Seconds that all others wait longer for the host of rank 0 than that for them.
LATER = 3.0

# Seconds that whoever connects has for its first message.
PROVING = 1.0

# Connections without a first message, above one for each other rank. Of more a random one goes, so
# that whoever answers at the next look mostly stays where hundreds of strangers come in a second.
STRANGERS = 256

# The question for the address of an interface, in netdevice(7).
SIOCGIFADDR = 0x8915

# A message: what it says, the rank, its round, the names of its host and of its clients.
BEATS, ENDS, LEAVES = range(3)
MESSAGE = struct.Struct(f"!Bqq64s{TEXTS['clients']}s")
CHALLENGE = PROOF = 32
FRAME = MESSAGE.size + PROOF


@dataclass
class Host:
    """Another host, by its first rank that still runs."""

    rank: int
    name: str
    clients: str
    round: int
    silent: float = 0.0


class _Link:
    """A connection to another supervisor, or to a stranger before its first message."""

    def __init__(self, connection: socket.socket, key: bytes, leads: bool) -> None:
        connection.setblocking(False)
        self.connection, self._key, self._leads = connection, key, leads
        self.host: Host | None = None
        self.age, self.sent, self.read = 0.0, 0, 0
        self._challenge = self._unsent = secrets.token_bytes(CHALLENGE)
        self._answer = self._received = b""  # the challenge of the other end comes first

    def send(self, kind: int, host: Host) -> None:
        """Send a message, unless the other end may be a stranger or does not read."""
        answers = self._answer and (self.read or not self._leads)
        if answers and (len(self._unsent) <= CHALLENGE or kind == ENDS):
            texts = (text.encode(errors="replace") for text in (host.name, host.clients))
            content = MESSAGE.pack(kind, host.rank, host.round, *texts)
            self._unsent += content + self._proof(self._leads, self.sent, content)
            self.sent += 1
        if self._unsent:
            with contextlib.suppress(OSError):  # it is not connected yet, or no longer
                self._unsent = self._unsent[self.connection.send(self._unsent) :]

    def received(self) -> Iterator[tuple[int, Host]]:
        """Yield messages that have come; raises ``OSError`` where no more can come."""
        with contextlib.suppress(BlockingIOError):
            data = self.connection.recv(1 << 14)
            if not data:
                raise ConnectionResetError
            self._received += data
        if not self._answer and len(self._received) >= CHALLENGE:
            self._answer, self._received = self._received[:CHALLENGE], self._received[CHALLENGE:]
        while self._answer and len(self._received) >= FRAME:
            frame, self._received = self._received[:FRAME], self._received[FRAME:]
            content, proof = frame[: MESSAGE.size], frame[MESSAGE.size :]
            if not hmac.compare_digest(proof, self._proof(not self._leads, self.read, content)):
                raise ConnectionAbortedError
            self.read += 1
            kind, rank, round, *texts = MESSAGE.unpack(content)
            name, clients = (text.rstrip(b"\0").decode(errors="replace") for text in texts)
            yield kind, Host(rank, one_line(name), one_line(clients, TEXTS["clients"]), round)

    def _proof(self, by_leader: bool, number: int, content: bytes) -> bytes:
        """Return the HMAC of a message."""
        both = (self._challenge, self._answer) if self._leads else (self._answer, self._challenge)
        return hmac.digest(
            self._key, b"".join((struct.pack("!?Q", by_leader, number), *both, content)), "sha256"
        )


def _addresses() -> Iterator[str]:
    """Yield the address of this host's name, and those of its interfaces."""
    with contextlib.suppress(OSError):
        yield socket.gethostbyname(socket.gethostname())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(any_socket, SIOCGIFADDR, struct.pack("256s", name.encode()))
                yield socket.inet_ntoa(answer[20:24])


class Hosts:
    """The supervisors that this one is connected to; none where one has all ranks of the job."""

    def __init__(self, launch: Launch) -> None:
        self._launch, self._key = launch, b""
        self._listening: socket.socket | None = None
        self._leader: tuple[str, int] | None = None  # until it has answered
        self._links: list[_Link] = []
        self._since, self._patience, self.ended = BEAT, SILENCE, False

    def listen(self) -> str:
        """Listen as the supervisor of rank 0; return where, with the key of the job."""
        if self._launch.size == 1:
            return ""
        self._key = secrets.token_bytes(32)
        host = "127.0.0.1"
        if not self._launch.on_one_host:  # one of a network, without which no other host is reached
            host = next((each for each in _addresses() if not each.startswith("127.")), host)
        with contextlib.suppress(OSError):
            self._listening = socket.create_server((host, 0), backlog=socket.SOMAXCONN)
            self._listening.setblocking(False)
            return json.dumps([host, self._listening.getsockname()[1], self._key.hex()])
        return ""

    def look(self, this_host: Host, leader: str, passed: float) -> None:
        """Send and receive; ``leader`` is where rank 0's supervisor listens, once it is known."""
        if leader and not self._key:
            host, port, key = json.loads(leader)
            self._leader, self._key = (host, port), bytes.fromhex(key)
            self._patience = SILENCE + LATER
        self._since += passed
        beats = self._since >= BEAT
        if beats:
            self._since = 0.0
            if self._leader is not None and not self._links:
                self._links.append(_Link(socket.socket(), self._key, leads=False))
                self._links[0].connection.connect_ex(self._leader)  # which goes on meanwhile
        for link in list(self._links):
            link.age += passed
            if link.host is not None:
                link.host.silent += passed
            unproven = self._listening is not None and not link.read and link.age > PROVING
            if not self._receive(link) or unproven:
                self._drop(link)
        self._admit()
        for link in self._links:
            if beats or not link.sent:
                link.send(BEATS, this_host)

    def _admit(self) -> None:
        """Accept all that have come; of too many strangers random ones go."""
        if self._listening is None:
            return
        most = self._launch.size - 1 + STRANGERS
        strangers = [link for link in self._links if not link.read]
        with contextlib.suppress(OSError):
            for _ in range(socket.SOMAXCONN):
                strangers.append(_Link(self._listening.accept()[0], self._key, leads=True))
                self._links.append(strangers[-1])
                if len(self._links) > most:
                    self._drop(strangers.pop(secrets.randbelow(len(strangers))))

    def _receive(self, link: _Link) -> bool:
        """Receive messages; return whether the link is still of use."""
        try:
            for kind, host in link.received():
                self._leader = None
                self.ended = self.ended or kind == ENDS
                link.host = host if kind == BEATS else None
        except OSError:
            # A host without a connection stays, silent, unless it has taken leave.
            return link.host is not None
        return True

    def _drop(self, link: _Link) -> None:
        link.connection.close()
        self._links.remove(link)

    def lost(self) -> list[Host]:
        """Return the hosts that have been silent for too long."""
        hosts = [link.host for link in self._links if link.host is not None]
        return [host for host in hosts if host.silent > self._patience]

    def send(self, kind: int) -> None:
        """End the ranks of other hosts, or take leave: those of this host have ended in order."""
        for link in self._links:
            link.send(kind, Host(0, "", "", -1))

    def close(self) -> None:
        """Close the connections."""
        for link in self._links:
            link.connection.close()
        if self._listening is not None:
            self._listening.close()
