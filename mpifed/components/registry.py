"""Names of components in a configuration become objects; ``tables`` has the names.

A component's keyword-only parameters are its options. Its class may have two static methods:
``complete_options(options, n_training)`` returns them with what they leave open filled in, and
``validate(options, ...)`` raises ``InputError`` where they do not go with the rest, of which it
names what it reads: ``validate(options, clients, participation)``.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, cast, get_args, get_origin

from mpifed.components.tables import BASES, LISTED, MADE_BY_FUNCTIONS, TABLES
from mpifed.errors import CodeError, InputError, closest, in_words
from mpifed.io.text import read_text
from mpifed.io.yaml_files import parse_value
from topologies.docstrings import SENTENCE
from topologies.docstrings import summaries as summaries
from topologies.docstrings import summary as summary
from topologies.errors import excerpt
from topologies.names import load_object, parse_spec
from topologies.parameters import ComponentOf, options_of
from topologies.schema import check_options

# How a component with options in one text begins: ``torus:rows=4``, ``own.module:graph:k=3``.
SPELT = re.compile(r"[A-Za-z_]\w*(\.[\w.]*:\w+)?:\w+=")
YEAR = re.compile(r"\b(19|20)\d\d\b")


def is_component(value: Any) -> bool:
    """Return whether a value is a class or something that was made to be called."""
    return isinstance(value, (type, functools.partial)) or hasattr(value, "__qualname__")


def name_of(component: Any, field: str) -> str:
    """Return the name under which a class or a function can be imported."""
    function = component.func if isinstance(component, functools.partial) else component
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if getattr(sys.modules.get(str(module)), name, None) is component:
        return f"{module}:{name}"
    for namespace in (str(module), "__main__"):
        for attribute, value in getattr(sys.modules.get(namespace), "__dict__", {}).items():
            if value is component:
                return f"{namespace}:{attribute}"
    kind = "a lambda" if name.endswith("<lambda>") else excerpt(component)
    raise InputError(
        f"{field} is {kind}, which a configuration cannot name; pass a function or a class of the "
        "top level of a module, whose keyword-only parameters are its options"
    )


def without_module(name: str) -> str:
    """Return the name of a user's component without the module that it is in."""
    module, _, attribute = name.rpartition(":")
    return (
        attribute
        if attribute.isidentifier() and all(map(str.isidentifier, module.split(".")))
        else name
    )


def with_options(name: str, path: str) -> tuple[str, dict[str, Any]]:
    """Split ``name:key=value,...``, as ``python -m topologies`` does; other names have no
    options.
    """
    file, is_file, spec = name.partition(".py:")
    if is_file:
        name = f"{file.removeprefix('./').replace('/', '.')}:{spec}"
    if SPELT.match(name) is None:
        return name, {}
    try:
        spelt, values = parse_spec(name)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return spelt, {key: parse_value(text, f"{path}.{key}") for key, text in values.items()}


@dataclass(frozen=True)
class Section:
    """A component that a configuration names."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


def find(kind: str, name: str, field: str | None = None) -> Callable[..., Any]:
    """Return a component by name: a shipped one, or a user's ``package.module:object``."""
    field = field or f"{kind}.name"
    check_name(kind, name, field)
    component = load(TABLES[kind].get(name, name), field)
    if inspect.isclass(component) or kind not in MADE_BY_FUNCTIONS:
        _check_base(kind, component if inspect.isclass(component) else type(component), field, name)
    return component


def find_algorithm(name: str) -> type[Any]:
    """Return the class of the algorithm called ``name``, for its attributes; see ``find``."""
    return cast(type[Any], find("algorithm", name))


def make(kind: str, section: Any, path: str) -> Any:
    """Return the object of a section, made by a class or by a user's function."""
    checked = checked_section(kind, section, path)
    component = find(kind, checked.name, f"{path}.name")(**checked.options)
    _check_base(kind, type(component), f"{path}.name", checked.name)
    return component


def _check_base(kind: str, derived: type, field: str, name: str) -> None:
    """Check that a user's class derives from a base class of its kind and lacks none of its methods
    and options.
    """
    if kind not in BASES or ":" not in name:
        return
    targets = [target.partition(":") for target in BASES[kind]]
    bases = tuple(getattr(importlib.import_module(module), base) for module, _, base in targets)
    if not issubclass(derived, bases):
        allowed = " or ".join(target.replace(":", ".") for target in BASES[kind])
        raise InputError(f"{field} is {excerpt(name)}, which is not derived from {allowed}")
    if inspect.isabstract(derived):
        lacking = ", ".join(sorted(vars(derived)["__abstractmethods__"]))
        raise InputError(f"{field} is {excerpt(name)}, which has no {lacking} of its own")
    needed = [option for base in bases if issubclass(derived, base) for option in options_of(base)]
    if missing := [option for option in needed if option not in options_of(derived)]:
        raise InputError(
            f"{field} is {excerpt(name)}, whose __init__ does not take {' and '.join(missing)}; "
            "let it accept **options and pass them to super().__init__(**options)"
        )


def check_name(kind: str, name: str, field: str) -> None:
    """Refuse a name that no table has, without importing anything."""
    if ":" not in name and name.endswith(".py"):
        raise InputError(f"{field} is {excerpt(name)}, a file; {_defined_in(Path(name))}")
    if ":" not in name and name not in TABLES[kind]:
        hint = ", or package.module:object for one of your own"
        raise InputError(f"{field} is {excerpt(name)}; {closest(name, TABLES[kind])}{hint}")


def _defined_in(path: Path) -> str:
    """Return what to write for a class or a function of a file, as the end of a message."""
    try:
        body = ast.parse(read_text(path)).body
    except (InputError, SyntaxError) as error:
        return f"name what it defines, as {path.stem}:NAME; it cannot be read: {error}"
    kinds = (ast.FunctionDef, ast.ClassDef)
    defined = [n.name for n in body if isinstance(n, kinds) and not n.name.startswith("_")]
    parts = path.with_suffix("").parts
    module = ".".join(parts) if all(map(str.isidentifier, parts)) else path.stem
    names = [f"{module}:{name}" for name in defined]
    if not names:
        return "it defines no class or function that could be named"
    return f"did you mean {' or '.join(map(repr, names))}?"


def named(section: Any, path: str, default: str | None = None) -> tuple[str, dict[str, Any]]:
    """Return the name of a section and the options given beside it, neither of them looked up."""
    if isinstance(section, Section):
        return section.name, dict(section.options)
    if isinstance(section, str):
        return with_options(section, path)
    if section is None and default is not None:
        return default, {}
    if isinstance(section, Mapping) and section and (default is not None or "name" in section):
        options = dict(section)
        name = options.pop("name", default)
        if not isinstance(name, str):
            raise InputError(f"{path}.name is {excerpt(name)}; it must be a string")
        name, spelt = with_options(name, path)
        return name, {**spelt, **options}
    raise InputError(f"{path} is {excerpt(section)}; it must be a name, or a mapping with a name")


def from_list(kind: str, section: Any) -> Any:
    """Return the section that a list of components stands for; any other section as it is."""
    if isinstance(section, (list, tuple)) and kind in LISTED:
        if len(section) == 1:
            return section[0]
        return {"name": LISTED[kind], "parts": list(section)}
    return section


def checked_section(
    kind: str, section: Any, path: str, default: str | None = None, n_training: int = 0
) -> Section:
    """Return the component of ``kind`` that a section asks for, with all options."""
    if isinstance(section, Section):
        return section
    name, values = named(from_list(kind, section), path, default)
    component = find(kind, name, f"{path}.name")
    checked = check_options(component, values, path, lambda option: owners_of(kind, option))
    for key, option in options_of(component).items():
        for within in get_args(option.annotation):
            listed = get_args(within)[1:] if get_origin(option.annotation) is list else ()
            if any(isinstance(each, ComponentOf) for each in listed):
                checked[key] = [
                    checked_section(listed[0].kind, part, f"{path}[{k}]")
                    for k, part in enumerate(checked[key])
                ]
            elif isinstance(within, ComponentOf) and within.kind in TABLES:
                inner_path = f"{path}.{key}"
                checked[key] = checked_section(
                    within.kind, checked[key], inner_path, option.default
                )
    completed = getattr(component, "complete_options", None)
    if completed is not None:
        checked = dict(called(path, name, completed, checked, n_training))
    return Section(name, checked)


def owners_of(kind: str, option: str) -> list[str]:
    """Return the shipped components of a kind that have an option."""
    return [name for name in TABLES[kind] if option in options_of(find(kind, name))]


def with_defaults(kind: str, section: Any) -> Any:
    """Return a stored section with the defaults of options that it lacks, as older runs do."""
    name = section.get("name") if isinstance(section, Mapping) else None
    if not isinstance(name, str) or name not in TABLES[kind]:
        return section
    options = options_of(find(kind, name)).values()
    return {**{each.name: plain(each.default) for each in options if not each.required}, **section}


def plain(value: Any) -> Any:
    """Return a part of a configuration as plain mappings, lists and values."""
    if isinstance(value, Section) and value.name in LISTED.values():
        return plain(value.options["parts"])
    if isinstance(value, Section):
        return {"name": value.name, **plain(value.options)}
    if dataclasses.is_dataclass(value):
        return {
            each.name: plain(getattr(value, each.name))
            for each in dataclasses.fields(value)
            if each.metadata.get("spelled_out", True) or getattr(value, each.name) != each.default
        }
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, PurePath):
        return str(value)
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def load(target: str, field: str) -> Callable[..., Any]:
    """Import the object that ``package.module:object`` names; ``field`` is for messages."""
    try:
        return load_object(target, field)
    except (InputError, KeyboardInterrupt):
        raise
    except BaseException as error:
        # A user's own module may fail to import in any way.
        field_text = f"{field} is {excerpt(target)}, which cannot be imported"
        raise CodeError(f"{field_text}: {in_words(error)}") from error


def called(path: str, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the component ``name``; what it fails with names the component."""
    try:
        return function(*arguments)
    except (InputError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
            error.__traceback__ = error.__traceback__.tb_next
        raise CodeError(f"{path} '{name}': {in_words(error)}") from error


def source(component: Callable[..., Any]) -> str:
    """Return the first sentence of the component's module if it names a year of a paper,
    else ''.
    """
    module = inspect.getmodule(component)
    first = " ".join(((module and module.__doc__) or "").split("\n\n")[0].split())
    first = SENTENCE.split(first)[0].removesuffix(".").replace("``", "'")
    return first if YEAR.search(first) else ""
