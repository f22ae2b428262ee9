"""What commands say of wrong arguments: what was given, where, and what is allowed."""

from __future__ import annotations

import subprocess
import sys

import pytest
from commands import environment

from mpifed import launch, verify
from mpifed.__main__ import main
from mpifed.config.configuration import read_experiment, resolve, to_yaml

SAID = {
    "run --output file/x": "--output file/x cannot be made: ",
    "sweep seed=range(a)": "seed is 'range(a)'; a range has one to three whole numbers, as",
    "sweep seed=[0,1] --ranks x": "--ranks is 'x'; it must be a whole number, at least 1",
    "verify empty": "mpifed.verify: RUN is 'empty', which holds no finished run",
    "retime run": "no other network is named; it is said like network.latency=0.05",
    "retime run network.latency=1 --output file": "--output file is a file; it must be a directory",
    "topologies rng n=4": "COMMAND is 'rng'; did you mean 'show ring'? allowed: list, show, ",
    "watch run --every x": "--every is 'x'; it must be from 0.1 to 3600 seconds",
    "theory variance run": "RUN_DIR is 'run', a run of 'fedem'; it must be one of: flix",
}


def called(words: list[str]) -> int:
    """Call ``mpifed`` in this process, without the guard that some commands have."""
    unguarded = {"run": launch.main, "verify": verify.verified}
    return unguarded[words[0]](words[1:]) if words[0] in unguarded else main(words)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A finished run as far as names tell, an empty directory, and a file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "round-000200.h5").touch()
    (tmp_path / "run" / "config.yaml").write_text(
        to_yaml(resolve(read_experiment("synthetic-fedem")))
    )
    (tmp_path / "run" / "DONE").touch()
    rows = "round,simulated_seconds\n0,\n"
    (tmp_path / "run" / "metrics.csv").write_text(rows)
    return tmp_path


@pytest.mark.parametrize("words", SAID)
def test_it_is_said_in_a_sentence(words, folder, capfd):
    before = sorted(folder.rglob("*"))
    given = [word.strip("'") for word in words.split()]
    assert called(given) == 2
    out, line = capfd.readouterr()
    assert out == ""
    assert SAID[words] in line, line
    assert line.count("\n") == 1
    assert sorted(folder.rglob("*")) == before


def test_another_number_of_ranks_is_refused_without_torch(tmp_path):
    program = (
        "import sys; from mpifed.launch import main\n"
        "print(main(['--expect-ranks', '3']), 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
        cwd=tmp_path,
    )
    assert done.stdout == "2 False\n", done
    assert "--expect-ranks says 3, but MPI started 1" in done.stderr
    assert list(tmp_path.iterdir()) == []
