"""What a release needs: one version everywhere, metadata, and what hosts of repositories read."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from distributions import ROOT
from packaging.requirements import Requirement

import mpifed

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_metadata_have_the_version_of_the_package() -> None:
    code = json.loads((ROOT / "codemeta.json").read_text())
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert code["version"] == citation["version"] == mpifed.__version__
    assert code["description"] == PROJECT["description"]
    needed = {Requirement(line).name for line in PROJECT["dependencies"]}
    assert set(code["softwareRequirements"]) <= needed
    assert PROJECT["requires-python"] in code["runtimePlatform"].replace(" ", "").lower()


def test_a_release_that_is_not_ready_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    for name in ("scripts", "packaging"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / "mpifed").mkdir()
    for name in ("codemeta.json", "CITATION.cff", "CHANGELOG.md", "mpifed/__init__.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True, timeout=30)

    def refused(*words: str) -> str:
        command = [tmp_path / "scripts/release", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert done.returncode == 2 and not (tmp_path / "dist").exists()
        return done.stderr

    assert "--dry-run" in refused("--dry")
    assert "changes" in refused()
    (tmp_path / "codemeta.json").write_text("{}")
    assert re.search(rf"codemeta\.json.*{re.escape(mpifed.__version__)}", refused("--dry-run"))


@pytest.mark.parametrize("path", sorted(ROOT.glob(".github/**/*.yml")), ids=lambda path: path.name)
def test_files_of_the_host_are_read_and_call_scripts_that_are_there(path: Path) -> None:
    found = yaml.safe_load(path.read_text())
    for job in found.get("jobs", {}).values():
        commands = [step["run"] for step in job["steps"] if "run" in step]
        assert commands and job["timeout-minutes"]
        for script in re.findall(r"scripts/\w+", " ".join(commands)):
            assert (ROOT / script).is_file()
    if path.name == "tests.yml":
        matrix = found["jobs"]["tests"]["strategy"]["matrix"]
        versions = [line for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
        assert matrix["python"] == [line.rpartition(" ")[2] for line in versions]


def test_the_paper_cites_what_its_bibliography_has() -> None:
    text, entries = (ROOT / "paper.md").read_text(), (ROOT / "paper.bib").read_text()
    cited = set(re.findall(r"(?<![\w.])@(\w+)", text))
    assert cited == set(re.findall(r"^@\w+\{(\w+),", entries, re.MULTILINE))
