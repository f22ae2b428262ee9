"""The operations of ``mpifed.mpi.protocol`` over mpi4py, which no other module imports."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from mpifed.mpi.arriving import Arriving
from mpifed.mpi.node import NodeSums
from mpifed.mpi.pieces import chosen_rows, in_place, pieces
from mpifed.mpi.polling import BUSY, LARGE, LONGEST_PAUSE, PATIENT_PAUSE, SHORTEST_PAUSE, poll
from mpifed.mpi.protocol import Communicator
from mpifed.mpi.star import Star, star_among
from mpifed.mpi.sums import Sums
from mpifed.watchdog import heartbeat

# The tag of what ``tell`` sends.
_TOLD = 1


class Mpi(Communicator):
    """Ranks of the job, over mpi4py; see ``Communicator`` for the operations."""

    def __init__(self, numbers: tuple[int, ...], beside: bool = False) -> None:
        """Create the operations on some ranks of the job."""
        self._mpi, own = MPI, _comms_of(numbers)
        self._comm, self._aside = (own.other if beside else own.comm), own.aside
        self._local, self.numbers, self.job_size = own.local, numbers, world_size()
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()
        self.bytes_sent, self._arriving = 0, Arriving()
        self._beside = beside
        self._star: Star | None = None
        self._sleeps = beside or self._local.Get_size() > (os.cpu_count() or 1)
        self.set_polling(False)

    @classmethod
    def world(cls) -> Mpi:
        """Return the communicator over all ranks of the job."""
        return cls._with_star(tuple(range(world_size())))

    @classmethod
    def _with_star(cls, numbers: tuple[int, ...]) -> Mpi:
        made = cls(numbers)
        if made._sleeps and made._local.Get_size() == made.size:
            made._star = _star_of(numbers)
        return made

    def among(self, ranks: Sequence[int]) -> Communicator | None:
        if self.rank not in ranks:
            return None
        return self._with_star(tuple(self.numbers[rank] for rank in ranks))

    def tell(self, message: Any, to: int) -> None:
        self._aside.send(message, to, _TOLD)

    def told(self) -> Any:
        return self._aside.recv(tag=_TOLD) if self._aside.iprobe(tag=_TOLD) else None

    @property
    def mpi4py(self) -> Any:
        return self._comm

    def for_second_thread(self) -> Mpi | None:
        if self._mpi.Query_thread() < self._mpi.THREAD_MULTIPLE:
            return None
        return Mpi(self.numbers, beside=True)

    def set_polling(self, often: bool) -> None:
        self._longest_pause = LONGEST_PAUSE if often or not self._beside else PATIENT_PAUSE

    def all_agree(self, mine: bool, patience: float) -> bool | None:
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

    def _wait(self, *requests: Any, nbytes: int = 0) -> None:
        """Wait until all ``requests``, which move so many bytes, are complete."""
        with contextlib.nullcontext() if self._beside else heartbeat.waiting():
            if not self._sleeps:
                self._mpi.Request.Waitall(list(requests))
                return
            busy = BUSY if nbytes >= LARGE and not self._beside else 0.0
            poll(partial(self._mpi.Request.Testall, list(requests)), busy, self._longest_pause)

    def max(self, values: np.ndarray) -> np.ndarray:
        return self._reduce(values, self._mpi.MAX, np.maximum)

    def sum(self, values: np.ndarray) -> np.ndarray:
        if values.dtype != np.int64:
            raise TypeError(f"only int64 sums are exact in any order, not {values.dtype}")
        return self._reduce(values, self._mpi.SUM, np.add)

    def begin_total(self, values: np.ndarray) -> Callable[[], np.ndarray]:
        if values.dtype != np.int64 or not values.flags.c_contiguous:
            total = self.sum(values)
            return lambda: total
        flat = values.reshape(-1)
        answer = self._answer(flat, np.add)
        if answer is not None:
            flat[:] = answer
        requests = [
            self._comm.Iallreduce(self._mpi.IN_PLACE, flat[part], self._mpi.SUM)
            for part in (pieces(flat.size, flat.itemsize) if answer is None else ())
        ]
        self.bytes_sent += values.nbytes
        return self._ended(requests, values)

    def nodes(self) -> np.ndarray:
        first = self._local.bcast(self.rank)
        every = self.broadcast_object(self.gather_object(first))
        return np.unique(every, return_inverse=True)[1]

    def node_sums(self, nodes: np.ndarray) -> Sums:
        made = _sums_over(self.numbers, tuple(int(node) for node in nodes))
        made.wait, made.sent = partial(self._wait, nbytes=LARGE), self._count
        return made

    def _count(self, sent: int) -> None:
        self.bytes_sent += sent

    def _answer(self, values: np.ndarray, operation: np.ufunc) -> np.ndarray | None:
        """Reduce few numbers over sockets; None where that is left to MPI."""
        if self._star is None or not self._star.carries(values):
            return None
        with heartbeat.waiting():
            return self._star.reduce(values, operation)

    def _reduce(self, values: np.ndarray, operation: Any, exact: np.ufunc) -> np.ndarray:
        source = np.ascontiguousarray(values)
        result = self._answer(source, exact)
        if result is None:
            result = np.empty_like(source)
            for part in pieces(source.size, source.itemsize):
                flat = (source.reshape(-1)[part], result.reshape(-1)[part])
                self._wait(self._comm.Iallreduce(*flat, operation))
        self.bytes_sent += source.nbytes
        return result

    def broadcast(self, values: np.ndarray | None, root: int = 0) -> np.ndarray:
        about = (values.shape, values.dtype.str) if values is not None else None
        shape, dtype = self.broadcast_object(about, root)
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
        self.barrier()
        return self._comm.bcast(value, root)

    def gather_object(self, value: Any, root: int = 0) -> list[Any] | None:
        self.barrier()
        return self._comm.gather(value, root)

    def begin_exchange(
        self, rows: np.ndarray, send: Sequence[np.ndarray], receive: Sequence[int]
    ) -> Callable[[], np.ndarray]:
        width = rows.shape[1]
        result = self._arriving.empty((sum(receive), width), rows.dtype)
        starts = np.concatenate([[0], np.cumsum(receive)]).astype(int)
        result[starts[self.rank] : starts[self.rank + 1]] = rows[send[self.rank]]
        pending = []
        for peer in range(self.size):
            block = result[starts[peer] : starts[peer + 1]]
            if peer != self.rank:
                for part in pieces(block.size, block.itemsize):
                    pending.append(self._comm.Irecv(block.reshape(-1)[part], peer))
        for step in range(1, self.size):
            peer = (self.rank + step) % self.size
            pending += self._begin_send(rows, send[peer], peer)
        return self._ended(pending, result, sent=rows)

    def _begin_send(self, rows: np.ndarray, chosen: np.ndarray, peer: int) -> list[Any]:
        """Begin to send some rows to one rank."""
        wide = rows.shape[1] * rows.itemsize
        self.bytes_sent += len(chosen) * wide
        if len(chosen) and in_place(wide, len(chosen) * wide):
            with _type_of(rows, chosen) as kind:
                return [self._comm.Isend([_memory_of(rows), 1, kind], peer)]
        block = chosen_rows(rows, chosen)
        parts = pieces(block.size, block.itemsize)
        return [self._comm.Isend(block.reshape(-1)[part], peer) for part in parts]

    def begin_gather(self, rows: np.ndarray, counts: Sequence[int]) -> Callable[[], np.ndarray]:
        width, begin = rows.shape[1], sum(counts[: self.rank])
        result = np.empty((sum(counts), width), rows.dtype)
        pending, blocks = [], []
        for part in pieces(width, max(1, sum(counts)) * rows.itemsize):
            blocks.append((part, block := _block_of(result, part)))
            block[begin : begin + len(rows)] = rows[:, part]
            wide = block.shape[1] * block.itemsize
            target = [block, [count * wide for count in counts], None, self._mpi.BYTE]
            pending.append(self._comm.Iallgatherv(self._mpi.IN_PLACE, target))
        self.bytes_sent += rows.nbytes * (self.size - 1)
        return self._ended(pending, result, blocks)

    def _ended(
        self,
        pending: Sequence[Any],
        result: np.ndarray,
        blocks: Sequence[tuple[slice, np.ndarray]] = (),
        sent: np.ndarray | None = None,
    ) -> Callable[[], np.ndarray]:
        """Return what waits, puts columns that arrived by themselves in place, and returns."""

        def ended(sent: np.ndarray | None = sent) -> np.ndarray:
            if pending:
                self._wait(*pending, nbytes=result.nbytes)
            for part, block in blocks:
                if block is not result:
                    result[:, part] = block
            return result

        return ended

    def neighbourhood(self, sources: Sequence[int], destinations: Sequence[int]) -> Any:
        return self._comm.Create_dist_graph_adjacent(list(sources), list(destinations))

    def begin_exchange_in(
        self,
        neighbourhood: Any,
        rows: np.ndarray,
        send: Sequence[np.ndarray],
        receive: Sequence[int],
        most: int,
    ) -> Callable[[], np.ndarray]:
        width = rows.shape[1]
        sources, destinations, _ = neighbourhood.Get_dist_neighbors()
        chosen = np.concatenate([np.zeros(0, int), *(send[peer] for peer in destinations)])
        self.bytes_sent += len(chosen) * width * rows.itemsize
        result = self._arriving.empty((sum(receive), width), rows.dtype)
        wide, byte = width * rows.itemsize, self._mpi.BYTE
        if in_place(wide, most * wide):
            counts = [receive[peer] * wide for peer in sources]
            places = np.cumsum([0, *counts[:-1]]).tolist()[: len(counts)]
            with ExitStack() as made:
                kinds = [made.enter_context(_type_of(rows, send[peer])) for peer in destinations]
                ones, zeros = [1] * len(kinds), [0] * len(kinds)
                going = [_memory_of(rows), ones, zeros, kinds]
                coming = [result, counts, places, [byte] * len(counts)]
                begun = neighbourhood.Ineighbor_alltoallw(going, coming)
            return self._ended([begun], result, sent=rows)
        pending, blocks = [], []
        for part in pieces(width, max(1, most) * rows.itemsize):
            leaving = chosen_rows(rows[:, part], chosen)
            blocks.append((part, block := _block_of(result, part)))
            wide = block.shape[1] * block.itemsize
            going = [leaving, [len(send[peer]) * wide for peer in destinations], None, byte]
            coming = [block, [receive[peer] * wide for peer in sources], None, byte]
            pending.append(neighbourhood.Ineighbor_alltoallv(going, coming))
        return self._ended(pending, result, blocks)

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
        self._wait(self._comm.Ibarrier())

    def local_rank(self) -> int:
        return int(self._local.Get_rank())

    def local_size(self) -> int:
        return int(self._local.Get_size())

    def abort(self, code: int) -> None:
        self._mpi.COMM_WORLD.Abort(code)


def _memory_of(rows: np.ndarray) -> Any:
    """The memory from the first to the last number of rows that need not follow each other."""
    if not len(rows):
        return bytearray()
    nbytes = (len(rows) - 1) * rows.strides[0] + rows.shape[1] * rows.itemsize
    return MPI.memory.fromaddress(rows.ctypes.data, nbytes)


@contextlib.contextmanager
def _type_of(rows: np.ndarray, chosen: np.ndarray) -> Iterator[Any]:
    """MPI's type for some rows within the memory of all; what has begun with it may end later."""
    wide = rows.shape[1] * rows.itemsize
    made = MPI.BYTE.Create_hindexed([wide] * len(chosen), (chosen * rows.strides[0]).tolist())
    made.Commit()
    yield made
    made.Free()


def _block_of(result: np.ndarray, part: slice) -> np.ndarray:
    """Memory for some columns of ``result`` in one piece: itself for all of them."""
    if part.stop - part.start == result.shape[1]:
        return result
    return np.empty_like(result, shape=result[:, part].shape)


def world_size() -> int:
    """Return the number of ranks in the job."""
    return int(MPI.COMM_WORLD.Get_size())


class _Comms(NamedTuple):
    """The ranks; duplicates of them, whose messages do not mix; and those of them on this node."""

    comm: Any
    aside: Any
    other: Any
    local: Any


@functools.cache
def _comms_of(numbers: tuple[int, ...]) -> _Comms:
    """The communicators of these ranks of the job, which are created once per process."""
    comm = MPI.COMM_WORLD
    if len(numbers) < comm.Get_size():
        comm = comm.Create_group(comm.Get_group().Incl(list(numbers)))
    return _Comms(comm, comm.Dup(), comm.Dup(), comm.Split_type(MPI.COMM_TYPE_SHARED))


@functools.cache
def _star_of(numbers: tuple[int, ...]) -> Star | None:
    """Connections between the ranks, which serve all runs of the process."""
    return star_among(Mpi(numbers), MPI.COMM_WORLD.Iprobe)


@functools.cache
def _sums_over(numbers: tuple[int, ...], nodes: tuple[int, ...]) -> NodeSums:
    """The sums over ranks of these nodes, whose memory serves all runs of the process."""
    comm = _comms_of(numbers).aside
    local = comm.Split(nodes[comm.Get_rank()], comm.Get_rank())
    leads = local.Get_rank() == 0
    leaders = comm.Split(0 if leads else MPI.UNDEFINED, comm.Get_rank())
    return NodeSums(MPI, local, leaders if leads else None, len({*nodes}) > 1)
