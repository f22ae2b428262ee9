"""Base classes of components."""

from __future__ import annotations

import difflib
import functools
import inspect
from abc import ABC
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast

from mpifed.components.declared import (
    NameAmong,
    annotations_of,
    calls_of,
    misfits,
    misfits_of_object,
)
from mpifed.components.tables import EXCHANGES
from mpifed.errors import InputError, closest
from topologies.inputs import within

C = TypeVar("C", bound="Contract")

# Least similarity (difflib's ratio) at which a name counts as a misspelt one.
SIMILAR = 0.76


def _names(cls: type) -> set[str]:
    """Return all names of a class and of its bases, including annotated ones without a value."""
    return {
        name for base in cls.__mro__ for name in (*base.__dict__, *inspect.get_annotations(base))
    }


def _is_public(name: str) -> bool:
    """Return whether a name may be meant for mpifed, which reads no constants (in capitals)."""
    return not (name.startswith("_") or name.isupper())


class Contract(ABC):  # noqa: B024 (the contracts derived from it have abstract methods)
    """Base class whose subclasses may not misspell its names."""

    _kind: ClassVar[str] = "class"
    _known: ClassVar[frozenset[str]] = frozenset()
    _contract: ClassVar[type] = object

    def __init_subclass__(cls, kind: str | None = None, **more: Any) -> None:
        super().__init_subclass__(**more)
        if kind is not None:
            cls._kind, cls._contract = kind, cls
            cls._known = frozenset(filter(_is_public, _names(cls) - _names(Contract)))
            return
        cls._refuse_unknown_names()
        for clause in misfits(cls, cls._contract):
            raise InputError(f"{cls._kind} '{cls.__name__}' has {clause}")
        if "__init__" in cls.__dict__:
            cls.__init__ = _checked(cls.__init__)  # type: ignore[method-assign]

    def __new__(cls: type[C], *args: Any, **options: Any) -> C:
        if cls.__abstractmethods__:
            missing = calls_of(cls, cls.__abstractmethods__)
            raise InputError(f"{cls._kind} '{cls.__name__}' lacks {missing}{within(cls)}")
        return super().__new__(cls)

    @classmethod
    def required(cls) -> frozenset[str]:
        """Return the names without a default, which an object of a plain class must have."""
        without_default = {name for name in cls._known if not hasattr(cls, name)}
        return cls.__abstractmethods__ | without_default

    @classmethod
    def adopt(cls: type[C], made: Any, said: str, maker: Any = None) -> C:
        """Return a user's object as one of this base class."""
        present, required = set(dir(made)), cls.required()
        missing, where = required - present, within(type(made)) or within(maker)
        if missing:
            raise InputError(
                f"{said}, which cannot be used as a {cls._kind}: it lacks "
                f"{calls_of(cls, missing)}{where}"
            )
        if isinstance(made, cls):
            return made
        known = cls._known | required
        for name in filter(_is_public, sorted(present - known)):
            near = _closest_of(name, known - present)
            if near:
                raise InputError(f"{said}, which has '{name}'; did you mean '{near}'?{where}")
        wrapper = type(type(made).__name__, (cls,), _forwarded(made, present & known))
        return cast(C, wrapper())

    def _refuse_wrong_values(self) -> None:
        """Raise ``InputError`` for what the object has set: a misspelt name, or a wrong value."""
        cls, said = type(self), f"{self._kind} '{type(self).__name__}' sets"
        settable = annotations_of(cls._contract).keys() - vars(self).keys()
        for name in sorted(filter(_is_public, vars(self).keys() - _names(cls))):
            near = _closest_of(name, settable)
            if near:
                raise InputError(
                    f"{said} '{name}', which mpifed does not know; did you mean '{near}'? (names "
                    f"for the class's private use begin with an underscore){within(cls)}"
                )
        for clause in misfits_of_object(self, cls._contract):
            raise InputError(f"{said} {clause}{within(cls)}")

    @classmethod
    def _refuse_unknown_names(cls) -> None:
        """Raise ``InputError`` for a public name that seems to be meant for mpifed."""
        inherited = {name for base in cls.__bases__ for name in _names(base)}
        annotated = inspect.get_annotations(cls)
        own = {**cls.__dict__, **annotated}
        for name in filter(_is_public, own):
            if name in inherited:
                continue
            value = cls.__dict__.get(name)
            plain = not (name in annotated or hasattr(value, "__get__") or inspect.isclass(value))
            near = _closest_of(name, cls._known.difference(own))
            if plain or near:
                listing = f"did you mean '{near}'?" if near else closest(name, cls._known)
                raise InputError(
                    f"{cls._kind} '{cls.__name__}' has '{name}', which mpifed does not know; "
                    f"{listing} (names for the class's private use begin with an underscore)"
                )


def _checked(init: Callable[..., None]) -> Callable[..., None]:
    """Return an ``__init__`` after which the object is checked, once, by the class that is made."""

    @functools.wraps(init)
    def checked(self: Contract, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        if type(self).__init__ is checked:
            self._refuse_wrong_values()

    return checked


def _closest_of(name: str, known: Iterable[str]) -> str | None:
    """Return the name of which ``name`` may be a misspelling, or None."""
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=SIMILAR)), None)


def _forwarded(made: Any, names: Iterable[str]) -> dict[str, property]:
    """Return properties of a class whose objects have these ``names`` of the object ``made``."""

    def forwarded(name: str) -> property:
        read = attrgetter(name)
        return property(lambda _: read(made))

    return {name: forwarded(name) for name in names}


class Component(Contract):
    """A class that a configuration names; its keyword-only parameters are its options."""

    @staticmethod
    def complete_options(options: dict[str, Any], n_training: int) -> dict[str, Any]:
        """Fill in what the options leave open."""
        return options

    @staticmethod
    def refuse(configuration: Any) -> str | None:
        """Say why the component does not go with the rest of the configuration."""
        return None


# Which compressors the messages of an algorithm may go through.
Compressors = Literal["any", "unbiased", "none"]

# What a server makes of the messages of an algorithm.
Aggregates = Literal["mean", "means", "sums"]


class DeclaredAlgorithm(Component, kind="algorithm"):
    """The attributes of an algorithm's class that a configuration reads."""

    exchanges: ClassVar[
        tuple[Annotated[str, NameAmong(tuple(EXCHANGES), or_own=True)], ...] | None
    ] = None
    compressors: ClassVar[Compressors] = "any"
    aggregates: ClassVar[Aggregates] = "mean"
    devices: ClassVar[tuple[Literal["cpu", "cuda"], ...]] = ("cpu", "cuda")
    communicates: ClassVar[bool] = True
    uses_model: ClassVar[bool] = True
    steps_locally: ClassVar[bool] = False
    steps_without_clients: ClassVar[bool] = False

    @classmethod
    def serves_unseen_clients(cls) -> bool:
        """Return whether clients that took no part in training get a predictor."""
        return False
