"""What mpifed needs of SLURM, PBS, Flux and LSF: their commands and their directives."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from mpifed.errors import InputError, RunError
from mpifed.jobs.plan import Job, JobOptions, seconds
from topologies.schema import excerpt

# Beginnings of variables of the job in which this command is given, if it is in one.
FOREIGN = (
    *("SLURM_", "SLURMD_", "SBATCH_", "SALLOC_", "SRUN_"),
    *("PMI_", "PMIX_", "OMPI_COMM_", "PRTE_JOB", "PBS_JOB", "LSB_JOB"),
)
KEPT = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")
PATIENCE = 60.0
# States of a job that is over; a scheduler shows them for a while.
ENDED = (
    *("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "CANCELED", "ENDED"),
    *("PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "REVOKED"),
)
PLAIN = re.compile(r"[A-Za-z0-9_./,:=@%+-]+")
# A scheduler that cannot be asked, in its words.
SILENT = (
    "Unable to contact|[Cc]onnect|cannot stat|not responding|timed out|configuration source|"
    "DNS SRV|Zero Bytes|standby mode|Socket"
)


class Queued(NamedTuple):
    """What a scheduler says of a job, or of one task of an array."""

    state: str
    reason: str

    @property
    def alive(self) -> bool:
        """Whether the job waits or runs."""
        return self.state not in ENDED


class Scheduler(ABC):
    """One scheduler, by its commands; scripts are submitted on the standard input of one."""

    title: str
    directive: str
    submission: tuple[str, ...]
    cancellation: tuple[str, ...]
    # The number of a job in what a submission says, and what is said of a job that is over.
    number: str
    over: str
    # Whether a sweep is one job, and a job is queued again under its own number.
    arrays = False
    # Lines of bash that set ``job`` and ``nodes``.
    place: str
    # What comes before the last word of ``submission`` where a job submits another.
    inside: tuple[str, ...] = ()
    states: ClassVar[Mapping[str, str]] = {}

    def submit(self, script: str, options: Sequence[str] = ()) -> int | str:
        """Submit a script; return the number of the job."""
        answer = self._call(*self.submission, *options, input=script)
        if answer.returncode:
            raise self._refusal(answer.stderr)
        return self.job_in(answer.stdout)

    def job_in(self, said: str) -> int | str:
        """Return the number of the job in what the command of submission said."""
        found = re.search(self.number, said)
        if found is None:
            raise InputError(f"{self.submission[0]} names no job: {_words(said)}")
        return int(found[0]) if found[0].isdigit() else found[0]

    def queue(self, jobs: Sequence[str]) -> dict[str, Queued]:
        """Return those of ``jobs`` that the scheduler still knows."""
        answer = self._call(*self.questions(jobs))
        if answer.returncode and not re.search(self.over, answer.stderr):
            raise RunError(f"{self.title} does not answer: {_words(answer.stderr)}")
        return {
            job: Queued(self.states.get(state, state), reason)
            for job, state, reason in self.answers(answer.stdout)
        }

    @abstractmethod
    def questions(self, jobs: Sequence[str]) -> Sequence[str]:
        """Return the command that says how ``jobs`` stand."""

    def answers(self, said: str) -> Iterator[tuple[str, str, str]]:
        """Yield job, state and reason from what the command said, here of bars between them."""
        for line in said.splitlines():
            job, state, *reason = line.split("|", 2)
            yield job.strip(), state.strip(), "".join(reason).strip()

    def endings(self, action: str, alive: Mapping[str, Queued]) -> list[list[str]]:
        """Return the commands that stop or cancel jobs; a script looks for its own stop file."""
        waiting = [job for job in alive if action == "cancel" or alive[job].state == "PENDING"]
        return [[*self.cancellation, *waiting]] if waiting else []

    def end(self, words: Sequence[str]) -> None:
        """Run one of ``endings``; a job that has ended already is ignored."""
        answer = self._call(*words)
        if answer.returncode and not re.search(self.over, answer.stderr):
            raise RunError(f"{words[0]} failed: {_words(answer.stderr)}")

    def test_only(self, script: str) -> str:
        """Return what the scheduler says of a script without submitting it."""
        return f"{self.title} has no way to try a script without submitting it: left out"

    @abstractmethod
    def directives(self, job: Job, tasks: Sequence[int]) -> str:
        """Return what a job asks for, as the lines of its script that the scheduler reads."""

    def _refusal(self, said: str) -> InputError | RunError:
        if re.search(SILENT, said):
            return RunError(f"{self.title} does not answer: {_words(said)}")
        return InputError(f"{self.submission[0]} refuses the job: {_words(said)}")

    def _call(self, *words: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
        if not shutil.which(words[0]):
            raise InputError(
                f"there is no {words[0]} on the PATH; this needs {self.title} (render and check do "
                "not), or another job.scheduler"
            )
        try:
            return subprocess.run(
                words,
                input=input,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                env=clean_environment(os.environ),
                umask=0o077,  # SLURM opens the output of a job with it
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise RunError(
                f"{self.title} does not answer: {words[0]} said nothing within {PATIENCE:.0f} s"
            ) from None


class Slurm(Scheduler):
    """SLURM 22.05 and later."""

    title, directive = "SLURM", "#SBATCH"
    submission, cancellation = ("sbatch", "--parsable"), ("scancel",)
    number, over = r"^\d+", "Invalid job id"
    arrays = True

    def questions(self, jobs: Sequence[str]) -> Sequence[str]:
        """Ask for all jobs of this user, since squeue fails where it has forgotten one."""
        options = ["--noheader", f"--user={os.getuid()}", "--states=all", "--array"]
        return ["squeue", *options, "--format=%F|%K|%T|%r"]

    def answers(self, said: str) -> Iterator[tuple[str, str, str]]:
        """Yield jobs, and tasks of arrays as ``7_2``."""
        for line in said.splitlines():
            job, task, state, reason = line.split("|", 3)
            yield f"{job}_{task}" if task.isdigit() else job, state, reason

    def endings(self, action: str, alive: Mapping[str, Queued]) -> list[list[str]]:
        """Let scancel itself see which jobs wait and which run."""
        if action == "cancel":
            return [["scancel", *alive]]
        running = ["--signal=USR1", "--batch", "--state=RUNNING"]
        return [["scancel", "--state=PENDING", *alive], ["scancel", *running, *alive]]

    def test_only(self, script: str) -> str:
        """Return SLURM's estimate of when the script would start."""
        answer = self._call("sbatch", "--test-only", input=script)
        if answer.returncode:
            raise self._refusal(answer.stderr)
        return _words(answer.stderr or answer.stdout)

    def directives(self, job: Job, tasks: Sequence[int]) -> str:
        """Return the directives of a job or of an array."""
        options, layout = job.options, job.layout
        asked = {
            "open_mode": "append",
            "nodes": layout.nodes,
            "ntasks_per_node": layout.ranks_per_node,
            "ntasks": layout.ranks,
            "cpus_per_task": options.cpus_per_task,
            "gres": f"gpu:{options.gpus_per_node}" if options.gpus_per_node else None,
            "exclusive": options.exclusive,
            "time": options.time,
            "signal": f"B:USR1@{options.warn_seconds}",  # to the batch script, before the limit
            "requeue" if options.max_restarts else "no_requeue": True,
        }
        if job.sweep:
            limit = f"%{options.array_limit}" if options.array_limit else ""
            asked["array"] = ",".join(map(str, tasks)) + limit
        return self.lines(job, job.name, "%A_%a" if job.sweep else "%j", asked)

    def lines(self, job: Job, name: str, number: str, asked: Mapping[str, Any]) -> str:
        """Return options of sbatch as directives; True is an option without a value."""
        options = job.options
        site = ("mem", "mem_per_cpu", "partition", "account", "qos", "constraint")
        # Only in the last part of the path are the patterns of SLURM patterns.
        output = f"{job.output}/job/".replace("%", "%%") + f"slurm-{number}.out"
        front = {"job_name": name, "chdir": Path.cwd(), "output": output}
        given = front | dict(asked) | {key: getattr(options, key) for key in site}
        lines = []
        for key, value in given.items():
            if value is not None and value is not False:
                text = "" if value is True else f"={for_sbatch(str(value))}"
                lines.append(f"--{key.replace('_', '-')}{text}")
        lines += options.extra_directives or ()  # of two, the last counts
        return "\n".join(f"#SBATCH {line}" for line in lines)


class JobEach(Scheduler):
    """A scheduler of which a sweep takes a job for each run."""

    def directives(self, job: Job, tasks: Sequence[int]) -> str:
        """Return what a run asks for, after refusing what only SLURM has."""
        options, layout = job.options, job.layout
        self._refuse(options, "qos", "constraint", "mem_per_cpu", "array_limit")
        if layout.elastic:
            raise InputError(f"job.nodes is {options.nodes}; {self.title} takes a whole number")
        if (options.gpus_per_node or options.mem) and not layout.nodes:
            raise InputError(
                f"job.nodes is missing, over which {self.title} lays job.gpus_per_node and job.mem"
            )
        if not str(options.gpus_per_node).isdigit():
            given = excerpt(options.gpus_per_node)
            raise InputError(f"job.gpus_per_node is {given}; {self.title} takes a number")
        output = job.runs[tasks[0]].directory / "job" / f"{self.submission[0]}.out"
        plain = {"job.name": job.name, "--output": output}
        plain |= {f"job.{name}": getattr(options, name) for name in ("partition", "account", "mem")}
        for name, value in plain.items():
            if value is not None and not PLAIN.fullmatch(str(value)):
                raise InputError(f"{name} is {excerpt(str(value))}, which {self.title} cannot read")
        lines = [*self.asked(job, output), *(options.extra_directives or ())]
        return "\n".join(f"{self.directive} {line}" for line in lines)

    @abstractmethod
    def asked(self, job: Job, output: Path) -> Iterator[str]:
        """Yield the options of the command of submission, a line each."""

    def _refuse(self, options: JobOptions, *names: str) -> None:
        for name in names:
            if getattr(options, name):
                raise InputError(
                    f"job.{name} is not for {self.title}; what is like it goes in "
                    "job.extra_directives"
                )


class Pbs(JobEach):
    """PBS Professional and OpenPBS."""

    title, directive = "PBS", "#PBS"
    submission, cancellation = ("qsub",), ("qdel",)
    number, over = r"^\d+", "Unknown Job Id|Job has finished"
    place = 'job=$PBS_JOBID nodes=$(sort -u "$PBS_NODEFILE" | paste -sd,)'
    states: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys("QHWT", "PENDING"),
        **dict.fromkeys("RESUB", "RUNNING"),
        **dict.fromkeys("FXM", "ENDED"),
    }

    def questions(self, jobs: Sequence[str]) -> Sequence[str]:
        """Ask for finished jobs as well."""
        return ["qstat", "-x", "-f", *jobs]

    def answers(self, said: str) -> Iterator[tuple[str, str, str]]:
        """Yield the jobs of a full report."""
        for part in re.split(r"^Job Id: ", said, flags=re.MULTILINE)[1:]:
            known = dict(re.findall(r"^    (\w+) = (.*)", part, re.MULTILINE))
            yield part.partition(".")[0], known.get("job_state", ""), known.get("comment", "")

    def asked(self, job: Job, output: Path) -> Iterator[str]:
        """Yield chunks of a node each, or of a rank where no nodes are given."""
        options, layout = job.options, job.layout
        each = layout.ranks_per_node or 1
        chunk = [layout.nodes or str(layout.ranks)]
        chunk += [f"ncpus={each * options.cpus_per_task}", f"mpiprocs={each}"]
        if options.gpus_per_node:
            chunk.append(f"ngpus={options.gpus_per_node}")
        if options.mem:
            amount = re.sub(r"(?<=\d)$", "M", str(options.mem).rstrip("bB"))
            chunk.append(f"mem={amount.lower()}b")
        minutes, rest = divmod(seconds(options), 60)
        yield f"-N {job.name}"
        yield from _given({"-q": options.partition, "-A": options.account})
        yield f"-l select={':'.join(chunk)}"
        yield f"-l place={'scatter' if layout.nodes else 'free'}{':excl' * options.exclusive}"
        yield f"-l walltime={minutes // 60:02}:{minutes % 60:02}:{rest:02}"
        yield f"-r {'y' if options.max_restarts else 'n'}"
        yield "-j oe"
        yield f"-o {output}"


class Flux(JobEach):
    """Flux, whose batch jobs are instances of Flux with ``flux run`` in them."""

    title, directive = "Flux", "# flux:"
    submission, cancellation = ("flux", "batch"), ("flux", "cancel")
    number, over = r"[ƒf]\w+", "unknown job|job is inactive"
    inside = ("--parent",)
    place = "job=$(flux getattr jobid) nodes=$(flux getattr hostlist)"
    states: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("DEPEND", "PRIORITY", "SCHED"), "PENDING"),
        **dict.fromkeys(("RUN", "CLEANUP"), "RUNNING"),
    }

    def job_in(self, said: str) -> str:
        """Return the identifier in letters of ASCII, as ``flux jobs`` is asked for it."""
        return "f" + str(super().job_in(said))[1:]

    def questions(self, jobs: Sequence[str]) -> Sequence[str]:
        """Ask for jobs that are over as well."""
        return ["flux", "jobs", "-a", "-n", "-o", "{id.f58plain}|{status}|{contextual_info}"]

    def test_only(self, script: str) -> str:
        """Let Flux read the directives."""
        answer = self._call("flux", "batch", "--dry-run", input=script)
        if answer.returncode:
            raise self._refusal(answer.stderr)
        return "Flux reads the script"

    def asked(self, job: Job, output: Path) -> Iterator[str]:
        """Yield slots of a node each, or of a rank where no nodes are given."""
        options, layout = job.options, job.layout
        self._refuse(options, "mem")
        each = layout.ranks_per_node or 1
        yield f"--job-name={job.name}"
        yield from _given({"--queue=": options.partition, "--bank=": options.account}, "")
        if layout.nodes:
            yield f"--nodes={layout.nodes}"
        yield f"--nslots={layout.nodes or layout.ranks}"
        yield f"--cores-per-slot={each * options.cpus_per_task}"
        if options.gpus_per_node:
            yield f"--gpus-per-slot={options.gpus_per_node}"
        if options.exclusive:
            yield "--exclusive"
        yield f"--time-limit={seconds(options)}s"
        yield f"--output={output}"


class Lsf(JobEach):
    """IBM Spectrum LSF."""

    title, directive = "LSF", "#BSUB"
    submission, cancellation = ("bsub",), ("bkill",)
    number, over = r"(?<=Job <)\d+", "is not found|already finished|No matching job"
    place = "job=$LSB_JOBID nodes=$LSB_MCPU_HOSTS"
    states: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("PEND", "PSUSP", "WAIT"), "PENDING"),
        **dict.fromkeys(("RUN", "USUSP", "SSUSP", "UNKWN", "ZOMBI"), "RUNNING"),
        **{"DONE": "COMPLETED", "EXIT": "FAILED"},
    }

    def questions(self, jobs: Sequence[str]) -> Sequence[str]:
        """Ask for jobs that are over as well."""
        return ["bjobs", "-a", "-noheader", "-o", "jobid stat delimiter='|'", *jobs]

    def asked(self, job: Job, output: Path) -> Iterator[str]:
        """Yield a slot for each rank; its limit is in minutes."""
        options, layout = job.options, job.layout
        self._refuse(options, "mem")
        yield f"-J {job.name}"
        yield from _given({"-q": options.partition, "-P": options.account})
        yield f"-n {layout.ranks}"
        if layout.nodes:
            yield f'-R "span[ptile={layout.ranks_per_node}]"'
        if options.cpus_per_task > 1:
            yield f'-R "affinity[core({options.cpus_per_task})]"'
        if options.gpus_per_node:
            yield f'-gpu "num={options.gpus_per_node}"'
        if options.exclusive:
            yield "-x"
        yield f"-W {-(-seconds(options) // 60)}"
        yield "-r" if options.max_restarts else "-rn"
        yield f"-oo {output}"


SCHEDULERS: dict[str, Scheduler] = {"slurm": Slurm(), "pbs": Pbs(), "flux": Flux(), "lsf": Lsf()}


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables that another job has set."""
    return {
        name: value
        for name, value in environment.items()
        if name in KEPT or not name.startswith(FOREIGN)
    }


def for_sbatch(text: str) -> str:
    """Return ``text`` quoted so that sbatch reads it literally from a directive."""
    if not text.isprintable():
        raise InputError(f"{text!r} cannot be in a directive; it must be one line of text")
    if PLAIN.fullmatch(text):
        return text
    escaped = re.sub(r'(["\\])', r"\\\1", text)
    return f'"{escaped}"'


def _given(options: Mapping[str, Any], between: str = " ") -> Iterator[str]:
    return (f"{name}{between}{value}" for name, value in options.items() if value is not None)


def _words(text: str) -> str:
    """What a command said, on one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "; ".join(re.sub(r"^\w+: (error: )?", "", line) for line in lines) or "it says nothing"
