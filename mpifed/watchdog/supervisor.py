"""The supervisor of a node: forks ranks, reports the first that is killed, ends all others."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import resource
import selectors
import signal
import socket
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any

from mpifed.errors import EXIT_BAD_INPUT, EXIT_FAILED, complain
from mpifed.watchdog import heartbeat, launcher
from mpifed.watchdog.heartbeat import Page
from mpifed.watchdog.hosts import ENDS, LEAVES, Host, Hosts
from mpifed.watchdog.meeting import Meeting
from mpifed.watchdog.shared_memory import remove_abandoned, remove_segments, segments_of

# Seconds between two looks at the ranks, and that count as passed at most: a supervisor that was
# itself stopped has seen nothing meanwhile.
TICK, LONGEST_TICK = 0.1, 0.4

# Seconds that ranks of this node may take to come, and to begin MPI without a step forward.
START_LIMIT = 60.0
START_VARIABLE = "MPIFED_START_LIMIT"

# Seconds on top of the limit for a rank that waits for others, and the least limit for the end.
WAITING, ENDING = 60.0, 120.0

# Seconds before a fault is reported, in which a better explanation may come: of a rank that a
# signal has killed, that left with a code, whose launcher or process is gone.
BY_SIGNAL, BY_CODE, BY_LAUNCHER = 0.0, 0.3, 1.0

# Seconds that a rank which has reported its failure takes to end the job by MPI, at most.
ABORTING = 3.0

# Seconds in which a rank that fails before MPI has begun waits for rank 0 to fail as well.
SHARED_FAILURE = 10.0

# Seconds that an end before MPI has begun waits for ranks of this host that come late.
LATEST = 5.0

# Seconds that a supervisor waits for more ranks when those it has have ended.
LINGERING = 1.0

# Seconds in which the kernel's counter of kills for memory is taken to mean a rank that was killed.
OOM_SECONDS = 10

# What is raised where a process has ended that asks for a rank.
ENDED = (ConnectionError, FileNotFoundError, ProcessLookupError, ValueError)

# What a request for a rank has at most: the digits of its number, and its streams and ``PMI_FD``.
DIGITS, DESCRIPTORS = 16, 4

# What is said of a rank whose process was killed that the launcher had started.
KILLED = "the process was killed"


@dataclass
class _Rank:
    """A rank, and the process that its launcher started for it."""

    number: int
    page: Page
    launched: int = 0
    connection: socket.socket | None = None  # to that process, until it has ended
    descriptors: list[int] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    processors: set[int] = field(default_factory=set)
    signals: list[int] = field(default_factory=list)
    segments: set[str] = field(default_factory=set)
    noted = 0  # how far it was when its segments were last looked up
    process = 0  # until it is forked, and from its end on
    code: int | None = None
    answered = stopped = False
    stopped_for = still_for = 0.0
    seen: tuple[int, ...] = ()

    def fault(self, page: Page, passed: float, start_limit: float = math.inf) -> str | None:
        """Add the time that has passed; return what is wrong if nothing moves for too long."""
        self.stopped_for = self.stopped_for + passed if self.stopped else 0.0
        if self.stopped_for > launcher.STOPPED:
            return f"the process has been stopped for {launcher.STOPPED:.0f} s"
        if self.code is not None:
            return None
        seen = (page.steps, page.waiting, page.ending)
        self.still_for = self.still_for + passed if seen == self.seen else passed
        self.seen = seen
        limit = max(page.limit, ENDING) if page.ending else page.limit
        if not page.begun:
            limit = min(limit, start_limit)
        if page.waiting and self.still_for > limit + WAITING:
            return f"no other rank answered for {self.still_for:.0f} s"
        if not page.waiting and self.still_for > limit:
            which = START_VARIABLE if limit == start_limit else "stall_limit"
            return f"no step forward for {self.still_for:.0f} s ({which})"
        return None


def _import(preload: Callable[[], object] | None) -> None:
    """Import for all ranks; what fails is raised again in each of them."""
    with contextlib.suppress(BaseException):
        if preload is not None:
            preload()
            gc.collect()
            gc.freeze()
            forgo_finalizers()


def forgo_finalizers() -> None:
    """Let ranks end without the finalizers of what was imported for them.

    Torch's unregister its operators one by one: 30 ms, and 26 MB that a rank would else share.
    """
    for finalizer in vars(weakref.finalize)["_registry"]:
        finalizer.atexit = False


def supervise(
    launch: launcher.Launch, listening: socket.socket, preload: Callable[[], object] | None
) -> None:
    """Supervise the ranks of this node; returns in ranks alone."""
    try:
        if Supervisor(launch, listening).serve(preload):
            return
    except BaseException as error:
        complain("mpifed", f"the supervisor of the ranks on {socket.gethostname()}: {error!r}")
        os._exit(EXIT_FAILED)
    os._exit(0)


class Supervisor:
    """The ranks of a node, or of a group of its processes that are alike."""

    _opening: int | None

    def __init__(self, launch: launcher.Launch, listening: socket.socket) -> None:
        # It parts from the process that has started this one, and from its launcher.
        os.setpgid(0, 0)
        launcher.name_process("mpifed-guard")
        launcher.adopt_orphans()
        launcher.hold_signals()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # some launchers ignore it, and so the ends
        if "PMI_FD" in os.environ:
            os.close(int(os.environ["PMI_FD"]))
        self._limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._limits[1], self._limits[1]))
        remove_abandoned()
        self.launch, self.hosts = launch, Hosts(launch)
        self.pages = heartbeat.new_pages(launch.together)
        heartbeat.begin(self.pages[0])  # what is shared before the fork is the first rank's
        self.ranks: dict[int, _Rank] = {}
        # When each is reported unless a better explanation comes, of which host, what and the code.
        self.faults: list[tuple[float, Host, str, int]] = []
        limit = float(os.environ.get(START_VARIABLE, START_LIMIT))
        self._start_limit, self._age = limit + launch.together / 2, 0.0
        self._oom_kills = deque([launcher.oom_kills()], OOM_SECONDS)
        self._sees_launcher, self.ended = not launcher.has_ended(launch.process), False
        self._selector = selectors.DefaultSelector()
        listening.setblocking(False)
        self._register(listening, self._admit)
        self._meeting = Meeting(launch.together, Meeting(launch.together))
        self._gate, self._opening = os.pipe()  # at which ranks wait until it is closed

    def serve(self, preload: Callable[[], object] | None) -> bool:
        """Fork and watch ranks until all have ended; returns True in a rank."""
        importing = threading.Thread(target=_import, args=(preload,), daemon=True)
        importing.start()
        supervisor, last, idle = os.getpid(), time.monotonic(), 0.0
        while not self.ended:
            for key, _ in self._selector.select(TICK):
                key.data(key.fileobj)
            if importing.is_alive():
                self.pages[0].steps = len(sys.modules)
            else:
                for rank in self.ranks.values():
                    if not rank.process and rank.code is None:
                        rank.process = os.fork()
                        if not rank.process:
                            self._become(rank, supervisor)
                            return True
                        while rank.descriptors:
                            os.close(rank.descriptors.pop())
                        self._deliver(rank)
                if self.ranks:
                    self._open_gate()
            now = time.monotonic()
            passed, last = min(now - last, LONGEST_TICK), now
            self._reap()
            self._look(passed)
            self._report_what_is_due()
            present = any(rank.connection for rank in self.ranks.values())
            idle = 0.0 if not self.ranks or present or self.faults else idle + passed
            if idle > 0 and (len(self.ranks) == self.launch.together or idle > LINGERING):
                self.hosts.send(LEAVES)
                launcher.kill_children()
                break
        return False

    def _register(self, what: Any, handle: Callable[[Any], object]) -> None:
        self._selector.register(what, selectors.EVENT_READ, handle)

    # What comes from the processes that the launcher started.

    def _admit(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection, _ = listening.accept()
            if launcher.peer_of(connection)[1] == os.getuid():
                connection.setblocking(False)
                self._register(connection, self._add_rank)
            else:
                connection.close()

    def _add_rank(self, connection: socket.socket) -> None:
        """Receive a request for a rank in place of the process at the other end."""
        self._selector.unregister(connection)
        with contextlib.suppress(*ENDED):
            data, descriptors, _, _ = socket.recv_fds(connection, DIGITS, DESCRIPTORS)
            number, index, process = int(data), len(self.ranks), launcher.peer_of(connection)[0]
            its = list(descriptors), launcher.variables_of(process), os.sched_getaffinity(process)
            if index < self.launch.together and number not in self.ranks:
                rank = _Rank(number, self.pages[index], process, connection, *its)
                if number == 0:
                    rank.page.set_text("leader", self.hosts.listen())
                self.ranks[number] = rank
                self._register(connection, partial(self._pass_on, rank))
                return
        connection.close()

    def _pass_on(self, rank: _Rank, connection: socket.socket) -> None:
        """Receive a signal for a rank, or the end of the process that its launcher started."""
        data = b""
        with contextlib.suppress(OSError):
            data = connection.recv(1)
        if data:
            rank.signals.append(data[0])
            self._deliver(rank)
            return
        self._selector.unregister(connection)
        connection.close()
        rank.connection = None
        if not rank.answered:
            if rank.process:
                os.kill(rank.process, signal.SIGKILL)
            self._suspect(BY_LAUNCHER, rank.number, KILLED)

    def _deliver(self, rank: _Rank) -> None:
        """Send a rank its signals, once it is there."""
        while rank.process and rank.signals:
            os.kill(rank.process, rank.signals.pop(0))

    def _answer(self, rank: _Rank, data: bytes) -> None:
        """Have the process of a rank end, which then closes its connection."""
        rank.answered = True
        with contextlib.suppress(OSError):
            if rank.connection is not None:
                rank.connection.send(data)

    # What ranks do.

    def _become(self, rank: _Rank, supervisor: int) -> None:
        """Make this process, which was just forked, the rank."""
        launcher.die_with_parent(supervisor)
        launcher.die_before_others()
        for one in self.ranks.values():
            for number in one.descriptors if one is not rank else ():
                os.close(number)
        opened: list[Any] = [key.fileobj for key in self._selector.get_map().values()]
        for one in opened:
            one.close()
        self._selector.close()
        self.hosts.close()
        sys.stdout.flush()
        for stream, number in enumerate(rank.descriptors[:3]):
            os.dup2(number, stream, inheritable=True)
            os.close(number)
        for name in [each for each in os.environ if each.startswith(launcher.LAUNCHERS)]:
            del os.environ[name]
        os.environ.update(rank.variables)
        for number in rank.descriptors[3:]:
            os.set_inheritable(number, True)
            os.environ["PMI_FD"] = str(number)
        os.sched_setaffinity(0, rank.processors)
        resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)
        launcher.name_process(f"mpifed-rank-{rank.number}")
        if "numpy.random" in sys.modules:  # else all ranks would draw the same from its global one
            sys.modules["numpy.random"].seed()
        self._open_gate()
        heartbeat.begin(rank.page, launcher.started_at(rank.launched), self._gate, self._meeting)

    def _open_gate(self) -> None:
        """Close this process's end of the pipe: ranks go on once none has it."""
        if self._opening is not None:
            os.close(self._opening)
            self._opening = None

    def _reap(self) -> None:
        """Note which ranks have ended."""
        for rank in self.ranks.values():  # not for any child: imports have some of their own
            if rank.process:
                process, status, used = os.wait4(rank.process, os.WNOHANG)
                if process:
                    rank.process = 0
                    self._note_end(rank, os.waitstatus_to_exitcode(status), used.ru_maxrss)

    def _note_end(self, rank: _Rank, code: int, kibibytes: int) -> None:
        rank.code, page, late = code, rank.page, not self._all_are_here
        if rank.connection is None:
            return  # it was killed with the process of its launcher
        if page.code:
            self._end(page.code)
        elif code < 0:
            how = f"the process was killed by {signal.Signals(-code).name}"
            if code == -signal.SIGKILL:
                doubt = "" if launcher.oom_kills() > self._oom_kills[0] else "?"
                how += f" (out of memory{doubt}); it held up to {kibibytes * 1024 / 1e6:,.0f} MB"
                if page.planned:
                    how += f", {page.planned / 1e6:,.0f} MB of samples by --dry-run"
            self._suspect(BY_SIGNAL, rank.number, how)
        elif not page.ending:
            self._suspect(BY_CODE, rank.number, f"the process left with code {code}")
        elif not code or (code != EXIT_FAILED if page.begun else late and code == EXIT_BAD_INPUT):
            self._answer(rank, bytes([code]))
        elif page.begun or rank.number == 0:  # which has reported that
            self._end(code)
        else:
            what = rank.page.text("failure") or f"the process left with code {code}"
            self._suspect(SHARED_FAILURE, rank.number, what, code)

    @property
    def _begun(self) -> bool:
        return any(rank.page.begun for rank in self.ranks.values())

    @property
    def _all_are_here(self) -> bool:
        return len(self.ranks) == self.launch.size

    def _look(self, passed: float) -> None:
        """Look at what ranks and supervisors of other hosts show."""
        # With ranks that have ended while the process that the launcher started has not.
        running = [one for one in self.ranks.values() if one.code is None or one.connection]
        self._age += passed
        if int(self._age) > int(self._age - passed):
            self._oom_kills.append(launcher.oom_kills())
            for rank in running:
                rank.stopped = any(map(launcher.is_stopped, (rank.launched, rank.process)))
        for rank in running:
            # Noted before it may end with its launcher; the first messages map more of them.
            stage = 2 + min(rank.page.round, 2) if rank.page.begun else 0
            if rank.noted < stage:
                rank.noted, rank.segments = stage, rank.segments | segments_of(rank.process)
            # Before it is forked, modules that have been imported are steps of the first.
            page = rank.page if rank.process else self.pages[0]
            if page.code:
                self.hosts.send(ENDS)
                self._suspect(ABORTING, rank.number, "", page.code)
            elif (what := rank.fault(page, passed, self._start_limit)) is not None:
                self._suspect(BY_SIGNAL, rank.number, what)
        is_over = self.ranks and all(rank.answered for rank in self.ranks.values())
        if self._sees_launcher and not is_over and launcher.has_ended(self.launch.process):
            number = min(self.ranks, default=self.launch.rank)
            self._suspect(BY_LAUNCHER, number, "the launcher has ended before its ranks")
        missing = (self.launch.local_size or 0) - len(self.ranks)
        if missing > 0 and self._age > self._start_limit:
            absent = {*range(self.launch.size)} - {*self.ranks}
            what = f"{missing} of {self.launch.local_size} ranks of this host have not come after"
            what += f" {self._start_limit:.0f} s ({START_VARIABLE})"
            self._suspect(BY_SIGNAL, min(absent), what)
        # Where the launcher has killed all of this host, another host may say why.
        hearing = running or (self.faults and [*self.ranks.values()])
        if hearing and not self._all_are_here:
            first = hearing[0]
            self.hosts.look(self._as_host(first.number), first.page.text("leader"), passed)
            if self.hosts.ended:
                self._end(EXIT_FAILED)
            for host in self.hosts.lost():
                what = f"nothing was heard of this host for {host.silent:.0f} s"
                self._suspect(BY_SIGNAL, host, what)

    def _as_host(self, number: int) -> Host:
        """Describe this host by one of its ranks, which may not have come yet."""
        rank = self.ranks.get(number)
        clients, round = (rank.page.text("clients"), rank.page.round) if rank else ("", -1)
        return Host(number, socket.gethostname(), clients, round)

    # Ends.

    def _suspect(
        self, patience: float, who: int | Host, what: str, code: int = EXIT_FAILED
    ) -> None:
        host = self._as_host(who) if isinstance(who, int) else who
        self.faults.append((time.monotonic() + patience, host, what, code))

    def _report_what_is_due(self) -> None:
        if not self.faults or self.ended:
            return
        due, host, what, code = min(self.faults, key=itemgetter(0))
        if time.monotonic() < due:
            return
        reported = [rank.page for rank in self.ranks.values() if rank.page.code]
        if reported or not what:
            self._end(reported[0].code if reported else code)
            return
        if what == KILLED and self.launch.on_one_host and not self._begun:
            # The launcher has killed the others, perhaps because of one that has not come here.
            absent = {*range(self.launch.size)} - {*self.ranks}
            host = self._as_host(min(absent, default=host.rank))
        round = max([host.round, *(one.page.round for one in self.ranks.values())])
        when = f"round {round}" if round >= 0 else "before the first round"
        clients = f" ({host.clients})" if host.clients else ""
        line = f"rank {host.rank} on {host.name}{clients}: {when}: {what}"
        with contextlib.suppress(OSError):  # whoever read it may have gone with the launcher
            complain("mpifed", line)
        for log in filter(None, (rank.page.text("log") for rank in self.ranks.values())):
            with contextlib.suppress(OSError), open(log, "a", encoding="utf-8") as file:
                file.write(line + "\n")
        self._end(code)

    def _end(self, code: int) -> None:
        """End all ranks of the job, and remove the shared memory that MPI no longer removes."""
        self.ended = True
        outermost = launcher.outermost_launcher(self.launch.process) if self.hosts.lost() else 0
        for rank in self.ranks.values():
            rank.segments |= segments_of(rank.process)
        launcher.kill_children()
        for rank in self.ranks.values():
            rank.process = 0
            remove_segments(rank.segments)
        self.hosts.send(ENDS)
        latest = time.monotonic() + LATEST
        while self.launch.on_one_host and not (self._begun or self._all_are_here):
            for key, _ in self._selector.select(TICK):
                key.data(key.fileobj)
            if time.monotonic() > latest:
                break
        answer = bytes([code]) if self._begun or self._all_are_here else launcher.END_JOB
        for rank in self.ranks.values():
            self._answer(rank, answer)
            if launcher.is_stopped(rank.launched):
                os.kill(rank.launched, signal.SIGKILL)
        launcher.end_launcher(outermost)
