"""A user's object that its module does not have, found in the module's text before it is
imported.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path

from mpifed.components.registry import load
from mpifed.errors import InputError
from topologies.inputs import nearest

# Words of a text that may give its module other names than those that it binds.
MAKES_NAMES = {"__dict__", "__getattr__", "exec", "globals", "locals", "modules", "setattr", "vars"}

# Functions that are told the module's ``__name__`` and give it no name.
LEAVE_NAMES = {"getLogger"}

# ``package.module:object``, and not a graph with its options, as edges:links=0-1.
OWN = re.compile(r"[^\s:=]*:[^\s=]*")

DEFINED = (ast.FunctionDef, ast.ClassDef)


def refuse_absent(name: str, field: str) -> None:
    """Refuse a user's object whose module is nowhere or does not have it."""
    module, _, attribute = name.partition(":")
    if "/" in module or not module or not attribute or module in sys.modules:
        load(name, field)
        return
    first, *inner = module.split(".")
    if first in sys.modules:
        found = sys.modules[first].__spec__
    else:
        found = importlib.util.find_spec(first)
        if found is None or found.origin == "built-in":
            load(name, field)  # which imports nothing that may need torch
            return
    for part in inner:
        found = _within(found, part)
    tree = _text_of(found)
    bound = _bound_in(tree) if tree is not None else None
    if bound is None or _within(found, attribute) is not None:
        return
    if attribute not in bound:
        defined = [each for each, last in bound.items() if isinstance(last, DEFINED)]
        near = nearest(attribute, defined)
        hint = f"; did you mean '{near}'?" if near else ""
        raise InputError(f"{field} is '{name}', but '{module}' has no callable '{attribute}'{hint}")


def _within(package: ModuleSpec | None, name: str) -> ModuleSpec | None:
    """Find a module in a package, which is not imported; None where there is none."""
    places = package.submodule_search_locations if package is not None else None
    if package is None or places is None or not name.isidentifier():
        return None
    return PathFinder.find_spec(f"{package.name}.{name}", places)


def _text_of(spec: ModuleSpec | None) -> ast.Module | None:
    """Return what a module's source says; None where there is none that can be read."""
    if spec is None or not isinstance(spec.loader, SourceFileLoader) or spec.origin is None:
        return None
    try:
        return ast.parse(Path(spec.origin).read_bytes())
    except (OSError, SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def _bound_in(tree: ast.Module) -> dict[str, ast.AST] | None:
    """Return what binds each name of a module last; None where a text cannot tell."""
    for node in ast.walk(tree):
        word = getattr(node, "id", getattr(node, "attr", getattr(node, "name", None)))
        if word in MAKES_NAMES or (isinstance(node, ast.alias) and node.name == "*"):
            return None
        if isinstance(node, ast.Call) and _passes_module_on(node):
            return None
    within = {
        name: node for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names
    }
    return within | {name: node for node in _outer(tree) for name in _names_of(node)}


def _passes_module_on(call: ast.Call) -> bool:
    """Return whether a function may be told which module to give names to."""
    told = [*call.args, *(each.value for each in call.keywords)]
    called = getattr(call.func, "attr", getattr(call.func, "id", None))
    return called not in LEAVE_NAMES and any(
        isinstance(one, ast.Name) and one.id == "__name__" for one in told
    )


def _outer(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes of a module but those within functions and classes."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, (*DEFINED, ast.AsyncFunctionDef, ast.Lambda)):
            yield from _outer(child)


def _names_of(node: ast.AST) -> list[str]:
    """Return the names that a node binds."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [(each.asname or each.name).partition(".")[0] for each in node.names]
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    name = getattr(node, "name", None)  # of functions, classes, handlers and patterns
    return [name] if isinstance(name, str) and not isinstance(node, ast.alias) else []
