"""docs/data.md: every data set is there, its commands are configurations, its program runs."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from pathlib import Path

import numpy as np
import pytest

from mpifed.testing import run_command

TEXT = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^mpifed run (digits-fedem data\.name=.*)$", TEXT, re.MULTILINE)


def test_every_data_set_is_described(capsys: pytest.CaptureFixture[str]):
    assert run_command(["run", "--list", "datasets", "--json"]) == 0
    names = [each["name"] for each in json.loads(capsys.readouterr().out)]
    assert "digits" in names
    assert [name for name in names if f"`{name}`" not in TEXT] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_lack_the_files_alone(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MPIFED_DATA", raising=False)
    assert run_command(["run", *shlex.split(command), "--dry-run"]) == 2
    sentence = capsys.readouterr().err
    assert re.match(r"mpifed: data\.(raw|path) .* no ", sentence)


def test_there_is_a_command_for_each_published_and_own_kind():
    named = {re.search(r"data\.name=(\w+)", command)[1] for command in COMMANDS}
    assert named == {
        *("mnist", "emnist", "cifar10", "cifar100", "femnist", "leaf", "shakespeare", "omniglot"),
        *("parquet", "npz", "csv"),
    }


def test_the_program_on_own_arrays_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    programs = re.findall(r"```python\n(import mpifed\n.*?)```", TEXT, re.DOTALL)
    (program,) = (each for each in programs if "__main__" in each)
    assert len(program.splitlines()) < 20
    path = tmp_path / "own.py"
    path.write_text(program)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    found = np.array(capfd.readouterr().out.strip("[]\n ").split(), float)
    assert len(found) >= 1 and np.all((found >= 0) & (found <= 1))
