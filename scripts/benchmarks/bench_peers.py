"""mpifed beside other simulators of federated learning: the same FedAvg on the same samples.

``scripts/bench peers > LINES`` makes an environment for each peer (in MPIFED_PEERS, by default
/var/tmp/mpifed-peers, of the interpreter MPIFED_PYTHON) and measures all in turns;
``python scripts/benchmarks/bench_peers.py LINES`` writes those tables of docs/evidence/peers.md for
which there are lines. Peers are programs of the folder peers, which get samples, a workload and a
number of rounds; one that does not install is left out. A round's seconds are those of a long run
less those of a short one, over the rounds between, so that start and end do not count; CPU seconds
are of all processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench_figures import report
from bench_page import DOCS, read

HERE = Path(__file__).parent / "peers"
TURNS, ROUNDS = 3, (2, 22)
# What is installed for each peer beside the torch of mpifed's environment, and its program.
PEERS = {
    "bare loop": (None, "bare_loop.py"),
    "pfl-research": ("pfl[pytorch]", "pfl_research.py"),
    "Flower": ("flwr[simulation]", "flower.py"),
    "FedJAX": ("fedjax jax==0.4.25 jaxlib==0.4.25 dm-haiku==0.0.12 numpy<2", "fedjax_rounds.py"),
    "BlazeFL": ("blazefl tqdm numpy", "blazefl_rounds.py"),
}
JAX = "jax==0.10.2"
MPIFED = {"mpifed": 1, "mpifed, 2 ranks": 2}

HEAD = f"""# Compared with other simulators

The table compares FedAvg in several simulators: all clients take part in every round, with one
epoch of SGD on minibatches of 20. Compare CPU seconds, which are those of all processes in a round.
Start is the wall seconds outside the rounds. Flower has a worker of ray for each core; BlazeFL
trains one client after the other, and so does the bare loop, as in PFLlib. Accuracies after
{ROUNDS[1]} rounds show that the work is alike; each simulator draws its own minibatches and initial
models. `scripts/bench peers > LINES` and
`python scripts/benchmarks/bench_peers.py LINES` make the tables of this page; FedJAX and BlazeFL
install with `MPIFED_PYTHON=python3.12`.

| workload | simulator | version | CPU s | wall s | start, s | accuracy |
| --- | --- | --- | ---: | ---: | ---: | ---: |
"""

JAX_HEAD = """
## Compared with a program in JAX

`scripts/benchmarks/peers/jax_rounds.py` is what you could write instead, a page long: `scan` over
local steps, `vmap` over clients or `lax.map`, and `jit`. In a round each client, and each component
of FedEM, has an epoch of SGD in float32 on minibatches that are drawn anew. Both programs use one
core and the same samples, in turns. Figures are CPU seconds of a round, and ratios, medians of
several turns, without start and compilation; below 1.00, mpifed is the quicker.
`scripts/bench jax > LINES` and
`python scripts/benchmarks/bench_peers.py LINES` make this table.

| work | `vmap` | `map` | mpifed | times `vmap` | times `map` | times FedAvg |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""


def environment(name: str) -> tuple[Path, str]:
    """Return the interpreter of a peer, in an environment that is made if need be, and its
    version.
    """
    import torch

    package, _ = PEERS[name]
    if package is None:
        return Path(sys.executable), f"torch {torch.__version__}"
    return installed(name, *package.split(), f"torch=={torch.__version__.partition('+')[0]}")


def interpreter(name: str) -> Path:
    """Return where the interpreter of an environment is."""
    folder = Path(os.environ.get("MPIFED_PEERS", "/var/tmp/mpifed-peers"))
    return folder / name.lower().replace("-", "_") / "bin" / "python"


def installed(name: str, *packages: str) -> tuple[Path, str]:
    """Return the interpreter of an environment that has these packages, and the first's version."""
    python, distribution = interpreter(name), re.split(r"[\[=]", packages[0])[0]
    command = [python, "-c", f"import importlib.metadata as m; print(m.version({distribution!r}))"]
    if not python.exists() or subprocess.run(command, capture_output=True, check=False).returncode:
        source = os.environ.get("MPIFED_PYTHON", sys.executable)
        subprocess.run([source, "-m", "venv", "--clear", python.parents[1]], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    return python, subprocess.check_output(command, text=True).strip()


def environments(names: Sequence[str]) -> dict[str, tuple[Path, str]]:
    """Return interpreter and version of each, without those that do not install."""
    import mpifed

    found = {}
    for name in names:
        try:
            found[name] = (
                environment(name) if name in PEERS else (Path(sys.executable), mpifed.__version__)
            )
        except subprocess.CalledProcessError as error:
            print(f"bench: {name} is left out: {error}", file=sys.stderr)
    return found


def spent(command: Sequence[str | Path], folder: str) -> tuple[float, float, str]:
    """Return wall and CPU seconds of a command with all that it starts, and what it prints."""
    mark = f"MPIFED_BENCH={os.getpid()}.{time.monotonic_ns()}"
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    variables = dict([mark.split("=", 1), ("OMP_NUM_THREADS", "1"), ("PYTHONPATH", path)])
    began, before, seen = time.perf_counter(), _cpu(), Counter[str]()
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as complaints:
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | variables, stdout=said, stderr=complaints
        )
        while process.poll() is None:
            time.sleep(0.1)
            _look(mark.encode(), seen)
        wall = time.perf_counter() - began
        said.seek(0)
        complaints.seek(0)
        if process.returncode:
            raise RuntimeError(
                f"{command} ended with {process.returncode}: {complaints.read()[-2000:]}"
            )
        printed = said.read()
    # Processes that outlive it, as those of ray do for a moment, are this process's children now.
    limit = time.monotonic() + 30
    while time.monotonic() < limit and _waited():
        time.sleep(0.05)
    # The workers of ray are waited for by nobody: of these, what was seen last.
    return wall, max(_cpu() - before, sum(seen.values())), printed


def _look(mark: bytes, seen: Counter[str]) -> None:
    """Note the CPU seconds of all processes that have this mark in their environment."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if mark in (folder / "environ").read_bytes():
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                seen[folder.name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _waited() -> bool:
    """Wait for children that have ended; return whether there are others."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def trained(name: str, python: Path, samples: Path, rounds: int, folder: str) -> Any:
    """Return the seconds of a run and its test accuracy."""
    if name in PEERS:
        words = [python, HERE / PEERS[name][1], samples, samples.stem, str(rounds)]
        wall, cpu, said = spent(words, folder)
        return wall, cpu, float(re.findall(r"^accuracy ([\d.]+)", said, re.MULTILINE)[-1])
    from peers.workload import BATCH, RATE, SIZES

    run = Path(tempfile.mkdtemp(dir=folder)) / "run"
    words = [python, "-m", "mpifed.run", f"data={samples}", "data.client=client", "data.test=test"]
    words += [f"model=workload:{samples.stem}", "algorithm=fedavg", f"rounds={rounds}"]
    words += [f"clients={SIZES[samples.stem][0]}", f"local.lr={RATE}", f"local.batch_size={BATCH}"]
    words += ["local.epochs=1", "local.momentum=0", f"evaluation.every={rounds}"]
    words += [f"checkpoint.every={rounds}", "--quiet", "--output", str(run)]
    words += ["--ranks", "2"] if MPIFED[name] == 2 else []
    wall, cpu, _ = spent(words, folder)
    import mpifed

    return wall, cpu, mpifed.read(str(run)).summary["test_accuracy"]


def peers(
    turns: int = TURNS,
    names: Sequence[str] = (*MPIFED, *PEERS),
    rounds: tuple[int, int] = ROUNDS,
) -> None:
    """Measure all, in turns."""
    from peers.workload import SIZES, write

    set_child_subreaper = 36
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)
    made = environments(names)
    with tempfile.TemporaryDirectory(prefix="mpifed-bench-") as folder:
        for workload, (clients, samples) in SIZES.items():
            path = Path(folder) / f"{workload}.npz"
            write(workload, path)
            found: dict[str, list[Any]] = {name: [] for name in made}
            for _ in range(turns):
                for name, (python, _) in made.items():
                    short, long = (trained(name, python, path, k, folder) for k in rounds)
                    wall, cpu = ((long[k] - short[k]) / (rounds[1] - rounds[0]) for k in range(2))
                    found[name].append((wall, cpu, short[0] - rounds[0] * wall, long[2]))
            for name, (_, version) in made.items():
                wall, cpu, start, accuracy = map(statistics.median, zip(*found[name], strict=True))
                report(
                    name, round(cpu, 4), "CPU s a round", workload=workload, version=version,
                    wall=round(wall, 4), start=round(start, 2), accuracy=round(accuracy, 3),
                    all=[round(one[1], 4) for one in found[name]], clients=clients,
                    samples_each=samples,
                )  # fmt: skip


BENCHMARKS = {"peers": peers}


def page(figures: list[dict[str, Any]]) -> str:
    """Return the first part of the page: other simulators."""
    rows = []
    for one in figures:
        about = one["detail"]
        work = f"{about['workload']}, {about['clients']} clients × {about['samples_each']} samples"
        cells = [work, one["name"], about["version"], one["value"], about["wall"], about["start"]]
        rows.append(f"| {' | '.join(map(str, cells))} | {100 * about['accuracy']:.1f} % |\n")
    return HEAD + "".join(rows)


def table(figures: list[dict[str, Any]]) -> str:
    """Return the second part of the page: the program in JAX."""
    lines = [one["detail"] for one in figures]
    return JAX_HEAD + "".join(
        f"| {each['work']} | {each['vmap']:.4f} | {each['map']:.4f} | {each['mpifed']:.4f} | "
        f"{each['of_vmap']:.2f} | {each['of_map']:.2f} | {each.get('of_fedavg', '')} |\n"
        for each in lines
    )


def main(words: list[str]) -> int:
    """Write the page; return 2 where the lines cannot be used."""
    try:
        (lines,) = words
        figures = read(Path(lines))
        simulators = [one for one in figures if "workload" in one["detail"]]
        programs = [one for one in figures if "of_vmap" in one["detail"]]
        if not simulators and not programs:
            raise ValueError("it has no figure; scripts/bench jax peers prints them")
    except (OSError, ValueError) as error:
        print(f"bench_peers: {words}: {error}", file=sys.stderr)
        return 2
    path, mark = DOCS / "peers.md", "\n## "
    first, *others = path.read_text(encoding="utf-8").split(mark)
    first = page(simulators) if simulators else first
    second, *written = [mark + part for part in others] or [""]
    second = table(programs) if programs else second
    path.write_text("".join([first, second, *written]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
