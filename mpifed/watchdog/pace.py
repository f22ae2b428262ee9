"""How often a guard looks at its rank, and how long it waits before it reports an end."""

from __future__ import annotations

from mpifed.watchdog.launcher import Launch

# Seconds between two looks where few ranks share a core, and at most. A guard that has paused twice
# as long was itself stopped.
TICK, LONGEST_TICK = 0.2, 1.0

# Looks a second that the guards of a node take for each of its cores; one takes 0.2 to 0.4 ms.
LOOKS = 50.0

# Seconds before a dead rank is reported, more for each rank than for the one before, and at most.
GRACE, TURN, LONGEST_TURN = 0.1, 0.005, 1.0

# As ``GRACE``, where SLURM sees by PMIx that a rank is gone and kills the step at once.
PMIX_GRACE = 0.005

# Additional seconds in which a guard waits for the report on a rank that died earlier.
EARLIER_DEATH_GRACE = 3.0

# Seconds in which a rank that fails before MPI has initialised waits for the report of rank 0. Most
# such failures occur on all ranks.
SHARED_FAILURE_GRACE = 10.0


def pause_between_looks(launch: Launch, cores: int) -> float:
    """Return the seconds between two looks of a guard."""
    ranks = max(launch.here or 1, launch.together)
    return max(TICK, min(LONGEST_TICK, ranks / cores / LOOKS))
