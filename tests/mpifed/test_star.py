"""Small reductions over sockets among ranks that share cores."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from mpifed.mpi import star
from mpifed.mpi.communicator import world
from mpifed.mpi.star import LONGEST, Star, star_among

RANKS = 4
VALUES = [np.array([[3, -(2**62), rank], [rank**3, -rank, 7]]) for rank in range(RANKS)]


@pytest.fixture
def rank_0() -> Iterator[Callable[..., Star]]:
    """Starts ranks 1, 2, ... in processes of their own, and returns the star as rank 0 has it."""
    started: list[int] = []

    def start(work: Callable[[Star, int], bool], progress: Callable[[], object] = int) -> Star:
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(RANKS - 1)]
        for rank, (_, own) in enumerate(pairs, start=1):
            process = os.fork()
            if not process:
                for end in (end for pair in pairs for end in pair if end is not own):
                    end.close()
                good = False
                try:
                    good = work(Star([own], False, progress), rank)
                finally:
                    os._exit(0 if good else 1)
            started.append(process)
        for _, there in pairs:
            there.close()
        return Star([here for here, _ in pairs], True, progress)

    yield start
    assert [os.waitpid(process, 0)[1] for process in started] == [0] * len(started)


@pytest.mark.parametrize("operation", [np.add, np.maximum])
def test_a_reduction_gives_every_rank_the_result(rank_0, operation):
    expected = operation.reduce(VALUES)

    def work(made: Star, rank: int) -> bool:
        answers = [made.reduce(VALUES[rank] + k, operation) for k in range(3)]
        more = RANKS if operation is np.add else 1
        return all(np.array_equal(one, expected + k * more) for k, one in enumerate(answers))

    made = rank_0(work)
    assert np.array_equal(made.reduce(VALUES[0], operation), expected)
    for k in (1, 2):
        made.reduce(VALUES[0] + k, operation)
    made.close()


def test_of_floating_point_numbers_the_largest_is_found(rank_0):
    def work(made: Star, rank: int) -> bool:
        answer = made.reduce(np.array([-np.inf, 0.1 * rank]), np.maximum)
        return answer.tolist() == [5.0, 0.1 * (RANKS - 1)]

    made = rank_0(work)
    assert made.reduce(np.array([5.0, -1.0]), np.maximum).tolist() == [5.0, 0.1 * (RANKS - 1)]
    made.close()


def test_a_rank_that_ends_is_noticed_by_all(rank_0):
    def work(made: Star, rank: int) -> bool:
        return rank == 2 or made.reduce(np.zeros(3), np.maximum) is None

    made = rank_0(work)
    assert made.reduce(np.zeros(3), np.maximum) is None
    assert made.reduce(np.zeros(3), np.maximum) is None


def test_an_interrupted_rank_leaves_all_others_to_mpi(rank_0, monkeypatch):
    monkeypatch.setattr(star, "LOOK", 0.01)

    reading, writing = os.pipe()

    def interrupt() -> None:
        os.write(writing, b".")
        raise KeyboardInterrupt

    def work(made: Star, rank: int) -> bool:
        if rank != 2:
            made.reduce(np.zeros(3), np.maximum)
            return made.reduce(np.zeros(3), np.maximum) is None
        made._progress = interrupt
        with pytest.raises(KeyboardInterrupt):
            made.reduce(np.zeros(3), np.maximum)
        return made.reduce(np.zeros(3), np.maximum) is None

    made = rank_0(work)
    assert os.read(reading, 1) == b"."
    made.reduce(np.zeros(3), np.maximum)
    assert made.reduce(np.zeros(3), np.maximum) is None
    os.close(reading)
    os.close(writing)


def test_mpi_moves_messages_on_while_a_rank_waits(rank_0, monkeypatch):
    monkeypatch.setattr(star, "LOOK", 0.01)
    reading, writing = os.pipe()

    def work(made: Star, rank: int) -> bool:
        return made.reduce(np.zeros(1), np.maximum) is not None

    made = rank_0(work, lambda: os.write(writing, b"."))
    for _ in range(3 * RANKS):  # rank 0 waits until others have looked
        assert os.read(reading, 1) == b"."
    made.reduce(np.zeros(1), np.maximum)
    made.close()
    os.close(reading)
    os.close(writing)


def test_only_small_messages_are_carried():
    assert Star.carries(np.zeros(LONGEST // 8))
    assert not Star.carries(np.zeros(LONGEST // 8 + 1))
    assert not Star.carries(np.zeros(0))


@pytest.mark.mpi
def test_ranks_of_one_node_are_connected_or_none_is():
    communicator = world()
    made = star_among(communicator, int)
    whole = communicator.max(np.array([int(made is None)]))[0]
    assert (made is None) == bool(whole)
    assert made is not None
    for shape in ((1,), (3, 5)):
        own = np.arange(np.prod(shape)).reshape(shape) * (communicator.rank - 1)
        assert np.array_equal(made.reduce(own, np.add), communicator.sum(own))
        assert np.array_equal(made.reduce(own * 0.5, np.maximum), communicator.max(own * 0.5))
    made.close()


@pytest.mark.mpi
def test_where_one_rank_cannot_connect_all_leave_it_to_mpi(monkeypatch):
    communicator = world()

    def refuse(*about):
        raise PermissionError

    monkeypatch.setattr(star, "MEETING", 0.3)
    if communicator.rank == communicator.size - 1:
        monkeypatch.setattr(star, "_connected", refuse)
    assert star_among(communicator, int) is None
