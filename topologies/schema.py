"""Options read from signatures: keyword-only parameters, their annotations, bounds and defaults."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import math
import operator
import re
import reprlib
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt

from topologies.errors import InputError, closest, nearest

UNIONS = (typing.Union, types.UnionType)

# The bounds that an annotation may have: their operator, and their words in a message.
BOUNDS: Mapping[type, tuple[str, str]] = {
    Ge: ("ge", "at least"),
    Gt: ("gt", "above"),
    Le: ("le", "at most"),
    Lt: ("lt", "below"),
}

NAMES: Mapping[Any, str] = {
    Any: "made of strings, numbers, true, false, null, lists and mappings",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    Path: "a path",
    PurePath: "a path",
    list: "a list [A,B,...]",
    dict: "a mapping",
    type(None): "empty (null)",
}

# The largest whole number of an option: arrays of counts are int64.
LARGEST = 2**63 - 1

# Characters of a value that a message shows.
SHOWN = 200

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80
_SHORT.maxlevel = 3

# How a user's own object is named.
OBJECT_NAME = re.compile(r"[A-Za-z_]\w*(\.\w+)*:[A-Za-z_]\w*")

E = TypeVar("E", bound="Entry")

HEADING = "Parameters\n----------\n"
SENTENCE = re.compile(r"(?<=[\w)\]'`])\.\s+(?=[A-Z`])")


@dataclass(frozen=True)
class ComponentOf:
    """Annotates an option that is a component of ``kind`` itself: a name, or a mapping."""

    kind: str


@dataclass(frozen=True)
class Parameter:
    """An option: a keyword-only parameter of a function or a class.

    Attributes
    ----------
    name : str
        Its name.
    annotation : Any
        What its values may be.
    default : Any
        Its default; ``inspect.Parameter.empty`` if it has none.
    summary : str
        A line about it, from the numpydoc section ``Parameters``.

    Examples
    --------
    >>> def torus(n, *, rows: Annotated[int, Ge(1)] = 4): ...
    >>> options_of(torus)["rows"].allowed
    'a whole number, at least 1'
    """

    name: str
    annotation: Any
    default: Any
    summary: str = ""

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is inspect.Parameter.empty

    @property
    def allowed(self) -> str:
        """What its values may be, in words."""
        return allowed_values(self.annotation)


def options_of(component: Callable[..., Any]) -> dict[str, Parameter]:
    """Return the options of ``component``: its keyword-only parameters, in order."""
    # A function under a decorator has its own options.
    inner: Any = inspect.unwrap(component)
    return dict(_read(inner))


@functools.lru_cache(maxsize=512)  # a command asks several times, and annotations take long
def _read(component: Callable[..., Any]) -> dict[str, Parameter]:
    annotated: Any = component
    if inspect.isclass(component) and not dataclasses.is_dataclass(component):
        annotated = component.__init__
    elif not inspect.isclass(component) and not inspect.isroutine(component):
        annotated = type(component).__call__
    hints = typing.get_type_hints(annotated, include_extras=True)
    parameters, lines = inspect.signature(component).parameters, summaries(component)
    declared = {
        name: Parameter(name, hints.get(name, Any), each.default, lines.get(name, ""))
        for name, each in parameters.items()
        if each.kind is each.KEYWORD_ONLY
    }
    passes_on = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    base = component.__base__ if inspect.isclass(component) else None
    if passes_on and base is not None and base is not object:
        return {**options_of(base), **declared}
    return declared


def check_options(
    component: Callable[..., Any] | Mapping[str, Parameter], values: Mapping[str, Any], path: str
) -> dict[str, Any]:
    """Return all options of a component: its ``values``, checked, the others at their defaults."""
    options = component if isinstance(component, Mapping) else options_of(component)
    prefix = f"{path}." if path else ""
    for name in values:
        if name not in options:
            what = "option" if path else "configuration key"
            allowed = closest(str(name), options) if options else f"{path} takes no options"
            if callable(component) and name in inspect.signature(component).parameters:
                allowed = f"options are keyword-only parameters: def ...(..., *, {name})"
            raise InputError(f"Unknown {what} {excerpt(f'{prefix}{name}')}; {allowed}")
    checked = {}
    for name, option in options.items():
        if name in values:
            checked[name] = check_value(values[name], option.annotation, f"{prefix}{name}")
        elif option.required:
            raise InputError(f"{prefix}{name} is missing; it must be {option.allowed}")
        else:
            default, keeps_tuple = option.default, has_tuple(option.annotation)
            checked[name] = (
                list(default) if isinstance(default, tuple) and not keeps_tuple else default
            )
    return checked


def check_value(value: Any, annotation: Any, field: str) -> Any:
    """Return ``value`` converted to ``annotation``; an ``InputError`` names ``field``."""
    try:
        return _convert(value, annotation, field)
    except InputError:  # of an option of a dataclass, or of the dataclass
        raise
    except (TypeError, ValueError, OverflowError, RecursionError):
        message = f"{field} is {excerpt(value)}; it must be {allowed_values(annotation)}"
        choices = get_args(annotation) if get_origin(annotation) is Literal else ()
        if isinstance(value, str) and choices:
            message = f"{field} is {excerpt(value)}; {closest(value, map(str, choices))}"
        raise InputError(message) from None


def _convert(value: Any, annotation: Any, field: str) -> Any:
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return storable(value)
    if origin is Annotated:
        converted = _convert(value, parts[0], field)
        if converted is not None and not all(_holds(bound, converted) for bound in parts[1:]):
            raise ValueError
        return converted
    if origin is Literal:
        if any(value == choice and type(value) is type(choice) for choice in parts):
            return value
        raise ValueError
    if origin in UNIONS:
        return _convert_union(value, parts, field)
    if origin in (list, tuple, Sequence):
        return _convert_items(value, annotation, field)
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise TypeError
        key, kind = parts
        return {_convert(k, key, field): _convert(v, kind, field) for k, v in value.items()}
    if annotation in (Path, PurePath):
        return Path(plain_value(value, str) if isinstance(value, str) else value)
    if dataclasses.is_dataclass(annotation) and isinstance(value, Mapping):
        section: Any = annotation
        return section(**check_options(section, value, field))
    return plain_value(value, annotation)


def _convert_union(value: Any, parts: tuple[Any, ...], field: str) -> Any:
    for part in parts:
        try:
            return _convert(value, part, field)
        except (TypeError, ValueError, OverflowError):
            continue
    raise ValueError


def _convert_items(value: Any, annotation: Any, field: str) -> Any:
    """Return a value as the list or tuple that it is annotated to be."""
    if not isinstance(value, (list, tuple)):
        raise TypeError
    kinds = get_args(annotation)
    if get_origin(annotation) is not tuple:
        return [_convert(item, kinds[0], field) for item in value]
    if kinds[1:] == (...,):
        kinds = kinds[:1] * len(value)
    return tuple(_convert(item, kind, field) for item, kind in zip(value, kinds, strict=True))


def _holds(bound: Any, value: Any) -> bool:
    if isinstance(bound, ComponentOf):
        return True  # looked up later, where names are known
    name, _ = _bound(bound)
    return bool(getattr(operator, name)(value, getattr(bound, name)))


def _bound(bound: Any) -> tuple[str, str]:
    if type(bound) not in BOUNDS:
        raise NotImplementedError(f"{bound!r} is not checked; allowed: Ge, Gt, Le and Lt")
    return BOUNDS[type(bound)]


def has_tuple(annotation: Any) -> bool:
    """Return whether an annotation, or a part of a union, is of a tuple."""
    origin = get_origin(annotation)
    return origin is tuple or (
        origin in (*UNIONS, Annotated) and any(map(has_tuple, get_args(annotation)))
    )


def storable(value: Any) -> Any:
    """Return ``value`` if it reads back as stored; YAML also has dates, sets and bytes."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, (list, tuple)):
        return [storable(item) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: storable(item) for key, item in value.items()}
    raise TypeError


def plain_value(value: Any, kind: type) -> Any:
    """Return ``value`` as None, a float, an int, a bool or a string, where it means the same."""
    if kind is type(None):
        if value is None:
            return None
        raise TypeError
    if kind is float:
        # YAML 1.1 reads "1e-3" as text; a user who types it means the number.
        number = float(value) if isinstance(value, (int, float, str)) else None
        if number is None or isinstance(value, bool) or not math.isfinite(number):
            raise TypeError
        if isinstance(value, str) and (not value.isascii() or "_" in value):
            raise ValueError  # a number to Python alone
        return number
    if kind is int:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value):
            raise TypeError
        if abs(value) > LARGEST:
            raise OverflowError
        return int(value)
    if isinstance(value, kind):
        return value
    raise TypeError


def from_text(text: str, annotation: Any) -> Any:
    """Return the whole number, truth value or None that a word on a command line stands for."""
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
    return words.get(text.lower(), text)


def values_of(options: Mapping[str, Parameter], words: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of options that are written as text; others are left as they are."""
    return {
        key: from_text(word, options[key].annotation) if key in options else word
        for key, word in words.items()
    }


def allowed_values(annotation: Any) -> str:
    """Return ``annotation`` in the words of a message."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        if isinstance(parts[1], ComponentOf):
            return f"a name or a mapping: see --list {parts[1].kind}"
        return ", ".join([allowed_values(parts[0]), *map(_in_words, parts[1:])])
    if origin is Literal:
        return "one of " + ", ".join(map(_word, parts))
    if origin in UNIONS:
        *others, last = map(allowed_values, parts)
        comma = "," if any("," in part for part in (*others, last)) else ""
        return f"{', '.join(others)}{comma} or {last}"
    if origin in (list, Sequence) or (origin is tuple and parts[1:] == (...,)):
        return f"a list [A,B,...] whose entries are each {allowed_values(parts[0])}"
    if origin is tuple:
        return f"a list of {len(parts)} entries: {', '.join(map(allowed_values, parts))}"
    if origin in (dict, Mapping):
        return f"a mapping whose values are each {allowed_values(parts[1])}"
    if dataclasses.is_dataclass(annotation):
        return "a mapping of options"
    return NAMES.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _in_words(bound: Any) -> str:
    name, words = _bound(bound)
    limit = getattr(bound, name)
    return f"{words} {limit if isinstance(limit, int) else format(limit, 'g')}"


def _word(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def excerpt(value: Any) -> str:
    """Return the first 200 characters of a value's text, for a message."""
    if value is None:
        return "empty"
    try:
        return " ".join(_SHORT.repr(value).split())[:SHOWN]
    except Exception:
        # Python refuses to write out very long numbers; a user's object may raise anything.
        return f"a {type(value).__name__} that cannot be written out"


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
    """Split ``name:key=value,...`` into the name and its values, which stay text."""
    name, _, options = text.partition(":")
    if "." in name:
        attribute, _, options = options.partition(":")
        name = f"{name}:{attribute}"
    values: dict[str, str] = {}
    for part in filter(None, options.split(",")):
        key, equals, value = part.partition("=")
        if not (equals and key and value):
            raise InputError(f"{part!r} in {text!r} is not of the form key=value")
        if key in values:
            raise InputError(f"{key!r} is given twice in {text!r}")
        values[key] = value
    return name, values


def summary(component: Callable[..., Any]) -> str:
    """Return the first line of the component's docstring."""
    return (component.__doc__ or "").strip().split("\n")[0]


def summaries(component: Callable[..., Any]) -> dict[str, str]:
    """Return a line about each parameter of a component, by name."""
    lines: dict[str, str] = {}
    parts = reversed(inspect.getmro(component)) if inspect.isclass(component) else [component]
    for part in parts:
        for names, text in _entries(inspect.cleandoc(part.__doc__ or "")):
            lines |= {name.strip(): _line(text) for name in names.split(",")}
    return lines


def _line(text: str) -> str:
    first, *others = SENTENCE.split(text.removesuffix("."))
    if others and others[0].startswith("None "):
        first += f"; null {others[0].removeprefix('None ')}"
    return re.sub(r"\bNone\b", "null", first).replace("``", "'")


def _entries(docstring: str) -> Iterator[tuple[str, str]]:
    """Yield the names and the text of each entry of the section."""
    _, heading, section = docstring.partition(HEADING)
    if not heading:
        return
    # It ends where the next heading is underlined.
    section = re.split(r"\n\n\S[^\n]*\n-{3,}\n", section)[0]
    for entry in re.split(r"\n(?=\S)", section.strip()):
        name, _, text = entry.partition("\n")
        yield name.partition(" : ")[0], " ".join(text.split())
