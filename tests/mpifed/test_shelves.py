"""The machine knows no item of a shelf: without nearly all of them it computes the same numbers."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mpifed
from mpifed.components.tables import BY_MODEL, TABLES
from mpifed.config.configuration import Configuration
from mpifed.config.requirements import REQUIREMENTS, check_keys
from mpifed.testing import find_item
from topologies import FAMILIES, SCHEDULES, WEIGHTS

ROOT = Path(__file__).parents[2]

SHELVES = (
    "mpifed/components/tables.py",
    "topologies/graphs/build.py",
    "topologies/weights/table.py",
    "topologies/schedules/table.py",
)
"""Files with tables of items."""

ITEMS = {"fedavg", "fedem", "local", "synthetic", "linear", "erdos_renyi", "fmmc"}
NEUTRAL = {"none", "mean", "sgd", "static", "arrays"}
"""What a run has that asks for nothing of a kind, and the data that a Python program passes."""

SEAMS = ("method", "message", "dataset", "model", "surrogate")
GRAPHS = {"topologies.graphs.files", "topologies.links.overlays"}
"""Modules in which items stand beside what graphs are read and analysed with."""

IN_THE_COPY = """
import importlib, pkgutil, sys
import mpifed, topologies
assert mpifed.__file__.startswith(sys.argv[1])
print(*digests(sys.argv[2]))
for package in (mpifed, topologies):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
"""


def digests(output):
    """Return those of small runs of the main job under a server and by gossip."""
    return [
        mpifed.run(
            experiment,
            output=f"{output}/{experiment}/{algorithm}",
            algorithm=algorithm,
            clients=4,
            rounds=2,
            data={"name": "synthetic", "n_test": 20},
        ).summary["state_digest"]
        for experiment in ("synthetic-fedem", "synthetic-gossip")
        for algorithm in ("fedem", "fedavg", "local")
    ]


def test_keys_of_what_shipped_components_require_are_declared() -> None:
    check_keys("the table", REQUIREMENTS, Configuration())
    components = [(kind, name) for kind, table in TABLES.items() for name in table]
    components += [("algorithm", name) for name in BY_MODEL.values()]
    required = 0
    for kind, name in components:
        requires = getattr(find_item(kind, name), "requires", ())
        required += len(requires)
        check_keys(name, requires, Configuration())
    assert required > 30


@pytest.mark.slow
def test_main_job_needs_no_other_item_of_any_shelf(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    for package in ("mpifed", "topologies"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, bare / package, ignore=ignored)
    empty_shelves(bare)
    program = inspect.getsource(digests) + IN_THE_COPY
    done = subprocess.run(
        [sys.executable, "-c", program, str(bare), str(tmp_path / "bare_runs")],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(bare)},
        cwd=bare,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == digests(tmp_path / "runs")


def empty_shelves(packages: Path) -> None:
    """Delete each item but a few: its file, or its part of one that has others, and its line."""
    listed = [*items()]
    stays = {target for name, target in listed if name in ITEMS | NEUTRAL}
    names = {name for name, _ in listed} - ITEMS - NEUTRAL
    exported = set(exports())
    goes = {target for _, target in listed} - stays - exported
    files: dict[Path, set[str]] = {}
    for module, _, item in (target.partition(":") for target in goes):
        files.setdefault(packages / f"{module.replace('.', '/')}.py", set()).add(item)
    modules = {target.partition(":")[0] for target in goes}
    modules -= {target.partition(":")[0] for target in stays | exported} | GRAPHS
    for path, defined in files.items():
        module = ".".join(path.relative_to(packages).with_suffix("").parts)
        if module in modules:
            path.unlink()
        else:
            rewrite(path, Definitions(defined))
    for table in SHELVES:
        rewrite(packages / table, Lines(names, goes, modules))


def items() -> Iterator[tuple[str, str]]:
    """Yield each name of a shelf with what it stands for, as ``module:object``."""
    for kind, table in TABLES.items():
        if kind != "exchange":
            yield from table.items()
    for name, entry in [*FAMILIES.items(), *WEIGHTS.items(), *SCHEDULES.items()]:
        for function in (entry.build, getattr(entry, "prepare", None)):
            if function is not None:
                yield name, f"{function.__module__}:{function.__qualname__}"


def exports() -> Iterator[str]:
    """Yield what the seams export with its base classes, as ``module:object``."""
    for seam in SEAMS:
        for value in vars(importlib.import_module(f"mpifed.{seam}")).values():
            for each in getattr(value, "__mro__", (value,)):
                if hasattr(each, "__module__") and hasattr(each, "__qualname__"):
                    yield f"{each.__module__}:{each.__qualname__}"


def rewrite(path: Path, transformer: ast.NodeTransformer) -> None:
    path.write_text(ast.unparse(transformer.visit(ast.parse(path.read_text()))))


class Definitions(ast.NodeTransformer):
    """Deletes functions and classes of a module."""

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST | None:
        return None if node.name in self.names else node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST | None:
        return None if node.name in self.names else node


class Lines(ast.NodeTransformer):
    """Deletes lines of tables, and what is imported for them alone."""

    def __init__(self, names: set[str], targets: set[str], modules: set[str]) -> None:
        self.names, self.targets, self.modules = names, targets, modules

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        pairs = [
            (key, value)
            for key, value in zip(node.keys, node.values, strict=True)
            if not (isinstance(key, ast.Constant) and key.value in self.names)
        ]
        return ast.Dict([key for key, _ in pairs], [value for _, value in pairs])

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        node.names = [
            each
            for each in node.names
            if f"{node.module}:{each.name}" not in self.targets
            and f"{node.module}.{each.name}" not in self.modules
        ]
        return node if node.names else None
