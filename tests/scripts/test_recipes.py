"""Recipes of Spack and EasyBuild ask for what pyproject.toml asks for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import mpifed

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NEEDED = [Requirement(text) for text in PROJECT["project"]["dependencies"]]
EASYBUILD = ROOT / "packaging" / "easybuild" / f"mpifed-{mpifed.__version__}-foss-2024a.eb"


def spack(requirement: Requirement) -> str:
    """The same as Spack writes it: 2.6:2 for at least 2.6 and below 3."""
    bounds = {each.operator: each.version for each in requirement.specifier}
    last = str(int(bounds["<"]) - 1) if "<" in bounds else ""
    return f"py-{requirement.name.lower()}@{bounds['>=']}:{last}"


def test_spack_asks_for_what_the_project_asks_for() -> None:
    text = (ROOT / "packaging" / "spack" / "package.py").read_text()
    found = set(re.findall(r'depends_on\("([^"]+)", type=\("build", "run"\)\)', text))
    python = PROJECT["project"]["requires-python"].removeprefix(">=")
    assert found == {f"python@{python}:", *map(spack, NEEDED)}
    (setuptools,) = map(Requirement, PROJECT["build-system"]["requires"])
    assert f'depends_on("{spack(setuptools)}", type="build")' in text
    assert f'version("{mpifed.__version__}")' in text


@pytest.mark.parametrize("requirement", NEEDED, ids=lambda each: each.name)
def test_easybuild_has_what_the_project_asks_for(requirement: Requirement) -> None:
    recipe: dict = {}
    exec(compile(EASYBUILD.read_text(), EASYBUILD, "exec"), recipe)
    assert recipe["version"] == mpifed.__version__
    has = dict([*recipe["dependencies"], *recipe["exts_list"]])
    has |= dict(
        re.findall(
            r"(numpy|pandas|scipy|Jinja2|rich|threadpoolctl|annotated-types) ([\d.]+)",
            EASYBUILD.read_text(),
        )
    )
    has = {name.lower(): version for name, version in has.items()}
    name = {"torch": "pytorch"}.get(requirement.name.lower(), requirement.name.lower())
    assert Version(has[name]) in requirement.specifier
