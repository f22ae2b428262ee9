"""Where ranks of one supervisor meet: many times, with ranks that come early and late."""

from __future__ import annotations

import os
import random
import signal
import time

from mpifed.watchdog.meeting import Meeting

RANKS, TIMES = 7, 300


def attend(meeting: Meeting, rank: int, number: int) -> list[tuple[int, int]]:
    """Leave the rank and the number of the meeting; return what all have left."""
    meeting.turn()
    start = rank * 8
    meeting.area[start : start + 8] = rank.to_bytes(4, "little") + number.to_bytes(4, "little")
    meeting.arrive()
    assert meeting.is_over(60.0)
    left = bytes(meeting.area[: 8 * RANKS])
    return [
        (
            int.from_bytes(left[at : at + 4], "little"),
            int.from_bytes(left[at + 4 : at + 8], "little"),
        )
        for at in range(0, len(left), 8)
    ]


def forked(action) -> int:
    """A child that ends with code 0 if ``action`` returns a true value."""
    child = os.fork()
    if not child:
        code = 1
        try:
            code = not action()
        finally:
            os._exit(code)
    return child


def test_ranks_that_are_early_and_late_read_what_all_left_this_time():
    meeting = Meeting(RANKS)

    def attends_all(rank: int) -> bool:
        pauses = random.Random(rank)
        for number in range(TIMES):
            if pauses.random() < 0.02:
                time.sleep(pauses.random() / 100)
            if attend(meeting, rank, number) != [(other, number) for other in range(RANKS)]:
                return False
            if pauses.random() < 0.02:
                time.sleep(pauses.random() / 100)
        return True

    children = [forked(lambda rank=rank: attends_all(rank)) for rank in range(RANKS)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * RANKS


def test_a_rank_that_waits_takes_no_core_and_no_longer_than_its_patience():
    meeting = Meeting(2)
    meeting.turn()
    meeting.arrive()
    began, cpu = time.monotonic(), time.process_time()
    assert not meeting.is_over(0.5)
    assert 0.4 < time.monotonic() - began < 30 and time.process_time() - cpu < 0.1

    def comes_late() -> bool:
        meeting.arrive()
        return meeting.is_over(60.0)

    child = forked(comes_late)
    assert meeting.is_over(60.0) and os.waitpid(child, 0)[1] == 0


def test_a_signal_is_handled_while_a_rank_waits():
    meeting, came = Meeting(2), []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))
    try:
        meeting.turn()
        meeting.arrive()
        child = forked(lambda: os.kill(os.getppid(), signal.SIGUSR1) is None)
        assert not meeting.is_over(0.5) and came == [signal.SIGUSR1]
        os.waitpid(child, 0)
    finally:
        signal.signal(signal.SIGUSR1, before)
