"""Sources of the options of a job: site files, the section ``job`` of an experiment, arguments."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from mpifed.components.schema import check_options, shown
from mpifed.errors import InputError, closest
from mpifed.io.text import read_text
from mpifed.jobs.files import folder
from mpifed.jobs.options import JobOptions
from mpifed.jobs.reading import MOST


class _Loader(yaml.SafeLoader):
    """Plain data, no key twice, and texts that YAML 1.1 takes for numbers of base 60 or 8."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        given = [key for key, _ in node.value if key.tag != _MERGE]
        keys = [self.construct_object(key, deep=True) for key in given]
        repeated = next((key for key in keys if keys.count(key) > 1), None)
        if repeated is not None:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key '{repeated}' is given twice", node.start_mark
            )
        for key, value in node.value:
            if key.value == "environment" and isinstance(value, yaml.MappingNode):
                value.value = [(name, _as_written(text)) for name, text in value.value]
        return super().construct_mapping(node, deep)


def _as_written(node: yaml.Node) -> yaml.Node:
    """``node`` as the text of the file, unless it is null, a list or a mapping."""
    if isinstance(node, yaml.ScalarNode) and node.tag != _NULL:
        return yaml.ScalarNode(_TEXT, node.value, node.start_mark, node.end_mark, node.style)
    return node


_MERGE, _NULL, _TEXT = (f"tag:yaml.org,2002:{name}" for name in ("merge", "null", "str"))
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _NUMBERS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_NUMBERS[0], re.compile(r"-?(0|[1-9]\d*)$"), list("-0123456789"))


def parse(text: str, where: str) -> Any:
    """Parse YAML in which only plain decimals are numbers."""
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        problem = getattr(error, "problem", None)
        reason = f": {' '.join(str(problem).split())[:200]}" if problem else ""
        raise InputError(f"{where} is not valid YAML{reason}") from None


def read_site(name: str) -> dict[str, Any]:
    """Return the options in a site file."""
    path = folder("sites") / f"{name}.yaml"
    names = [file.stem for file in folder("sites").glob("*.yaml")]
    if name not in names:
        path = Path(name)
        if path.suffix not in (".yaml", ".yml"):
            raise InputError(
                f"--site is {shown(name)}; {closest(name, names)}, or the path of a .yaml file"
            )
    found = _mapping(parse(read_text(path, MOST), str(path)), str(path))
    try:
        check_options(JobOptions, found, "job")
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return found


def read_section(path: Path) -> dict[str, Any]:
    """Return the section ``job`` of the experiment file ``path``; empty if there is none."""
    whole = parse(read_text(path, MOST), str(path))
    section = whole.get("job") if isinstance(whole, Mapping) else None
    return _mapping(section, f"job in {path}") if section is not None else {}


def read_words(words: Sequence[str]) -> dict[str, Any]:
    """Return ``job.key=value`` arguments as options."""
    options: dict[str, Any] = {}
    for word in words:
        key, _, text = word.removeprefix("job.").partition("=")
        name, dot, variable = key.partition(".")
        value = parse(text, f"job.{key}")
        if dot and name == "environment":
            as_written = text.strip() if isinstance(value, (bool, int)) else value
            options[name] = {**options.get(name, {}), variable: as_written}
        else:
            options[key] = value
    return options


def merged(*sources: Mapping[str, Any]) -> dict[str, Any]:
    """Merge options; later sources override earlier ones, and variables of ``environment``
    add up.
    """
    options: dict[str, Any] = {}
    for source in sources:
        before, more = options.get("environment"), source.get("environment")
        options |= source
        if isinstance(before, Mapping) and isinstance(more, Mapping):
            options["environment"] = {**before, **more}
    return options


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InputError(f"{where} does not hold a mapping of options to values")
    return dict(value)
