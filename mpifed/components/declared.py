"""Checks of what a class declares against the base class of its kind."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin

from mpifed.components.schema import shown

METHODS = (types.FunctionType, staticmethod, classmethod)


@dataclass(frozen=True)
class NameAmong:
    """Annotates a name that must be among ``names``."""

    names: tuple[str, ...]
    or_own: bool = False

    def allows(self, value: str) -> bool:
        """Return whether ``value`` is such a name."""
        return value in self.names or (self.or_own and ":" in value)


@functools.cache
def annotations_of(base: type) -> dict[str, Any]:
    """Return the annotations of a class and its bases by name; those that cannot be read are left
    out, since a module may import names for type checkers only.
    """
    found: dict[str, Any] = {}
    for cls in reversed(base.__mro__):
        names = vars(sys.modules[cls.__module__])
        for name, text in inspect.get_annotations(cls).items():
            try:
                found[name] = eval(text, dict(names)) if isinstance(text, str) else text
            except (NameError, TypeError, AttributeError, SyntaxError):
                found.pop(name, None)
    return found


def fits(value: Any, annotation: Any) -> bool:
    """Return whether ``value`` is what ``annotation`` allows."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is ClassVar:
        return fits(value, parts[0])
    if origin is Annotated:
        marks = [mark for mark in parts[1:] if isinstance(mark, NameAmong)]
        return fits(value, parts[0]) and all(mark.allows(value) for mark in marks)
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in parts)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if origin is tuple and parts[1:] == (...,):
        return isinstance(value, tuple) and all(fits(item, parts[0]) for item in value)
    kind = origin or annotation
    if annotation is None or not inspect.isclass(kind):
        return value is None if annotation is None else True
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    try:
        return isinstance(value, kind)
    except TypeError:  # a protocol says nothing about objects
        return True


def in_words(annotation: Any) -> str:
    """Return what ``annotation`` allows, in the words of a message."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is ClassVar:
        return in_words(parts[0])
    if origin is Annotated:
        for mark in parts[1:]:
            if isinstance(mark, NameAmong):
                more = ", or package.module:object" if mark.or_own else ""
                return f"one of {', '.join(map(repr, mark.names))}{more}"
        return in_words(parts[0])
    if origin is Literal:
        return f"one of {', '.join(map(repr, parts))}"
    if origin in (typing.Union, types.UnionType):
        words = [in_words(part) for part in parts]
        return "; or ".join(words) if any("," in word for word in words) else " or ".join(words)
    if origin is tuple and parts[1:] == (...,):
        return f"a tuple whose entries are each {in_words(parts[0])}"
    names = {
        bool: "True or False",
        int: "a whole number",
        float: "a number",
        str: "a string",
        type: "a class",
        type(None): "None",
        None: "None",
    }
    if annotation in names:
        return names[annotation]
    kind = origin or annotation
    return "a function" if kind is Callable or not inspect.isclass(kind) else f"a {kind.__name__}"


def misfits(cls: type, contract: type) -> Iterator[str]:
    """Yield what a class declares that its base class does not allow, each as a clause."""
    for name, value in vars(cls).items():
        wanted = _declared(contract, name)
        is_method = isinstance(value, METHODS)
        if wanted is None or (hasattr(value, "__get__") and not is_method):
            continue  # a property has a value only where there is an object
        if isinstance(value, dataclasses.Field):
            continue
        if isinstance(wanted, METHODS):
            yield from _wrong_call(name, value, wanted)
        elif not fits(value, annotations_of(contract)[name]):
            given = "which is a method" if is_method else f"which is {shown(value)}"
            yield f"'{name}', {given}; it must be {in_words(annotations_of(contract)[name])}"


def misfits_of_object(made: Any, contract: type) -> Iterator[str]:
    """Yield what an object has set that its base class does not allow, each as a clause."""
    for name, value in getattr(made, "__dict__", {}).items():
        wanted = _declared(contract, name)
        if isinstance(wanted, METHODS):
            if not callable(value):
                yield f"'{name}', which is {shown(value)}; it must be a method"
        elif wanted is not None and not fits(value, annotations_of(contract)[name]):
            expected = in_words(annotations_of(contract)[name])
            yield f"'{name}', which is {shown(value)}; it must be {expected}"


def _declared(contract: type, name: str) -> Any:
    """Return the method or the annotation of a public name of the contract; None without either."""
    if name.startswith("_"):
        return None
    value = inspect.getattr_static(contract, name, None)
    return value if isinstance(value, METHODS) else annotations_of(contract).get(name)


def call_of(contract: type, name: str) -> str:
    """Return how mpifed calls a method of a base class."""
    method = inspect.getattr_static(contract, name)
    return f"{name}({', '.join(_parameters(method, isinstance(method, types.FunctionType)))})"


def calls_of(contract: type, names: Iterable[str]) -> str:
    """Return how mpifed calls methods of a base class, and what attributes of it must be."""
    found, annotations = [], annotations_of(contract)
    for name in sorted(names):
        if isinstance(inspect.getattr_static(contract, name, None), METHODS):
            found.append(call_of(contract, name))
        else:
            allowed = f" ({in_words(annotations[name])})" if name in annotations else ""
            found.append(f"{name}{allowed}")
    return ", ".join(found)


def _wrong_call(name: str, value: Any, wanted: Any) -> Iterator[str]:
    """Yield why ``value`` cannot be called as the method ``wanted`` of the base class."""
    call = _parameters(wanted, isinstance(wanted, types.FunctionType))
    shape = f"{name}({', '.join(call)})"
    if not callable(value) and not isinstance(value, METHODS):
        yield f"'{name}', which is {shown(value)}; it must be a method {shape}"
        return
    bound = isinstance(value, classmethod) or (
        isinstance(value, types.FunctionType) and isinstance(wanted, types.FunctionType)
    )
    try:
        own = _parameters(value, bound)
    except (TypeError, ValueError):
        return  # a callable whose parameters Python cannot tell
    required = [None for each in call.values() if each.default is each.empty]
    optional = {key: None for key, each in call.items() if each.default is not each.empty}
    try:
        inspect.Signature(list(own.values())).bind(*required)
        inspect.Signature(list(own.values())).bind(*required, **optional)
    except TypeError:
        yield f"{name}({', '.join(map(str, own.values()))}), but mpifed calls {shape}"
        return
    if any(key in call and key != given for key, given in zip(own, call, strict=False)):
        order = f"{name}({', '.join(map(str, own.values()))})"
        yield f"{order}, but mpifed calls {shape}: the arguments are in another order"


def _parameters(method: Any, bound: bool) -> dict[str, inspect.Parameter]:
    """Return the parameters of a method without annotations; ``bound`` leaves the first one out."""
    function = getattr(method, "__func__", method)
    found = list(inspect.signature(function).parameters.values())
    bound = bound or isinstance(method, classmethod)
    if bound and found and found[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        found = found[1:]
    return {each.name: each.replace(annotation=inspect.Parameter.empty) for each in found}
