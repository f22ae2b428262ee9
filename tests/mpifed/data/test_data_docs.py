"""docs/data.md: every data set is there, its commands are configurations, its program runs."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import numpy as np
import pytest

from mpifed.components.tables import DATASETS
from mpifed.config.configuration import apply_overrides, resolve
from mpifed.config.experiments import parse_overrides, read_experiment

TEXT = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^mpifed run (digits-fedem data\.name=.*)$", TEXT, re.MULTILINE)


@pytest.mark.parametrize("name", DATASETS)
def test_every_data_set_is_described(name: str):
    assert f"`{name}`" in TEXT


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_configurations(command: str):
    experiment, *overrides = shlex.split(command)
    mapping = apply_overrides(read_experiment(experiment), parse_overrides(overrides))
    configuration = resolve(mapping)
    assert configuration.data.name in command
    keys = [word.partition("=")[0].partition(".") for word in overrides]
    given = {option for section, _, option in keys if section == "data"}
    assert given <= {"name", *configuration.data.options}


def test_there_is_a_command_for_each_published_and_own_kind():
    named = {re.search(r"data\.name=(\w+)", command)[1] for command in COMMANDS}
    assert named == {
        *("mnist", "emnist", "cifar10", "cifar100", "femnist", "leaf", "shakespeare", "omniglot"),
        *("parquet", "npz", "csv"),
    }


def test_the_program_on_own_arrays_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    (program,) = re.findall(r"```python\n(import mpifed\n.*?)```", TEXT, re.DOTALL)
    assert len(program.splitlines()) < 20
    path = tmp_path / "own.py"
    path.write_text(program)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    found = np.array(capfd.readouterr().out.strip("[]\n ").split(), float)
    assert len(found) >= 1 and np.all((found >= 0) & (found <= 1))
