"""How often a guard looks at its rank, and how long it waits before it reports an end.

Messages, and the end of the rank or of the launcher, wake a guard at once. What it has to look for
is whether the rank still makes progress, which is counted in seconds.
"""

from __future__ import annotations

from mpifed.watchdog.launcher import Launch

TICK, LONGEST_TICK = 0.2, 1.0
"""Seconds between two looks where few ranks share a core, and at most.

A guard that has paused twice as long was itself stopped.
"""

LOOKS = 50.0
"""Looks a second that the guards of a node take for each of its cores; one takes 0.2 to 0.4 ms."""

GRACE, TURN, LONGEST_TURN = 0.1, 0.005, 1.0
"""Seconds before a dead rank is reported, more for each rank than for the one before, and at most.

A launcher that kills the job kills the guard meanwhile, and of several ranks that die at once the
first one reports. Some launchers kill the job as soon as a rank is gone, so the wait is short.
"""

PMIX_GRACE = 0.005
"""As ``GRACE``, where SLURM sees by PMIx that a rank is gone and kills the step at once."""

EARLIER_DEATH_GRACE = 3.0
"""Additional seconds in which a guard waits for the report on a rank that died earlier."""

SHARED_FAILURE_GRACE = 10.0
"""Seconds in which a rank that fails before MPI has initialised waits for the report of rank 0.

Most such failures occur on all ranks.
"""


def pause_between_looks(launch: Launch, cores: int) -> float:
    """Return the seconds between two looks of a guard.

    Parameters
    ----------
    launch : Launch
        The place of its rank in the job.
    cores : int
        Cores of this node.

    Examples
    --------
    >>> places = [Launch(0, ranks, ranks, "job", 1) for ranks in (4, 50, 1000)]
    >>> [pause_between_looks(place, cores=2) for place in places]
    [0.2, 0.5, 1.0]
    """
    ranks = max(launch.here or 1, launch.together)
    return max(TICK, min(LONGEST_TICK, ranks / cores / LOOKS))
