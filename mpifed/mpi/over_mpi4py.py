"""The operations of ``mpifed.mpi.protocol`` over mpi4py, which no other module imports."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import pickle
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from mpi4py import MPI

from mpifed.command import usable_cores
from mpifed.errors import InputError
from mpifed.mpi.protocol import Communicator
from mpifed.mpi.reused import Reused
from mpifed.watchdog import heartbeat
from mpifed.watchdog.launcher import launched
from mpifed.watchdog.meeting import ROOM, Meeting

# Arrays of what arrived whose memory is used again.
FREE_BLOCKS = 4

# Bytes in one MPI message at most.
PIECE = 1 << 28

# Seconds after which a rank that waits in no operation of MPI calls it nevertheless.
PROGRESS = 1.0

# Bytes of an object that are sent with its size.
HEAD = 1 << 10

# Bytes of a row from which it is sent from where it is.
WIDE = 1 << 15

# Seconds between two looks for a message where ranks share cores: one that spins takes the core
# from another.
SHORTEST_PAUSE, LONGEST_PAUSE = 1e-4, 3e-3

# Each pause beside the one before: a message is found late by a fifth of the wait, where doubled
# pauses made short rounds of many messages take twice the time.
GROWTH = 1.2

# From how many bytes, and for how many seconds, such a rank looks without pauses.
LARGE, BUSY = 1 << 16, 5e-2


class Mpi(Communicator):
    """Ranks of the job, over mpi4py; see ``Communicator`` for the operations."""

    def __init__(self, second_thread: bool = False, comm: Any = None) -> None:
        """Create the operations on the ranks of the job, or of a caller's ``comm``."""
        self._mpi, self._callers_comm = MPI, comm
        comms = _comms() if comm is None else comms_of(comm)
        self._comm, self._aside = (comms.other if second_thread else comms.comm), comms.aside
        self._local, self._nodes = comms.local, comms.nodes
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()
        self.bytes_sent, self._second_thread, self._reused = 0, second_thread, Reused(FREE_BLOCKS)
        launch, ranks_on_node = launched(), self._local.Get_size()
        if launch is not None:  # whose other ranks on this node may be busy beside these
            ranks_on_node = max(ranks_on_node, launch.local_size or 0)
        self._sleeps = second_thread or ranks_on_node > comms.cores
        meets = self._sleeps and not second_thread
        self._meeting = comms.meeting if meets else None
        self.room = 0 if self._meeting is None else ROOM

    @property
    def mpi4py(self) -> Any:
        return self._comm

    def for_second_thread(self) -> Mpi | None:
        if self._mpi.Query_thread() < self._mpi.THREAD_MULTIPLE:
            return None
        return Mpi(second_thread=True, comm=self._callers_comm)

    def all_agree(self, mine: bool, patience: float) -> bool | None:
        if self._meeting is not None:
            # Aside, as below: ranks that know of no failure may be at another operation.
            limit = math.inf if mine else patience
            answers = self._met(self._meeting.aside, self.rank, np.array([mine]), limit)
            return None if answers is None else bool(answers[: self.size].all())
        answer = np.zeros(1, np.int64)
        request = self._aside.Iallreduce(np.array([mine], np.int64), answer, self._mpi.MIN)
        if mine:
            self._wait(request)
            return bool(answer[0])
        deadline = time.monotonic() + patience
        while not request.Test():
            if time.monotonic() > deadline:
                return None
            time.sleep(SHORTEST_PAUSE)
        return False

    def _left(self, start: int, values: np.ndarray) -> np.ndarray:
        """Leave ``values`` from byte ``start`` on in the memory that all ranks share; return its
        bytes once all have done so, which stay until they do so again.
        """
        left = self._met(self._meeting, start, values, math.inf)
        assert left is not None
        return left

    def _met(
        self, meeting: Meeting | None, start: int, values: np.ndarray, patience: float
    ) -> np.ndarray | None:
        """``_left``, or None where ``patience`` seconds pass before."""
        deadline = time.monotonic() + patience
        assert meeting is not None
        with heartbeat.waiting():
            meeting.turn()
            area = np.frombuffer(meeting.area, np.uint8)
            area[start : start + values.nbytes] = values.reshape(-1).view(np.uint8)
            meeting.arrive()
            while not meeting.is_over(min(patience, PROGRESS)):
                if time.monotonic() > deadline:
                    return None
                self._comm.Iprobe()  # so that MPI moves on what it has taken of this rank
        self.bytes_sent += values.nbytes
        return area

    def _wait(self, *requests: Any, nbytes: int = 0) -> None:
        """Wait until all ``requests``, which move so many bytes, are complete."""
        with contextlib.nullcontext() if self._second_thread else heartbeat.waiting():
            if not self._sleeps:
                self._mpi.Request.Waitall(list(requests))
                return
            busy = BUSY if nbytes >= LARGE and not self._second_thread else 0.0
            pending, left, pause = list(requests), len(requests), SHORTEST_PAUSE
            until = time.monotonic() + busy
            while left:
                arrived = len(self._mpi.Request.Testsome(pending) or ())
                left -= arrived
                if arrived:  # MPI takes few messages at a time, and there may be more
                    pause = SHORTEST_PAUSE
                elif busy and time.monotonic() < until:
                    os.sched_yield()
                else:
                    time.sleep(pause)
                    pause = min(GROWTH * pause, LONGEST_PAUSE)

    def max(self, values: np.ndarray) -> np.ndarray:
        return self._reduce(values, np.maximum, self._mpi.MAX)

    def sum(self, values: np.ndarray) -> np.ndarray:
        if values.dtype != np.int64:
            raise TypeError(f"only int64 sums are exact in any order, not {values.dtype}")
        return self._reduce(values, np.add, self._mpi.SUM)

    def _reduce(self, values: np.ndarray, function: np.ufunc, operation: Any) -> np.ndarray:
        source = np.ascontiguousarray(values)
        if (nbytes := source.nbytes * self.size) <= self.room:
            left = self._left(self.rank * source.nbytes, source)[:nbytes].view(source.dtype)
            return np.asarray(function.reduce(left.reshape(self.size, *source.shape)))
        result = np.empty_like(source)
        self._wait(self._comm.Iallreduce(source, result, operation))
        self.bytes_sent += source.nbytes
        return result

    def nodes(self) -> np.ndarray:
        return self._nodes

    def broadcast(self, values: np.ndarray | None, root: int = 0) -> np.ndarray:
        form = (values.shape, values.dtype.str) if values is not None else None
        shape, dtype = self.broadcast_object(form, root)
        if self.rank == root:
            assert values is not None
            result = np.ascontiguousarray(values)
            self.bytes_sent += result.nbytes * (self.size > 1)
        else:
            result = np.empty(shape, dtype)
        for part in pieces(result.size, result.itemsize):
            self._wait(self._comm.Ibcast(result.reshape(-1)[part], root))
        return result.reshape(shape)

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        # Not ``bcast``, in which a rank spins until the others are there.
        is_root, head, tail = self.rank == root, np.empty(HEAD, np.uint8), np.empty(0, np.uint8)
        if is_root:
            head, tail = folded(value)
        if self.room:
            head = self._left(0, head if is_root else tail)[:HEAD].copy()
        else:
            self._wait(self._comm.Ibcast(head, root))
        if not is_root:
            tail = np.empty(left_of(head), np.uint8)
        for piece in pieces(len(tail), 1):
            self._wait(self._comm.Ibcast(tail[piece], root))
        return value if is_root else unfolded(head, tail)

    def gather_object(self, value: Any) -> list[Any] | None:
        # Along a tree of pairs, where ``gather`` has rank 0 receive a message from each.
        values, span = [value], 1
        while span < self.size:
            if self.rank & span:
                head, tail = folded(values)
                parts = [head, *(tail[piece] for piece in pieces(len(tail), 1))]
                self._wait(*(self._comm.Isend(part, self.rank - span) for part in parts))
                return None
            if self.rank + span < self.size:
                head = self.receive((HEAD,), np.uint8, self.rank + span)
                tail = self.receive((left_of(head),), np.uint8, self.rank + span)
                values += unfolded(head, tail)
            span *= 2
        return values

    def exchange_rows(
        self, rows: np.ndarray, send: Mapping[int, np.ndarray], receive: Mapping[int, int]
    ) -> np.ndarray:
        result = self._reused.empty((sum(receive.values()), rows.shape[1]), rows.dtype)
        pending, first = [], 0
        for peer in sorted(receive):
            block = result[first : first + receive[peer]]
            first += len(block)
            if peer == self.rank:
                np.take(rows, send[peer], axis=0, out=block, mode="clip")
            elif len(block):
                pending += [self._comm.Irecv(part, peer) for part in messages(block)]
        for peer in sorted(send, key=lambda peer: (peer - self.rank) % self.size):
            for part in messages(rows, send[peer]) if peer != self.rank and len(send[peer]) else ():
                pending.append(self._comm.Isend(part, peer))
                self.bytes_sent += part.nbytes
        self._wait(*pending, nbytes=result.nbytes)
        return result

    def gather_rows(self, rows: np.ndarray, counts: Sequence[int]) -> np.ndarray:
        result = self._reused.empty((sum(counts), rows.shape[1]), rows.dtype)
        if result.nbytes <= self.room:
            start = sum(counts[: self.rank]) * rows.shape[1] * rows.itemsize
            left = self._left(start, np.ascontiguousarray(rows))[: result.nbytes]
            result[:] = left.view(rows.dtype).reshape(result.shape)
            return result
        for part in pieces(rows.shape[1], max(1, sum(counts)) * rows.itemsize):
            sent, block = np.ascontiguousarray(rows[:, part]), np.ascontiguousarray(result[:, part])
            wide, byte = sent.shape[1] * sent.itemsize, self._mpi.BYTE
            target = [block, [count * wide for count in counts], None, byte]
            self._wait(self._comm.Iallgatherv([sent, byte], target), nbytes=block.nbytes)
            if block.base is not result:
                result[:, part] = block
        self.bytes_sent += rows.nbytes * (self.size - 1)
        return result

    def send(self, values: np.ndarray, to: int) -> None:
        flat = np.ascontiguousarray(values).reshape(-1)
        for part in pieces(flat.size, flat.itemsize):
            self._wait(self._comm.Isend(flat[part], to))
        self.bytes_sent += flat.nbytes

    def receive(self, shape: tuple[int, ...], dtype: Any, source: int) -> np.ndarray:
        result = np.empty(shape, dtype)
        for part in pieces(result.size, result.itemsize):
            self._wait(self._comm.Irecv(result.reshape(-1)[part], source))
        return result

    def barrier(self) -> None:
        if self.room:
            self._left(0, np.empty(0, np.uint8))
        else:
            self._wait(self._comm.Ibarrier())

    def local_rank(self) -> int:
        return int(self._local.Get_rank())

    def abort(self, code: int) -> None:
        self._mpi.COMM_WORLD.Abort(code)


def folded(value: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return an object as ``HEAD`` bytes that begin with its size, and what is left of it."""
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    sized = bytearray(len(data).to_bytes(8, "little") + data).ljust(HEAD, b"\0")
    flat = np.frombuffer(sized, np.uint8)
    return flat[:HEAD], flat[HEAD:]


def left_of(head: np.ndarray) -> int:
    """Return how many bytes of an object come after its first ``HEAD``."""
    return max(0, 8 + int.from_bytes(head[:8].tobytes(), "little") - HEAD)


def unfolded(head: np.ndarray, tail: np.ndarray) -> Any:
    """Return the object that ``folded`` was given."""
    return pickle.loads(np.concatenate([head[8:], tail]).tobytes())


def messages(rows: np.ndarray, chosen: np.ndarray | None = None) -> list[np.ndarray]:
    """Return some rows as what goes into messages: wide ones by themselves, without a copy."""
    indices = range(len(rows)) if chosen is None else chosen.tolist()
    if rows.shape[1] * rows.itemsize >= WIDE:
        flat = [rows[index] for index in indices]
    else:
        flat = [(rows if chosen is None else rows[chosen]).reshape(-1)]
    return [row[part] for row in flat for part in pieces(row.size, row.itemsize)]


def pieces(size: int, itemsize: int) -> list[slice]:
    """Return consecutive parts of ``size`` items, each of at most ``PIECE`` bytes."""
    step = max(1, PIECE // itemsize)
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]


def world_size() -> int:
    """Return the number of ranks in the job."""
    return int(MPI.COMM_WORLD.Get_size())


class _Comms(NamedTuple):
    """The ranks; duplicates of them, whose messages do not mix; those on this node; its cores;
    the node of each rank, numbered by their first ranks; and where all meet, if they do.
    """

    comm: Any
    aside: Any
    other: Any
    local: Any
    cores: int
    nodes: np.ndarray
    meeting: Meeting | None


@functools.cache
def _comms() -> _Comms:
    """The communicators of the job's ranks, which are created once per process."""
    return _duplicates_of(MPI.COMM_WORLD)


def _duplicates_of(comm: Any) -> _Comms:
    local = comm.Split_type(MPI.COMM_TYPE_SHARED)
    cores = set().union(*local.allgather(os.sched_getaffinity(0)))  # each rank may be bound to one
    firsts = comm.allgather(local.bcast(comm.Get_rank()))
    nodes = np.unique(firsts, return_inverse=True)[1]
    meeting = heartbeat.meeting() if comm is MPI.COMM_WORLD else None
    key = meeting.key if meeting is not None and meeting.ranks == comm.Get_size() else b""
    if {*comm.allgather(key)} != {key} or not key:
        meeting = None
    return _Comms(comm, comm.Dup(), comm.Dup(), local, usable_cores(cores), nodes, meeting)


@functools.cache
def _key() -> int:
    """Under which a caller's communicator keeps those made of it, which are freed with it."""

    def free(comm: Any, key: int, comms: _Comms) -> None:
        for one in (comms.comm, comms.aside, comms.other, comms.local):
            one.Free()

    return int(MPI.Comm.Create_keyval(delete_fn=free))


def comms_of(comm: Any) -> _Comms:
    """Return the communicators of a caller's ranks: duplicates, whose messages do not mix with
    the caller's. Collective the first time.
    """
    if not isinstance(comm, MPI.Intracomm) or not comm:
        raise InputError(f"comm is {comm!r}; it must be an intracommunicator of mpi4py")
    comms = comm.Get_attr(_key())
    if comms is None:
        comms = _duplicates_of(comm.Dup())
        comm.Set_attr(_key(), comms)
    return cast(_Comms, comms)
