"""Templates of own components: what is written works as it is, and bad input writes nothing."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mpifed.testing import run_command

KINDS = (
    *("method", "model", "data", "schedule", "topology", "compressor", "attack"),
    *("server_optimizer", "loss"),
)


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_every_kind_of_the_help_is_tried(capsys) -> None:
    assert run_command(["new", "--help"]) == 0
    listed = capsys.readouterr().out.partition("kinds:\n")[2].partition("\n\n")[0]
    assert [line.split()[0] for line in listed.splitlines()] == [*KINDS]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_imports_promised_pages(kind, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert run_command(["new", kind, "my_own"]) == 0
    written = "".join(path.read_text(encoding="utf-8") for path in tmp_path.glob("*.py"))
    promised = (Path(__file__).parents[2] / "docs" / "stability.md").read_text(encoding="utf-8")
    pages = re.findall(r"^from (mpifed\.\w+) import", written, re.MULTILINE)
    assert pages and [page for page in pages if f"`{page}`" not in promised] == []


@pytest.mark.parametrize("kind", KINDS)
def test_two_files_are_written_and_python_reads_them(kind, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # to which the command adds its directory
    assert run_command(["new", kind, "my_own"]) == 0
    assert files(tmp_path) == ["my_own.py", "test_my_own.py"]
    for name in files(tmp_path):
        text = (tmp_path / name).read_text()
        compile(text, name, "exec")
        assert "$" not in text and "my_own" in text
    said = capsys.readouterr().out
    assert "python -m mpifed.run" in said and "python -m pytest test_my_own.py" in said


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "loss"])
def test_what_is_written_passes_the_common_checks(kind, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert run_command(["new", kind, f"written_{kind}"]) == 0
    importlib.import_module(f"test_written_{kind}").test_it_passes_the_common_checks()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_runs_and_passes_its_test(kind, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # to which the command adds its directory
    assert run_command(["new", kind, "my_own"]) == 0
    (command,) = re.findall(r"python -m (mpifed\.run .*)", capsys.readouterr().out)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for words in (
        ["-m", *command.split(), "rounds=1", "--output", "run"],
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_own.py"],
    ):
        done = subprocess.run(
            [sys.executable, *words], capture_output=True, text=True, timeout=300, env=environment
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "run" / "DONE").exists()
