"""YAML as users write it: plain data, unique keys, and limited size, aliases included."""

from __future__ import annotations

import re
import sys
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from mpifed.errors import InputError, one_line

# Largest size of a YAML file, in bytes.
MOST = 8 << 20

# Largest number of values in a YAML text, each counted as often as an alias repeats it.
MOST_VALUES = 1_000_000

# Largest length of a number, in characters.
LONGEST_NUMBER = 1000


PLAIN_INT = re.compile(r"[-+]?(0|[1-9][0-9]*|0x[0-9a-fA-F]+)")
# Numbers that mean the same to every reader; 0x10 is 16 for all of them too.
PLAIN_FLOAT = re.compile(
    r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)

# The tag of the key ``<<``, which inserts the entries of other mappings.
MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """A loader of plain data that refuses repeated keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        written = [key for key, _ in node.value if key.tag != MERGE]
        keys = [self.construct_object(key, deep=True) for key in written]
        texts = [key for key in keys if isinstance(key, str)]
        if len(texts) > len(set(texts)):
            repeated = next(text for text in texts if texts.count(text) > 1)
            raise yaml.constructor.ConstructorError(
                None, None, f"the key '{repeated}' occurs twice", node.start_mark
            )
        return super().construct_mapping(node, deep)


def _number(loader: _Loader, node: yaml.ScalarNode) -> int | float | str:
    """Return a number; refuse one that YAML 1.1 alone reads: 1_0, 010, 0b1. 1:30 is a text."""
    if ":" in node.value:
        return str(node.value)
    whole = node.tag.endswith(":int")
    read = loader.construct_yaml_int if whole else loader.construct_yaml_float
    value: int | float = read(node)
    if not (PLAIN_INT if whole else PLAIN_FLOAT).fullmatch(node.value):
        problem = f"{node.value} would be read as the number {value}; write {value}"
        raise _refusal(f"{problem}, or '{node.value}' in quotes for a text", node)
    return value


for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _number)


def read_yaml(path: Path) -> Any:
    """Read a YAML file."""
    from topologies.inputs import read_bytes

    try:
        text = read_bytes(path, MOST).decode("utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not valid YAML: it is not text in UTF-8") from None
    try:
        return _parse(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        place = getattr(error, "problem_mark", None)
        where = f", line {place.line + 1}" if place else ""
        raise InputError(f"{path}{where} is not valid YAML{_reason(error)}") from None


def parse_value(text: str, key: str) -> Any:
    """Parse a YAML value."""
    try:
        return _parse(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        typed = one_line(repr(text), 100)
        raise InputError(f"{key}: {typed} is not a valid YAML value{_reason(error)}") from None


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return ": it is nested too deep"
    problem = getattr(error, "problem", None)
    return f": {one_line(str(problem), 200)}" if problem else ""


def _parse(text: str) -> Any:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _count(node, {}, set())
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _count(node: yaml.Node, known: dict[int, int], open_nodes: set[int]) -> int:
    """Return the number of values in ``node`` if written without aliases; refuse too many."""
    if isinstance(node, yaml.ScalarNode):
        if len(node.value) > LONGEST_NUMBER and node.tag.endswith((":int", ":float")):
            raise _refusal(f"a number of {len(node.value)} characters", node)
        return 1
    if id(node) in open_nodes:
        raise _refusal("a value that holds itself", node)
    if id(node) not in known:
        pairs = isinstance(node, yaml.MappingNode)
        inner = [part for pair in node.value for part in pair] if pairs else node.value
        open_nodes.add(id(node))
        known[id(node)] = 1 + sum(_count(part, known, open_nodes) for part in inner)
        open_nodes.discard(id(node))
    if known[id(node)] > MOST_VALUES:
        raise _refusal(f"its aliases make more than {MOST_VALUES:,} values", node)
    return known[id(node)]


def _refusal(problem: str, node: yaml.Node) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def as_text(value: Any) -> str:
    """Return a value as YAML on one line, as it is typed after ``key=``."""
    text = yaml.safe_dump(value, default_flow_style=True, width=sys.maxsize, sort_keys=False)
    return text.removesuffix("...\n").strip()
