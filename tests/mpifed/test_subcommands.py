"""``mpifed SUBCOMMAND``: the same as ``python -m mpifed.SUBCOMMAND``."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from commands import TINY, call, environment, launch

from mpifed.__main__ import main


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["rnu"],
            "'rnu'.*'run'.*data, jobs, ",
        ),
        (["--run"], "subcommand '--run'"),
        (["digits-fedem", "rounds=2"], "'digits-fedem'.*experiment"),
        (["my.yaml"], "run my.yaml'"),
        (["report"], "mpifed.report.*RUN_DIR"),
    ],
)
def test_what_is_misspelt_is_refused_with_the_closest(words, expected, capfd, monkeypatch):
    assert main(words) == 2
    said = capfd.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert re.search(expected, line)
    monkeypatch.setenv("PMI_RANK", "1")
    assert main(["rnu"]) == 2
    assert main(["--help"]) == 0
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_the_script_finds_components_in_the_working_directory_like_python(tmp_path):
    """A script has its own folder on the path of modules, and not the working directory."""
    script, words = tmp_path / "bin" / "mpifed", ["digits-fedem", "model=nets:net", "--dry-run"]
    script.parent.mkdir()
    script.write_text("import sys\nfrom mpifed.__main__ import main\nsys.exit(main())\n")
    (tmp_path / "nets.py").write_text("from mpifed.models.linear import linear as net\n")
    done = subprocess.run(
        [sys.executable, str(script), "run", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr


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
    assert re.search("--expect-ranks .*3.* 1", done.stderr)
    assert list(tmp_path.iterdir()) == []


UNKNOWN = {
    "exchange.topology=rign": "graph family 'rign'.*'ring'",
    "exchange.topology.q=3": "exchange.topology.*'erdos_renyi.q'",
    "exchange.weights=metropoli": "exchange.weights.*'metropoli'.*'metropolis_hastings'",
    "exchange.schedule.foo=3": "exchange.schedule.*'static.foo'",
}


@pytest.mark.parametrize("word", UNKNOWN)
def test_unknown_words_of_gossip_are_refused(word, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    outcome = call(["exchange=gossip", word], capfd)
    (line,) = outcome.messages
    assert outcome.code == 2 and re.search(UNKNOWN[word], line)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", ["report", "new", "data", "retime", "topologies list"])
def test_the_first_process_of_a_job_answers_alone(words, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    assert main(words.split()) == 0
    assert capfd.readouterr() == ("", "")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    main(words.split())
    assert capfd.readouterr() != ("", "")


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_ranks_print_what_ends_a_command_once(word):
    outcome = launch(2, word)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.count("usage: " if word == "--help" else "mpifed ") == 1


@pytest.mark.parametrize(
    ("words", "target"),
    [
        pytest.param(TINY, "full", marks=pytest.mark.slow),
        pytest.param(TINY, "pipe", marks=pytest.mark.slow),
        (["--list"], "full"),
        (["--help"], "pipe"),
    ],
)
def test_a_full_disk_is_told_once_and_a_reader_that_left_stops_no_run(words, target, tmp_path):
    read, pipe = os.pipe()
    os.close(read)
    with open(pipe, "wb") as left, open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "mpifed.run", *words, "--output", tmp_path / "run"],
            stdout=full if target == "full" else left, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    said = "mpifed: standard output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == ((1, said) if target == "full" else (0, ""))
    assert (tmp_path / "run" / "DONE").exists() == (words is TINY and target == "pipe")


@pytest.mark.slow
def test_other_numbers_of_ranks_are_refused(tmp_path):
    words = [*TINY, "--ranks", "2", "--expect-ranks", "3", "--output", str(tmp_path / "run")]
    done = subprocess.run([sys.executable, "-m", "mpifed.run", *words], env=environment())
    assert done.returncode == 2 and not (tmp_path / "run").exists()
