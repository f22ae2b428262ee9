"""The words that a shell completes, asked of the shell itself; see docs/install.md."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mpifed.completion.script import script

from mpifed.__main__ import SUBCOMMANDS, main
from mpifed.components.schema import options_of
from mpifed.components.tables import ALGORITHMS, MODELS
from mpifed.config.configuration import Configuration
from mpifed.config.experiments import experiment_names

PROGRAM = """
import sys
from mpifed.__main__ import main
assert main(["completion", "bash"]) == 0
assert "torch" not in sys.modules and "mpi4py" not in sys.modules
"""


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command prints, without torch."""
    words = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    path = tmp_path_factory.mktemp("completion") / "mpifed.bash"
    path.write_text(done.stdout)
    return path


ASK = """
source "$1"
shift
for line in "$@"; do
    COMP_LINE=$line COMP_POINT=${#line} COMPREPLY=()
    _mpifed
    printf '%s ' "${COMPREPLY[@]}"
    echo
done
"""


def completed(bash: Path, *lines: str, breaks: str = " \t\n=:") -> list[list[str]]:
    """What bash offers for each of some lines."""
    words = ["bash", "-c", f"COMP_WORDBREAKS=$'{breaks}'\n{ASK}", "ask", str(bash), *lines]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    return [line.split() for line in done.stdout.splitlines()]


def test_bash_offers_what_can_be_typed(bash: Path) -> None:
    lines = {
        "mpifed ": sorted(SUBCOMMANDS),
        "mpifed r": ["report", "reproduce", "retime", "run"],
        "mpifed run digits-f": ["digits-fedem"],
        "mpifed run --output digits=3 digits-f": ["digits-fedem"],
        "mpifed run --exp": ["--expect-ranks"],
        "mpifed run --track ": ["mlflow", "tensorboard", "wandb"],
        "mpifed run --list fedem": ["fedem"],
        "mpifed run algorithm=scaff": ["scaffnew", "scaffold"],
        "mpifed run algorithm.name=scaff": ["scaffnew", "scaffold"],
        "mpifed sweep algorithm=fedavg model=": sorted(MODELS),
        "mpifed run evaluation.ev": ["evaluation.every="],
        "mpifed run exchange=gossip exchange.topology=ri": ["ring"],
        "mpifed run exchange.topology.p": ["exchange.topology.p=", "exchange.topology.path="],
        "mpifed run placement=": ["balanced", "contiguous", "partitioned"],
        "mpifed run rounds=2 no_such=": [],
        "mpifed jobs s": ["status", "stop", "submit"],
        "mpifed jobs render digits-f": ["digits-fedem"],
        "mpifed jobs submit job.ran": ["job.ranks=", "job.ranks_per_node="],
        "mpifed run job.ran": [],
        "mpifed new s": ["schedule"],
        "mpifed topologies gos": ["gossip"],
        "mpifed topologies plot --kin": ["--kind"],
        "mpifed reproduce fl": ["flix"],
        "mpifed data digi": ["digits"],
        "mpifed completion ": ["bash", "zsh"],
        "mpifed report runs": [],
        "mpifed report --for": ["--format"],
        "mpifed watch --onc": ["--once"],
    }
    found = completed(bash, *lines)
    for line, given in zip(lines, found, strict=True):
        assert sorted(given) == sorted(lines[line]), line
    (offered,) = completed(bash, "mpifed run ")
    assert {*experiment_names(), "rounds=", "local.lr=", "algorithm=", "participation="} <= {
        *offered
    }


def test_options_are_those_of_the_component_that_is_named(bash: Path) -> None:
    lines = ["algorithm=ditto algorithm.", "algorithm.", "algorithm.name=ditto model=m model."]
    of_ditto, of_all, of_models = completed(bash, *(f"mpifed run {line}" for line in lines))
    assert of_ditto and set(of_ditto) < set(of_all)
    assert "algorithm.n_components=" in of_all and "algorithm.n_components=" not in of_ditto
    assert "model.hidden=" in of_models  # m is no model, so all are offered


def test_where_equals_is_no_end_of_a_word_the_whole_word_is_replaced(bash: Path) -> None:
    given = completed(bash, "mpifed run algorithm=fedav", "mpifed run local.mom", breaks=" \\t\\n")
    assert given == [["algorithm=fedavg", "algorithm=fedavg_ft"], ["local.momentum="]]


def test_every_algorithm_and_every_key_is_offered(bash: Path) -> None:
    (given,) = completed(bash, "mpifed run algorithm=")
    assert sorted(given) == sorted(ALGORITHMS)
    (keys,) = completed(bash, "mpifed run exchange=server ")
    outer = {key.rstrip("=").partition(".")[0] for key in keys if key.endswith("=")}
    assert outer == set(options_of(Configuration))


def test_other_shells_are_refused(capfd) -> None:
    assert main(["completion", "fish"]) == 2
    said = capfd.readouterr()
    assert said.out == "" and "the shell is 'fish'; allowed: bash, zsh" in said.err


def test_the_script_is_sound_bash(bash: Path) -> None:
    subprocess.run(["bash", "-n", str(bash)], check=True, timeout=20)
    beside = Path(sys.executable).with_name("shellcheck")
    shellcheck = str(beside) if beside.exists() else shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    words = [shellcheck, "-s", "bash", "-e", "SC2119,SC2120", str(bash)]
    subprocess.run(words, check=True, timeout=60)


@pytest.mark.slow
def test_zsh_completes_in_a_terminal(tmp_path: Path) -> None:
    zsh = shutil.which("zsh")
    if zsh is None:
        pytest.skip("zsh is not installed")
    (tmp_path / "_mpifed").write_text(script("zsh"))
    typed = {
        "mpifed swe": "mpifed sweep ",
        "mpifed run digits-f": "mpifed run digits-fedem ",
        "mpifed run local.mom": "mpifed run local.momentum=",
        "mpifed run algorithm=fedbab": "mpifed run algorithm=fedbabu ",
        "mpifed run --trac": "mpifed run --track ",
        "mpifed run data=fil": "mpifed run data=file.npz",
    }
    (tmp_path / "file.npz").touch()
    setting = "autoload -Uz compinit; compinit -u -D; stty cols 250; PS1='ready> '"
    first = f"fpath=({tmp_path} $fpath); {setting}\n"
    process, ours = pty.fork()
    if not process:
        os.chdir(tmp_path)
        os.execve(zsh, ["zsh", "-f", "-i"], {**os.environ, "TERM": "dumb", "HOME": str(tmp_path)})
    try:
        os.write(ours, first.encode())
        _until(ours, "\rready> ")
        for start, expected in typed.items():
            # Completed, then made the text that a command prints.
            os.write(ours, f"{start}\t".encode())
            time.sleep(0.5)
            os.write(ours, b"\x05]]'\x01print -r -- '[[\n")
            said = _until(ours, r"\n\[\[mpifed.*\]\]\r?\n")
            assert re.findall(r"\n\[\[(.*)\]\]", said)[-1] == expected
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, 9)
        os.waitpid(process, 0)
        os.close(ours)


def _until(terminal: int, pattern: str, seconds: float = 30) -> str:
    """What comes from a terminal until it matches."""
    text, deadline = "", time.monotonic() + seconds
    while not re.search(pattern, text):
        ready, _, _ = select.select([terminal], [], [], max(0, deadline - time.monotonic()))
        assert ready, f"no {pattern} in {text!r}"
        text += os.read(terminal, 4096).decode(errors="replace")
    return text
