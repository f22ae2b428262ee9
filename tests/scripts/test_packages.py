"""The conda recipe and the Apptainer definition, as far as that needs neither conda nor a build."""

from __future__ import annotations

import tomllib

import jinja2
import yaml
from distributions import ROOT
from packaging.requirements import Requirement

import mpifed

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONDA = {"pytorch": "torch", "matplotlib-base": "matplotlib"}
"""Packages that have another name there than on PyPI."""


def recipe() -> dict:
    """The recipe with the values of its expressions, as rattler-build renders it."""
    text = (ROOT / "packaging" / "conda" / "recipe.yaml").read_text()
    expressions = jinja2.Environment(
        variable_start_string="${{", variable_end_string="}}", undefined=jinja2.StrictUndefined
    )
    known = yaml.safe_load(text)["context"] | {"PYTHON": "python"}
    return yaml.safe_load(expressions.from_string(text).render(known))


def test_the_conda_recipe_has_the_dependencies_of_the_package() -> None:
    made = recipe()
    assert str(made["package"]["version"]) == mpifed.__version__
    assert made["package"]["name"] == PROJECT["name"]
    known = {}
    for line in made["requirements"]["run"]:
        name, _, version = line.partition(" ")
        if not name.startswith("__"):  # a virtual package, which says what system there is
            known[CONDA.get(name, name)] = Requirement(f"x{version}").specifier
    python = Requirement(f"x{PROJECT['requires-python']}").specifier
    assert known.pop("python") == python
    wanted = map(Requirement, PROJECT["dependencies"])
    assert known == {each.name.lower(): each.specifier for each in wanted}
    entries = [f"{name} = {target}" for name, target in PROJECT["scripts"].items()]
    assert made["build"]["python"]["entry_points"] == entries
    assert made["build"]["noarch"] == "python"
    assert made["about"]["license"] == PROJECT["license"]
    assert made["about"]["summary"] == PROJECT["description"]
    source = ROOT / "packaging" / "conda" / made["source"]["path"]
    assert (source / "pyproject.toml").is_file()
    assert (source / made["about"]["license_file"]).is_file()
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    host = {line.replace(" ", "") for line in made["requirements"]["host"]}
    assert set(build) <= host


def test_the_change_log_and_the_package_name_one_version() -> None:
    newest = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1]
    assert newest.startswith("[Unreleased]") and mpifed.__version__ in newest.split("\n### ")[0]
