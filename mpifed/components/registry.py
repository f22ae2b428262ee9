"""Names of components in a configuration become objects; ``tables`` has the names.

Where a configuration names a component, it has a name alone (``model: mlp``) or a mapping with a
name and options (``model: {name: mlp, hidden: [64]}``). ``complete`` makes a ``Section`` of either,
in which every option has a checked value. An option that is a component itself is annotated with
``ComponentOf``, and becomes a ``Section`` too.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, cast, get_args

from mpifed.components.base import Component, DeclaredAlgorithm
from mpifed.components.elsewhere import said_elsewhere
from mpifed.components.naming import hint_at_own, refuse_text, where_modules_are, with_options
from mpifed.components.own import checked_own
from mpifed.components.schema import ComponentOf, check_options, options_of, shown
from mpifed.components.tables import TABLES
from mpifed.components.without_torch import with_torch
from mpifed.errors import InputError, closest, in_words, text_of
from topologies.places import raised_at
from topologies.spelling import nearest


@dataclass(frozen=True)
class Section:
    """A component that a configuration names.

    Attributes
    ----------
    name : str
        Its name in the table of its kind, or ``package.module:object``.
    options : mapping of str to Any
        All of its options.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


def find(kind: str, name: str, field: str | None = None) -> Callable[..., Any]:
    """Return a component by name.

    Parameters
    ----------
    kind : str
        A key of ``TABLES``.
    name : str
        A name in that table, or a user's ``package.module:object``.
    field : str, optional
        The name's place in the configuration, for messages; ``<kind>.name`` by default.

    Raises
    ------
    InputError
        For an unknown name, with the closest one, and for a user's component that does not derive
        from the base class of its kind or lacks one of its methods.

    Examples
    --------
    >>> find("model", "lineal")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    mpifed.errors.InputError: model.name is 'lineal'; did you mean 'linear'? allowed: cnn, ...
    """
    table, field = TABLES[kind], field or f"{kind}.name"
    if ":" in name:
        with_torch()
        return checked_own(kind, load(name, field), f"{field} is '{name}'")
    check_name(kind, name, field)
    return load(table[name], field)


def check_name(kind: str, name: str, field: str | None = None) -> None:
    """Refuse a name that no table has, without importing anything.

    Parameters
    ----------
    kind, name, field
        As for ``find``; a user's ``package.module:object`` is not looked up.

    Raises
    ------
    InputError
        For an unknown name, with the closest one.
    """
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


def summary(component: Callable[..., Any]) -> str:
    """Return the first line of the component's docstring."""
    return (component.__doc__ or "").strip().split("\n")[0]


def named(section: Any, path: str, default: str | None = None) -> tuple[str, dict[str, Any]]:
    """Return the name of a section and the options given beside it, neither of them looked up.

    Parameters
    ----------
    section : Any
        A name, a mapping with a name, or a ``Section``; None means the ``default``.
    path : str
        The section's place in the configuration, for messages.
    default : str, optional
        The name of a section that has none; without it a name is required.

    Raises
    ------
    InputError
        Where the section is none of these.
    """
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
    """Return the component of ``kind`` that a section asks for, with all options.

    Parameters
    ----------
    kind : str
        The table that has the name, a key of ``TABLES``.
    section, path, default
        As for ``named``; a ``Section`` is returned unchanged.
    n_training : int
        Clients that take part in training.

    Raises
    ------
    InputError
        For what is unknown or out of range.
    """
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
    """As ``check_options``; of an unknown option it says which other components have it.

    Parameters
    ----------
    kind : str
        A key of ``TABLES``.
    made, given, path
        As for ``check_options``.
    """
    return check_options(made, given, path, lambda option: said_elsewhere(kind, path, option, find))


def with_defaults(kind: str, section: Any) -> Any:
    """Return a stored section with the defaults of options that it lacks, as older runs do.

    Parameters
    ----------
    kind : str
        A key of ``TABLES``.
    section : Any
        The section; what is not a mapping with a known name is returned unchanged.
    """
    name = section.get("name") if isinstance(section, Mapping) else None
    if not isinstance(name, str) or name not in TABLES[kind]:
        return section
    known = options_of(find(kind, name)).values()
    return {**{each.name: plain(each.default) for each in known if not each.required}, **section}


def plain(value: Any) -> Any:
    """Return a configuration, or a part of one, as plain mappings, lists and values.

    Examples
    --------
    >>> plain(Section("mlp", {"hidden": (64, 32)}))
    {'name': 'mlp', 'hidden': [64, 32]}
    """
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
    """Import the object that ``package.module:object`` names; ``field`` is for messages.

    Raises
    ------
    InputError
        If the module cannot be imported, or has no such callable.
    """
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
