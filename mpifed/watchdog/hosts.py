"""Supervisors of several hosts: each keeps a TCP connection to the one of rank 0."""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import json
import secrets
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mpifed.watchdog.launcher import Launch

# Seconds between two messages of a supervisor, and without any until its host counts as lost.
BEAT, SILENCE = 1.0, 20.0

# Seconds that all others wait longer for the host of rank 0 than that for them.
LATER = 3.0

# The question for the address of an interface, in netdevice(7).
SIOCGIFADDR = 0x8915

# Seconds that a connection may take to be made.
CONNECTING = 3.0


@dataclass
class Host:
    """Another host, by its first rank that still runs."""

    rank: int
    name: str
    clients: str
    round: int
    silent: float = 0.0


def _own_address() -> str:
    """Return the address of this host's name; where that is none of a network, an interface's."""
    with contextlib.suppress(OSError):
        address = socket.gethostbyname(socket.gethostname())
        if not address.startswith("127."):
            return address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                found = fcntl.ioctl(any_socket, SIOCGIFADDR, struct.pack("256s", name.encode()))
                address = socket.inet_ntoa(found[20:24])
                if not address.startswith("127."):
                    return address
    return ""  # all of this host


class Hosts:
    """The supervisors that this one is connected to; none where one has all ranks of the job."""

    def __init__(self, launch: Launch) -> None:
        self._launch, self._key = launch, ""
        self._listening: socket.socket | None = None
        self._links: dict[socket.socket, Host | None] = {}
        self._received: dict[socket.socket, bytes] = {}
        self._since, self._patience, self.ended = BEAT, SILENCE, False

    def listen(self, register: Callable[[Any, Callable[[Any], object]], None]) -> str:
        """Listen as the supervisor of rank 0; return where, with the key of the job."""
        if self._launch.size == 1:
            return ""
        self._key = secrets.token_hex(16)
        host = "127.0.0.1" if self._launch.on_one_host else _own_address()
        with contextlib.suppress(OSError):
            self._listening = socket.create_server((host, 0), backlog=socket.SOMAXCONN)
            self._listening.setblocking(False)
            register(self._listening, self._admit)
            return json.dumps([host, self._listening.getsockname()[1], self._key])
        return ""

    def _admit(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            self._add(listening.accept()[0])

    def _add(self, link: socket.socket) -> None:
        link.setblocking(False)
        self._links[link], self._received[link] = None, b""

    def look(self, own: Host, leader: str, passed: float) -> None:
        """Send and receive; ``leader`` is where rank 0's supervisor listens, once it is known."""
        if leader and not self._key:
            self._patience = SILENCE + LATER
            host, port, self._key = json.loads(leader)
            with contextlib.suppress(OSError):
                self._add(socket.create_connection((host, port), CONNECTING))
        self._since += passed
        if self._since >= BEAT:
            self._since = 0.0
            self._send(rank=own.rank, name=own.name, clients=own.clients, round=own.round)
        for link, host in list(self._links.items()):
            if host is not None:
                host.silent += passed
            self._receive(link)

    def _send(self, **message: Any) -> None:
        data = json.dumps({"key": self._key, **message}).encode() + b"\n"
        for link in self._links:
            with contextlib.suppress(OSError):
                link.send(data)

    def _receive(self, link: socket.socket) -> None:
        try:
            data = link.recv(1 << 14)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, rest = (self._received[link] + data).split(b"\n")
        self._received[link] = rest
        known = all(self._understand(link, line) for line in lines if line)
        # A host without a connection stays, silent, unless it has taken leave.
        if not known or len(rest) > 1 << 14 or (not data and self._links[link] is None):
            link.close()
            del self._links[link], self._received[link]

    def _understand(self, link: socket.socket, line: bytes) -> bool:
        """Take a message in; returns whether it is of this job."""
        try:
            message = json.loads(line)
            if not hmac.compare_digest(message.pop("key"), self._key):
                return False
            self.ended = self.ended or bool(message.pop("end", False))
            self._links[link] = Host(**message) if message else None
        except (ValueError, TypeError, KeyError, AttributeError):
            return False
        return True

    def lost(self) -> list[Host]:
        """Return the hosts that have been silent for too long."""
        hosts = [host for host in self._links.values() if host is not None]
        return [host for host in hosts if host.silent > self._patience]

    def end(self) -> None:
        """End the ranks of all other hosts."""
        self._send(end=True)

    def leave(self) -> None:
        """Take leave: the ranks of this host have ended in order."""
        self._send()

    def close(self) -> None:
        """Close the connections."""
        for opened in (*self._links, *filter(None, [self._listening])):
            opened.close()
