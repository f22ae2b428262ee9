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

READ = (
    *("conda/recipe.yaml", "apptainer/mpifed.def", "packaging/spack/package.py"),
    *("codemeta.json", "CITATION.cff", "CHANGELOG.md", "mpifed/__init__.py"),
)


def test_metadata_have_the_version_of_the_package() -> None:
    code = json.loads((ROOT / "codemeta.json").read_text())
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert code["version"] == citation["version"] == mpifed.__version__
    assert code["description"] == PROJECT["description"]
    needed = {Requirement(line).name for line in PROJECT["dependencies"]}
    assert set(code["softwareRequirements"]) <= needed
    assert PROJECT["requires-python"] in code["runtimePlatform"].replace(" ", "").lower()


def released(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """What ``scripts/release`` says in a copy of what it reads."""
    shutil.copytree(ROOT / "scripts", place / "scripts", dirs_exist_ok=True)
    for name in READ:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        if not (place / name).exists():
            shutil.copy(ROOT / name, place / name)
    shutil.copytree(ROOT / "packaging/easybuild", place / "packaging/easybuild", dirs_exist_ok=True)
    for command in (["init", "--quiet"], ["add", "."]):
        subprocess.run(["git", *command], cwd=place, check=True, timeout=30)
    return subprocess.run(
        [place / "scripts/release", *words], capture_output=True, text=True, timeout=30
    )


def test_a_release_that_is_not_ready_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    wrong = released(tmp_path, "--dry")
    assert wrong.returncode == 2 and "allowed: --dry-run" in wrong.stderr
    changed = released(tmp_path)
    assert changed.returncode == 2 and "has changes; commit them first" in changed.stderr
    who = ["-c", "user.name=one", "-c", "user.email=one@example.org"]
    subprocess.run(["git", *who, "commit", "-qm", "all"], cwd=tmp_path, check=True, timeout=30)
    log = tmp_path / "CHANGELOG.md"
    if f"## [{mpifed.__version__}] -" not in log.read_text():
        unnamed = released(tmp_path)
        assert unnamed.returncode == 2 and "CHANGELOG.md has no section" in unnamed.stderr
    (tmp_path / "codemeta.json").write_text("{}")
    other = released(tmp_path, "--dry-run")
    assert other.returncode == 2
    assert f"codemeta.json does not have the version {mpifed.__version__}" in other.stderr
    assert not (tmp_path / "dist").exists()


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
