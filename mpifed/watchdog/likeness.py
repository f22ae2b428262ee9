"""What two processes that a launcher started must have in common for one to stand in for the
other.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

# How variables begin that launchers set for each rank, and that are read by MPI alone.
LAUNCHERS = (
    *("PMI", "OMPI_", "PRTE_", "PRRTE_", "ORTE_", "OPAL_", "SLURM", "HYD", "MPIR_", "MPIEXEC_"),
    *("MPI_LOCAL", "I_MPI_", "MV2_", "PALS_", "FLUX_", "ALPS_"),
)

# Files of ``/proc/self`` that are compared whole.
FILES = (
    *("cgroup", "limits", "personality", "coredump_filter", "oom_score_adj", "attr/current"),
    *("timerslack_ns", "loginuid"),
)

LINKS = ("root", "cwd", "ns/cgroup", "ns/ipc", "ns/mnt", "ns/net", "ns/pid", "ns/user", "ns/uts")

# Lines of ``/proc/self/status`` that are compared.
STATUS = (
    *("Umask", "Uid", "Gid", "Groups", "SigBlk", "SigIgn", "CapInh", "CapPrm", "CapEff", "CapBnd"),
    *("CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters", "Mems_allowed", "THP_enabled"),
)

# Modules of import hooks that environments install, which do the same in every process.
PLAIN_HOOKS = ("_distutils_hack", "_virtualenv")


def traits() -> dict[str, str]:
    """Return what must be equal in two processes, as text by name."""
    found = {name: _text(Path("/proc/self", name)) for name in FILES}
    found |= {name: _target(f"/proc/self/{name}") for name in LINKS}
    lines = (line.partition(":") for line in _text(Path("/proc/self/status")).splitlines())
    found |= {name: value.strip() for name, _, value in lines if name in STATUS}
    # The policy for memory of the first mapping, which has none of its own, is the process's.
    found["numa"] = " ".join(_text(Path("/proc/self/numa_maps"), 200).split()[1:2])
    found["priority"] = str((os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)))
    found["python"] = repr((sys.executable, sys.orig_argv, sys.argv, sys.path, sys.flags))
    for name, value in os.environ.items():
        if not name.startswith(LAUNCHERS):
            found[f"${name}"] = value
    return found


def alike(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Return whether two processes have the same :func:`traits`."""
    return one == other


def observed() -> bool:
    """Return whether something observes this process that would not observe a fork of another."""
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is not None and any(monitoring.get_tool(number) for number in range(6)):
        return True
    if sys.gettrace() is not None or sys.getprofile() is not None:
        return True
    status = _text(Path("/proc/self/status")).splitlines()
    if threads() != 1 or "TracerPid:\t0" not in status:
        return True
    return not _is_plain(sys.meta_path[0])


def _is_plain(finder: object) -> bool:
    module = getattr(finder, "__module__", type(finder).__module__)
    return module.split(".")[0] in ("_frozen_importlib", *PLAIN_HOOKS)


def threads() -> int:
    """Return how many threads this process has, those of libraries included."""
    return len(os.listdir("/proc/self/task"))


def _text(path: Path, most: int = -1) -> str:
    try:
        with path.open(encoding="utf-8", errors="surrogateescape") as file:
            return file.read(most)
    except OSError:
        return ""


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
