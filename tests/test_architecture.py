"""Imports run downwards only; docs/architecture.md draws every module."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parents[1]

FLOORS = (
    {"topologies"},
    {"errors"},
    {"random", "state"},
    {"io"},
    {"results"},
    {"command", "components", "trackers", "watchdog"},
    {"mpi", "tracking"},
    {"data"},
    {"dataset"},
    {"federation", "models"},
    {"sources", "local", "checkpoint", "exchange", "optimal_transport"},
    {"method", "message", "model", "surrogate"},
    {"config", "surrogates"},
    {"aggregators", "corrections"},
    {"algorithms", "new", "report"},
    {"training"},
    {"notebook", "sweep"},
    {"api", "jobs"},
    {"mpifed"},
    {"launch", "reproduce"},
    {"cite", "retime", "test", "verify", "__main__"},
    {"run", "testing"},
)
"""The rooms (folders and root modules of ``mpifed``, and ``topologies``), from the ground up."""

SHELVES = {"aggregators": "message", "corrections": "message", "sources": "dataset"}
"""Rooms of items, inside others, and the page that items are written with."""


def modules() -> dict[str, Path]:
    found = {}
    for package in ("mpifed", "topologies"):
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules among ``known`` that a file imports anywhere, also only for types."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = {f"{module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else module for name in names}
    return found & known.keys()


def packages_of(path: Path) -> set[str]:
    """The packages that a file imports anywhere."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    taken = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in plain | taken}


def room_of(module: str) -> str:
    top, *rest = module.split(".")
    if len(rest) > 1 and rest[1] in SHELVES:
        return rest[1]
    return rest[0] if top == "mpifed" and rest else top


@pytest.fixture(scope="module")
def arrows() -> nx.DiGraph:
    """Every module, with an arrow to each that it imports."""
    known = modules()
    graph = nx.DiGraph()
    graph.add_nodes_from(known)
    graph.add_edges_from((name, other) for name in known for other in imported(known[name], known))
    return graph


def test_every_room_has_a_floor(arrows):
    assert {room_of(name) for name in arrows} == set().union(*FLOORS)


def test_the_tree_of_the_page_has_every_room_and_its_modules(arrows):
    tree = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("```")[1]
    # Methods, sources and corrections have pages of their own.
    inside = [name.split(".") for name in arrows if name.count(".") < 3]
    assert {name[-1] for name in inside} - set(re.findall(r"\w+", tree)) == set()
    below = [*ROOT.glob("[mt]*/**/"), *ROOT.glob("scripts/*/")]
    folders = {folder.name for folder in [*ROOT.iterdir(), *below]}
    assert set(re.findall(r"(\w+)/", tree)) - folders == set()


def test_the_page_says_where_is_what():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("## Where is what")[2].partition("\n## ")[0]
    rows = [re.findall(r"`([^`]+)`", line.partition(" | ")[2]) for line in table.splitlines()[4:]]
    rows = [words for words in rows if words]
    assert len(rows) >= 10
    for *paths, name in rows:
        texts = [(ROOT / path).read_text(encoding="utf-8") for path in paths]
        assert re.search(rf"^(class |def )?{name}\b", "\n".join(texts), re.MULTILINE), name


def test_no_arrow_runs_upwards_or_level(arrows):
    floor = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}
    wrong = [
        f"{importer} -> {other}"
        for importer, other in arrows.edges
        if room_of(importer) != room_of(other) and floor[room_of(importer)] <= floor[room_of(other)]
    ]
    assert wrong == []


def test_items_import_their_page_alone(arrows):
    wrong = [
        f"{importer} -> {other}"
        for importer, other in arrows.edges
        if (room := room_of(importer)) in SHELVES
        and room_of(other) not in (room, SHELVES[room], "errors", "state")
        and other != "topologies"
    ]
    assert wrong == []


def test_no_modules_import_each_other_in_a_circle(arrows):
    circles = [sorted(c) for c in nx.strongly_connected_components(arrows) if len(c) > 1]
    assert circles == []


def test_mpi4py_is_imported_where_mpi_begins_and_is_used():
    found = [name for name, path in modules().items() if "mpi4py" in packages_of(path)]
    assert sorted(found) == ["mpifed.mpi.communicator", "mpifed.mpi.over_mpi4py"]


@pytest.mark.parametrize("room", ["algorithms", "local", "models", "surrogates"])
def test_what_a_client_computes_knows_no_ranks(arrows, room):
    wrong = [
        f"{importer} -> {other}"
        for importer, other in arrows.edges
        if room_of(importer) == room and room_of(other) == "mpi"
    ]
    assert wrong == []


def test_what_goes_on_in_rounds_reads_sections_alone(arrows):
    """A configuration becomes objects before the first round; these have its parts."""
    below = nx.descendants(arrows, "mpifed.training.engine") | {"mpifed.training.engine"}
    assert [name for name in below if arrows.has_edge(name, "mpifed.config.configuration")] == []
