"""Names on command lines and in files: of a table's entries, and of a user's own functions."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar, get_args, get_origin

from topologies.docstrings import summary
from topologies.errors import InputError, closest, excerpt, nearest
from topologies.parameters import UNIONS, Parameter, options_of
from topologies.schema import check_options

# A number with a point or an exponent.
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")

# How a user's own object is named.
OBJECT_NAME = re.compile(r"[A-Za-z_]\w*(\.\w+)*:[A-Za-z_]\w*")

E = TypeVar("E", bound="Entry")


@dataclass(frozen=True)
class Entry:
    """A function in a table of names.

    Attributes
    ----------
    build : Callable[..., Any]
        The function.
    custom : bool
        Whether it is a user's own, whose parameters are not checked.
    """

    build: Callable[..., Any]
    custom: bool = field(default=False, kw_only=True)

    @property
    def summary(self) -> str:
        """A line about it."""
        return summary(self.build).removesuffix(".")

    @property
    def parameters(self) -> dict[str, Parameter]:
        """Its options by name; empty for a user's own function."""
        return {} if self.custom else options_of(self.build)

    def checked_options(self, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return all options of the entry ``name``; those of a user's function are not checked."""
        return dict(options) if self.custom else check_options(self.parameters, options, name)


def find(table: Mapping[str, E], what: str, name: str) -> E:
    """Return the entry called ``name``, or one for the user's own ``package.module:object``."""
    if name in table:
        return table[name]
    if isinstance(name, str) and OBJECT_NAME.fullmatch(name):
        return type(next(iter(table.values())))(load_object(name), custom=True)
    raise InputError(f"Unknown {what} {excerpt(name)}; {closest(str(name), table)}")


def load_object(name: str, owner: str = "") -> Callable[..., Any]:
    """Import ``package.module:object``; what the module raises is raised as it is."""
    field_text = f"{owner} is {excerpt(name)}" if owner else excerpt(name)
    if not OBJECT_NAME.fullmatch(name):
        raise InputError(
            f"{field_text}; write package.module:object, the module without '.py' or '/'"
        )
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise InputError(
            f"{field_text}, but there is no module '{error.name}' in the working directory or in a "
            "folder of PYTHONPATH"
        ) from None
    component = getattr(module, attribute, None)
    if not callable(component):
        near = nearest(attribute, [each for each, value in vars(module).items() if callable(value)])
        hint = f"; did you mean '{near}'?" if near else ""
        raise InputError(f"{field_text}, but '{module_name}' has no callable '{attribute}'{hint}")
    return component


def parse_spec(text: str) -> tuple[str, dict[str, str]]:
    """Split ``name:key=value,...`` into the name and its values, which stay text.

    A user's own is ``module:function:key=value,...``.
    """
    name, _, options = text.partition(":")
    attribute, _, others = options.partition(":")
    if attribute and ("." in name or ("=" not in attribute and attribute.isidentifier())):
        name, options = f"{name}:{attribute}", others
    values: dict[str, str] = {}
    for part in filter(None, options.split(",")):
        key, equals, value = part.partition("=")
        if not (equals and key and value):
            raise InputError(f"{part!r} in {text!r} is not of the form key=value")
        if key in values:
            raise InputError(f"{key!r} is given twice in {text!r}")
        values[key] = value
    return name, values


def from_text(text: str, annotation: Any) -> Any:
    """Return the number, truth value or None that a word on a command line stands for."""
    parts = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return from_text(text, parts[0])
    if get_origin(annotation) in UNIONS:
        return next((v for v in (from_text(text, part) for part in parts) if v != text), text)
    words: Mapping[str, Any] = {}
    if annotation is bool:
        words = {"true": True, "false": False, "yes": True, "no": False}
    elif annotation is type(None):
        words = {"null": None}
    elif annotation is int and re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        return int(text)
    elif annotation is float and NUMBER.fullmatch(text):
        return float(text)
    return words.get(text.lower(), text)


def values_of(options: Mapping[str, Parameter], words: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of options that are written as text; others are left as they are."""
    return {
        key: from_text(word, options[key].annotation) if key in options else _guessed(word)
        for key, word in words.items()
    }


def _guessed(word: Any) -> Any:
    """Return the number or truth value that a word for a user's own function looks like."""
    if not isinstance(word, str):
        return word
    if re.fullmatch(r"[+-]?[0-9]{1,18}", word):
        return int(word)
    return float(word) if NUMBER.fullmatch(word) else {"true": True, "false": False}.get(word, word)
