"""Where the ranks of one supervisor meet: memory that they share, and pipes at which they wait."""

from __future__ import annotations

import os
import select

# Bytes that all ranks together leave for each other.
ROOM = 1 << 20

# Bytes of the number of ranks that have arrived.
NUMBER = 4


class Meeting:
    """What a process creates before it forks the ranks, which then meet any number of times.

    A rank that waits takes no core until the last one arrives. The memory has no name, so nothing
    is left behind. There are two areas and two pipes at which ranks wait: a rank that arrives again
    may overtake one that still reads, but no rank passes two meetings meanwhile.

    Attributes
    ----------
    ranks : int
        How many ranks meet.
    key : bytes
        The same in all ranks that meet, and in no others.
    aside : Meeting, optional
        Another one, for what some ranks ask while the others may be at this one.
    area : memoryview
        Where this rank leaves bytes before it arrives. Once the meeting is over, it has those of
        all ranks, until this rank calls ``turn``.
    """

    def __init__(self, ranks: int, aside: Meeting | None = None) -> None:
        import mmap  # here, since every guard would import it

        self.ranks, self.key, self.aside = ranks, os.urandom(16), aside
        self.area, self._other_area = (memoryview(mmap.mmap(-1, ROOM)) for _ in range(2))
        self._door, self._other_door = os.pipe(), os.pipe()
        self._arrived = os.pipe()  # whose content, the number of arrived ranks, one takes at a time
        os.write(self._arrived[1], bytes(NUMBER))

    def turn(self) -> None:
        """Begin the next meeting."""
        self.area, self._other_area = self._other_area, self.area
        self._door, self._other_door = self._other_door, self._door

    def arrive(self) -> None:
        """Show that this rank is here; if it is the last, let all go on."""
        arrived = 1 + int.from_bytes(os.read(self._arrived[0], NUMBER), "little")
        is_last = arrived == self.ranks
        os.write(self._arrived[1], (0 if is_last else arrived).to_bytes(NUMBER, "little"))
        if is_last:
            os.write(self._door[1], bytes(self.ranks))

    def is_over(self, seconds: float) -> bool:
        """Wait for so many seconds at most until all ranks are here; return whether they are."""
        if not select.select([self._door[0]], [], [], seconds)[0]:
            return False
        os.read(self._door[0], 1)
        return True
