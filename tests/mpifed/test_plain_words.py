"""Inputs that were misread or reported by a consequence are refused by their cause."""

from __future__ import annotations

import h5py
import pytest
from commands import TINY, call

from mpifed.__main__ import main
from mpifed.config.configuration import parse_overrides, resolve
from mpifed.data.federated_file import read_contents
from mpifed.data.sources.sine import Sine
from mpifed.errors import InputError
from mpifed.mpi.communicator import Alone


@pytest.mark.parametrize(
    ("written", "read"),
    [("1_0", "10"), ("010", "8"), ("0b11", "3"), ("1_0.5", "10.5")],
)
def test_a_number_that_only_yaml_1_1_reads_is_refused_with_what_was_read(written, read):
    with pytest.raises(InputError, match=f"seed: .*{written} would be read as the number {read};"):
        parse_overrides([f"seed={written}"])
    assert parse_overrides([f"seed='{written}'"]) == {"seed": written}


@pytest.mark.parametrize(
    "written", ["0", "-3", "+4", "0x10", "0.5", "1.5e-3", "-1.e+4", ".5", ".inf"]
)
def test_numbers_that_mean_the_same_everywhere_are_not(written):
    value = parse_overrides([f"seed={written}"])["seed"]
    assert value == (16 if written == "0x10" else float(written.replace(".inf", "inf")))


def test_an_external_link_is_named_as_the_cause(tmp_path):
    with h5py.File(tmp_path / "linked.h5", "w") as file:
        file["x"] = h5py.ExternalLink("/etc/passwd", "/")
    words = "cannot be read: /x is a link to another file, which is refused"
    with pytest.raises(InputError, match=words):
        read_contents(tmp_path / "linked.h5")


@pytest.mark.parametrize("mode", [[], ["--dry-run"]])
def test_a_model_that_fails_for_the_data_is_named(mode, tmp_path, capfd):
    words = [*TINY, "model={name: 'os:system'}", *mode, "--output", tmp_path / "run"]
    done = call(words, capfd)
    assert done.code == 1 and "TypeError" in done.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("key", ["schedule", "topology", "weights"])
def test_an_empty_mapping_names_nothing(key):
    with pytest.raises(InputError, match=f"exchange.{key} is {{}}; it must be a name, or a map"):
        resolve({"exchange": {"name": "gossip", key: {}}})


@pytest.mark.parametrize(("clients", "split"), [(20, 6), (50, 30), (100, 30), (2, 0)])
def test_the_families_of_sine_follow_the_number_of_clients(clients, split):
    assert Sine(clients, 0, Alone()).split == split


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["sweep"], "mpifed.sweep"),
        (["report"], "mpifed.report"),
        (["jobs"], "mpifed.jobs"),
        (["theory"], "mpifed.theory"),
        (["reproduce"], "mpifed.reproduce"),
        (["topologies"], "topologies"),
        (["data"], "mpifed.data"),
        (["data", "digits", "--wrong"], "mpifed.data"),
    ],
)
def test_subcommands_ask_for_arguments_in_one_form(words, command, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"{command}: ")
    assert "; --help shows how the command is used" in line or "--wrong" in line
    assert "python -m" not in line
    assert list(tmp_path.iterdir()) == []


def test_help_is_a_word_too(capfd):
    assert main(["--help"]) == 0
    listed = capfd.readouterr().out
    assert main(["help"]) == 0
    assert capfd.readouterr().out == listed
    with pytest.raises(SystemExit):
        main(["help", "report"])
    assert "usage: python -m mpifed.report" in capfd.readouterr().out
