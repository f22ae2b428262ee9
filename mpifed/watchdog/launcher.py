"""What a process learns of its launcher without MPI: its place in the job, and whether it
lives.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import struct
import sys
import time

from mpifed.errors import EXIT_FAILED, InputError
from topologies.job_environment import SIZE_VARIABLES, in_environment
from topologies.job_environment import launched_rank as launched_rank

LOCAL_SIZE_VARIABLES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")

PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36

# Variables that launchers set for each rank begin so; all others must be equal on a node.
LAUNCHERS = (
    *("PMI", "OMPI_", "PRTE_", "PRRTE_", "ORTE_", "OPAL_", "SLURM", "HYD", "MPIR_", "MPIEXEC_"),
    *("MPI_LOCAL", "I_MPI_", "MV2_", "PALS_", "FLUX_", "ALPS_"),
)

# Seconds that ``scancel`` may take.
CANCELLING = 10.0


# Signals that a process passes on to its rank.
PASSED_ON = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2),
    *(signal.SIGTERM, signal.SIGCONT),
)

# Processes that start ranks, the outermost of which a user waits for: MPICH's, Open MPI's, PRRTE's.
NAMES = (
    *("mpirun", "mpiexec", "mpiexec.hydra", "hydra_pmi_proxy"),
    *("orterun", "orted", "prterun", "prte", "prted"),
)

# Seconds that a process may be stopped (SIGSTOP) while the one that watches it is not.
STOPPED = 5.0

# Seconds that a launcher may take to end by itself once it has lost a host.
LEAVING = 5.0

# What is added to the score, of 1000, by which the kernel chooses whom it kills for memory.
BEFORE_OTHERS = 500

# What a supervisor sends to a process that is to end its job by the launcher, in place of a code.
END_JOB = b"end the job"


class Launch:
    """The place of a process in its job, from the launcher's environment variables."""

    def __init__(self, rank: int, size: int, local_size: int | None, process: int) -> None:
        self.rank, self.size, self.local_size, self.process = rank, size, local_size, process

    @property
    def together(self) -> int:
        """How many ranks may be on this host: all, where the launcher does not say."""
        return self.local_size or self.size

    @property
    def on_one_host(self) -> bool:
        """Whether all ranks are on this host."""
        return self.size == (self.local_size or 1)


def check_one_process(remedy: str) -> None:
    """Raise ``InputError`` where a launcher started several processes."""
    if (in_environment(SIZE_VARIABLES) or 1) > 1:
        raise InputError(f"this command is one process, and was started as several; {remedy}")


def launched() -> Launch | None:
    """Return the place of this process in its job."""
    rank = launched_rank()
    if rank is None:
        return None
    size = in_environment(SIZE_VARIABLES) or 1
    local_size = in_environment(LOCAL_SIZE_VARIABLES)
    if local_size is None and in_environment(("SLURM_STEP_NUM_NODES",)) == 1:
        local_size = size
    return Launch(rank, size, local_size, _pmi_process() or os.getppid())


def _pmi_process() -> int:
    """Return the process that made the connection ``PMI_FD``; zero where none can be seen."""
    number = in_environment(("PMI_FD",))
    if number is not None and sys.platform == "linux":
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
            return peer_of(connection)[0]
    return 0


def peer_of(connection: socket.socket) -> tuple[int, ...]:
    """Return the process and the user at the other end of a connection on this host."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return struct.unpack("3i", credentials)[:2]


def variables_of(process: int) -> dict[str, str]:
    """Return the variables that a launcher has set for a process."""
    with open(f"/proc/{process}/environ", "rb") as file:
        texts = os.fsdecode(file.read()).split("\0")
    pairs = (text.partition("=") for text in texts)
    return {name: value for name, _, value in pairs if name.startswith(LAUNCHERS)}


def started_at(process: int | str) -> float:
    """Return when a process began, in seconds since the system was started; else -1."""
    began = stat_of(process)[19:20]
    return int(began[0]) / os.sysconf("SC_CLK_TCK") if began else -1.0


def stat_of(process: int | str) -> list[str]:
    """Return the fields of ``/proc/PROCESS/stat`` from the state on, the third of proc(5); none
    where there is no such process.
    """
    with contextlib.suppress(OSError):
        text = read(f"/proc/{process}/stat")
        return text.rsplit(")", 1)[1].split()  # the name before may have spaces and brackets
    return []


def read(path: str) -> str:
    """Return the text of a file of the system; ``pathlib`` would cost every guard 5 ms."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def is_stopped(process: int) -> bool:
    """Return whether a process is stopped, as by SIGSTOP."""
    return stat_of(process)[:1] == ["T"]


def has_ended(process: int) -> bool:
    """Return whether there is no such process, or none but for its parent to hear of its end."""
    return stat_of(process)[:1] in ([], ["X"], ["Z"])


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when ``parent``, which has just started it, ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(EXIT_FAILED)


def adopt_orphans() -> None:
    """Become the parent of all that is started below this process and loses its own parent."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def kill_children() -> None:
    """Kill the processes that this one is the parent of, and those that it becomes so by that."""

    def children() -> list[int]:
        processes = map(int, filter(str.isdecimal, os.listdir("/proc")))
        return [each for each in processes if stat_of(each)[1:2] == [str(os.getpid())]]

    while alive := children():
        for child in alive:
            os.kill(child, signal.SIGKILL)
        for child in alive:
            os.waitpid(child, 0)


def die_before_others() -> None:
    """Have the kernel kill this process where memory is full, and not the one that watches it."""
    with contextlib.suppress(OSError, ValueError):
        path = "/proc/self/oom_score_adj"
        score = min(1000, int(read(path)) + BEFORE_OTHERS)
        with open(path, "w", encoding="ascii") as file:
            file.write(str(score))


def oom_kills() -> int:
    """Return how many processes of this node were killed since memory was full, also a group's."""
    with contextlib.suppress(OSError), open("/proc/vmstat", encoding="ascii") as counts:
        return sum(int(line.split()[1]) for line in counts if line.startswith("oom_kill "))
    return 0


def name_process(name: str) -> None:
    """Set the name of this process in ``ps`` and ``top``, 15 characters at most."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, ctypes.c_char_p(name.encode()))


def end_job() -> None:
    """Make the launcher end the ranks of other hosts, which before MPI nothing else reaches."""
    step = os.environ.get("SLURM_STEP_ID")
    if step is not None and in_environment(LOCAL_SIZE_VARIABLES) is None:
        import subprocess  # here, since every guard would import it

        words = ["scancel", "--signal=KILL", f"{os.environ.get('SLURM_JOB_ID')}.{step}"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(words, check=False, capture_output=True, timeout=CANCELLING)
    os.kill(os.getpid(), signal.SIGKILL)


def outermost_launcher(process: int) -> int:
    """Return the launcher on this host that has started all others over ``process``, or zero."""
    outermost = 0
    with contextlib.suppress(OSError):
        while read(f"/proc/{process}/comm").strip() in NAMES:
            outermost, process = process, int(stat_of(process)[1])
    return outermost


def end_launcher(process: int) -> None:
    """Kill a launcher that does not end by itself, since it waits for a host that is lost."""
    latest = time.monotonic() + LEAVING
    while not has_ended(process) and time.monotonic() < latest:
        time.sleep(0.1)
    if not has_ended(process):
        os.kill(process, signal.SIGKILL)


def hold_signals() -> None:
    """Block what is passed on, here and in processes forked from this one."""
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)


def release_signals() -> None:
    """Deliver, in a rank that can now handle signals, what has come since it was forked."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
