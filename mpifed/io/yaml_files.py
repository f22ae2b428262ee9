"""YAML as users write it: plain data, unique keys, and limited size, aliases included."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from mpifed.errors import InputError, one_line
from mpifed.io.text import read_text
from topologies.errors import excerpt

# Largest size of a YAML file, in bytes.
MOST = 8 << 20

# Largest number of values in a YAML text, each counted as often as an alias repeats it.
MOST_VALUES = 1_000_000

# The tag of the key ``<<``, which inserts the entries of other mappings.
MERGE = "tag:yaml.org,2002:merge"


# Most collections within each other: libyaml crashes on ten thousands.
MOST_LEVELS = 100

# The longest line that libyaml can be told to write.
WIDEST = 2**31 - 1

FLOAT = "tag:yaml.org,2002:float"

# Numbers such as 1e-3, texts in YAML 1.1 that YAML 1.2 and JSON read as numbers.
EXPONENT = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$")

# libyaml reads and writes ten times as fast as Python, where PyYAML was built with it.
_FastestLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FastestDumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class Dumper(_FastestDumper):  # type: ignore[misc]
    """A dumper of plain data that quotes texts which the loader would read as numbers."""


class _Loader(_FastestLoader):  # type: ignore[misc]
    """A loader of plain data that refuses repeated keys, and reads 1:30 as a text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        written: set[str] = set()
        for key, _ in node.value:
            if key.tag != MERGE and str(key.value) in written:
                raise _refusal(f"the key '{key.value}' occurs twice", key)
            written.add(str(key.value))
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> Any:
        return node.value if ":" in node.value else super().construct_yaml_int(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
for _each in (_Loader, Dumper):
    _each.add_implicit_resolver(FLOAT, EXPONENT, list("-+.0123456789"))


def read_yaml(path: Path) -> Any:
    """Read a YAML file."""
    text = read_text(path, MOST)
    try:
        return _parse(text)
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise InputError(f"{path}{where} is not valid YAML{_reason(error)}") from None


def line_of(path: Path, key: str) -> int | None:
    """Return the line of a dotted key in a YAML file; None where it is not there."""
    node, line = yaml.compose(read_text(path, MOST), Loader=_Loader), None
    while key:
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        nodes = {str(name.value): (name, value) for name, value in pairs}
        first, _, inner = key.partition(".")
        key, inner = (first, inner) if first in nodes else (key, "")  # which may have dots
        if key not in nodes:
            return None
        line, node, key = nodes[key][0].start_mark.line + 1, nodes[key][1], inner
    return line


def parse_value(text: str, key: str) -> Any:
    """Parse a YAML value."""
    try:
        value = _parse(text)
    except (yaml.YAMLError, ValueError) as error:
        typed = one_line(repr(text), 100)
        raise InputError(f"{key}: {typed} is not a valid YAML value{_reason(error)}") from None
    for name in value if isinstance(value, dict) else ():
        option, colon, word = str(name).partition(":")
        if colon and value[name] is None:
            raise InputError(
                f"{key}: {excerpt(text)} has no space after a colon, as YAML needs one; did you "
                f"mean {key}.{option}={word}?"
            )
    return value


def _reason(error: Exception) -> str:
    problem = getattr(error, "problem", None)
    return f": {one_line(str(problem), 200)}" if problem else ""


def _parse(text: str) -> Any:
    level = 0
    for event in yaml.parse(text, Loader=_Loader):
        level += isinstance(event, yaml.CollectionStartEvent)
        level -= isinstance(event, yaml.CollectionEndEvent)
        if level > MOST_LEVELS:
            raise _refusal("it is nested too deep", event)
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _count(node, {}, set())
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _count(node: yaml.Node, counts: dict[int, int], open_nodes: set[int]) -> int:
    """Return the number of values in ``node`` if written without aliases; refuse too many."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) in open_nodes:
        raise _refusal("a value that holds itself", node)
    if id(node) not in counts:
        pairs = isinstance(node, yaml.MappingNode)
        inner = [part for pair in node.value for part in pair] if pairs else node.value
        open_nodes.add(id(node))
        counts[id(node)] = 1 + sum(_count(part, counts, open_nodes) for part in inner)
        open_nodes.discard(id(node))
    if counts[id(node)] > MOST_VALUES:
        raise _refusal(f"its aliases make more than {MOST_VALUES:,} values", node)
    return counts[id(node)]


def _refusal(problem: str, node: Any) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def as_text(value: Any) -> str:
    """Return a value as YAML on one line, as it is typed after ``key=``."""
    text = yaml.dump(value, Dumper=Dumper, default_flow_style=True, width=WIDEST, sort_keys=False)
    return text.removesuffix("...\n").strip()
