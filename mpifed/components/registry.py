"""Names of components in a configuration become objects; ``tables`` has the names."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, cast, get_args

from mpifed.components.base import Component, DeclaredAlgorithm
from mpifed.components.elsewhere import said_elsewhere
from mpifed.components.own import checked_own
from mpifed.components.schema import ComponentOf, check_options, options_of, shown
from mpifed.components.tables import TABLES
from mpifed.components.without_torch import with_torch
from mpifed.errors import InputError, closest, in_words, text_of
from mpifed.io.yaml_files import parse_value
from topologies.inputs import nearest, raised_at
from topologies.schema import SENTENCE
from topologies.schema import summaries as summaries
from topologies.schema import summary as summary

# How a component with options in one text begins: ``torus:rows=4``, ``own.module:graph:k=3``.
SPELT = re.compile(r"[A-Za-z_]\w*(\.[\w.]*:\w+)?:\w+=")


def is_component(value: Any) -> bool:
    """Return whether a value is a class or something that was made to be called."""
    return isinstance(value, (type, functools.partial)) or hasattr(value, "__qualname__")


def name_of(made: Any, field: str) -> str:
    """Return the name under which a class or a function can be imported."""
    function = made.func if isinstance(made, functools.partial) else made
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if getattr(sys.modules.get(str(module)), name, None) is made:
        return f"{module}:{name}"
    for place in (str(module), "__main__"):
        for known, value in getattr(sys.modules.get(place), "__dict__", {}).items():
            if value is made:
                return f"{place}:{known}"
    kind = "a lambda" if name.endswith("<lambda>") else shown(made)
    raise InputError(
        f"{field} is {kind}, which a configuration cannot name; pass a function or a class of the "
        "top level of a module, whose keyword-only parameters are its options"
    )


def without_module(name: str) -> str:
    """Return the name of a user's component without the module that it is in."""
    module, _, own = name.rpartition(":")
    return own if own.isidentifier() and all(map(str.isidentifier, module.split("."))) else name


def hint_at_own(name: str) -> str:
    """Return the form of names of a user's own components, where a name with dots looks
    like one.
    """
    if "." not in name:
        return ""
    form = "components of your own are named package.module:object; "
    module, _, attribute = name.rpartition(".")
    likely = _is_there(module.split(".")[0]) and attribute.isidentifier()
    return f"did you mean '{module}:{attribute}'? {form}" if likely else form


def _is_there(module: str) -> bool:
    """Return whether a module outside of packages can be imported."""
    try:
        return bool(module) and importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # of a module that was made by hand, as ``__main__`` is
        return False


def where_modules_are(module: str, attribute: str) -> str:
    """Return the end of a sentence: how a file of Python is named, and where it is looked for."""
    file = module.removesuffix(".py").rpartition("/")[2]
    named = f"; write '{file}:{attribute}'" if file != module else ""
    return f"{named}; the file must be in the working directory or in a folder of PYTHONPATH"


def with_options(name: str, path: str) -> tuple[str, dict[str, Any]]:
    """Split ``name:key=value,...``, as ``python -m topologies`` does; other names have no
    options.
    """
    if SPELT.match(name) is None:
        return name, {}
    from topologies.inputs import TopologyError
    from topologies.schema import parse_spec

    try:
        spelt, values = parse_spec(name)
    except TopologyError as error:
        raise InputError(f"{path}: {error}") from None
    return spelt, {key: parse_value(text, f"{path}.{key}") for key, text in values.items()}


def refuse_text(name: str, path: str) -> str:
    """Return a name; refuse a mapping that is written as a text, as on the command line."""
    if name.lstrip().startswith("{"):
        raise InputError(
            f"{path} is {shown(name)}, a text; from Python it must be a mapping, such as "
            f"{path}={{'name': NAME, 'option': value}}"
        )
    return name


@dataclass(frozen=True)
class Section:
    """A component that a configuration names."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


def find(kind: str, name: str, field: str | None = None) -> Callable[..., Any]:
    """Return a component by name."""
    table, field = TABLES[kind], field or f"{kind}.name"
    if ":" in name:
        with_torch()
        return checked_own(kind, load(name, field), f"{field} is '{name}'")
    check_name(kind, name, field)
    return load(table[name], field)


def check_name(kind: str, name: str, field: str | None = None) -> None:
    """Refuse a name that no table has, without importing anything."""
    if ":" in name or name in TABLES[kind]:
        return
    place = field or f"{kind}.name"
    own = hint_at_own(name)
    # One suggestion is enough.
    known = closest("" if own.startswith("did you mean") else name, TABLES[kind])
    raise InputError(f"{place} is {shown(name)}; {own}{known}")


def find_algorithm(name: str) -> type[DeclaredAlgorithm]:
    """Return the class of the algorithm called ``name``, for its attributes; see ``find``."""
    return cast(type[DeclaredAlgorithm], find("algorithm", name))


def find_exchange(name: str) -> type[Component]:
    """Return the class of the exchange called ``name``; see ``find``."""
    return cast(type[Component], find("exchange", name))


def find_attack(name: str) -> type[Component]:
    """Return the class of the attack called ``name``; see ``find``."""
    return cast(type[Component], find("attack", name))


def named(section: Any, path: str, default: str | None = None) -> tuple[str, dict[str, Any]]:
    """Return the name of a section and the options given beside it, neither of them looked up."""
    if isinstance(section, Section):
        return section.name, dict(section.options)
    if isinstance(section, str):
        return with_options(refuse_text(section, path), path)
    if section is None and default is not None:
        return default, {}
    if isinstance(section, Mapping) and section and (default is not None or "name" in section):
        options = dict(section)
        name = options.pop("name", default)
        if not isinstance(name, str):
            raise InputError(f"{path}.name is {shown(name)}; it must be a string")
        name, spelt = with_options(refuse_text(name, path), path)
        return name, {**spelt, **options}
    raise InputError(f"{path} is {shown(section)}; it must be a name, or a mapping with a name")


def complete(
    kind: str, section: Any, path: str, default: str | None = None, n_training: int = 0
) -> Section:
    """Return the component of ``kind`` that a section asks for, with all options."""
    if isinstance(section, Section):
        return section
    name, given = named(section, path, default)
    made = find(kind, name, f"{path}.name")
    checked = checked_options(kind, made, given, path)
    for key, option in options_of(made).items():
        for within in get_args(option.annotation):
            if isinstance(within, ComponentOf) and within.kind in TABLES:
                place = f"{path}.{key}"
                checked[key] = complete(within.kind, checked[key], place, option.default)
    if inspect.isclass(made) and issubclass(made, Component):
        completed: Any = made.complete_options(checked, n_training)
        if not isinstance(completed, Mapping):
            raise InputError(
                f"{path}.name is '{name}', whose complete_options(options, n_training) returned "
                f"{shown(completed)}; it must return the options, a mapping"
            )
        checked = dict(completed)
    return Section(name, checked)


def checked_options(
    kind: str, made: Callable[..., Any], given: Mapping[str, Any], path: str
) -> dict[str, Any]:
    """As ``check_options``; of an unknown option it says which other components have it."""
    hint = functools.partial(said_elsewhere, kind, path, find=find)
    return check_options(made, given, path, elsewhere=hint)


def with_defaults(kind: str, section: Any) -> Any:
    """Return a stored section with the defaults of options that it lacks, as older runs do."""
    name = section.get("name") if isinstance(section, Mapping) else None
    if not isinstance(name, str) or name not in TABLES[kind]:
        return section
    known = options_of(find(kind, name)).values()
    return {**{each.name: plain(each.default) for each in known if not each.required}, **section}


def plain(value: Any) -> Any:
    """Return a configuration, or a part of one, as plain mappings, lists and values."""
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
    module_name, _, attribute = target.partition(":")
    if "/" in module_name:
        hint = where_modules_are(module_name, attribute)
        raise InputError(f"{field} is {shown(target)}, which is a path and no module{hint}")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        mine = str(error.name) == module_name or module_name.startswith(f"{error.name}.")
        hint = where_modules_are(module_name, attribute) if mine else ""
        where = "" if mine else raised_at(error)
        raise InputError(
            f"{field} is {shown(target)}, but module '{error.name}' is not found{hint}{where}"
        ) from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # A user's own module may fail to import in any way.
        where = raised_at(error)
        if isinstance(error, InputError) and not where:
            raise
        said = f"{in_words(error)}{where}"
        if isinstance(error, InputError):
            said = f"{text_of(error)} ({where.strip()})"
        raise InputError(f"{field} is {shown(target)}, which cannot be imported: {said}") from error
    found = getattr(module, attribute, None)
    if not callable(found):
        main = "; it must be defined in the program that is running" * (module_name == "__main__")
        near = nearest(attribute, [each for each, value in vars(module).items() if callable(value)])
        hint = f"; did you mean '{near}'?" if near and not main else ""
        raise InputError(
            f"{field} is '{target}', but '{module_name}' has no callable '{attribute}'{main}{hint}"
        )
    return found


YEAR = re.compile(r"\b(19|20)\d\d\b")


def source(component: Callable[..., Any]) -> str:
    """Return the first sentence of the component's module if it names a year of a paper,
    else ''.
    """
    module = inspect.getmodule(component)
    first = " ".join(((module and module.__doc__) or "").split("\n\n")[0].split())
    first = SENTENCE.split(first)[0].removesuffix(".").replace("``", "'")
    return first if YEAR.search(first) else ""
