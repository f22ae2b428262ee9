"""Names of components as users write them: objects in their place, and names of another form."""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
from typing import Any

from mpifed.components.schema import shown
from mpifed.errors import InputError
from mpifed.reading.yaml_files import parse_value

SPELT = re.compile(r"[A-Za-z_]\w*(\.[\w.]*:\w+)?:\w+=")
"""How a component with options in one text begins: ``torus:rows=4``, ``own.module:graph:k=3``."""


def is_component(value: Any) -> bool:
    """Return whether a value is a class or something that was made to be called."""
    return isinstance(value, (type, functools.partial)) or hasattr(value, "__qualname__")


def name_of(made: Any, field: str) -> str:
    """Return the name under which a class or a function can be imported.

    Parameters
    ----------
    made : class or callable
        What a program passes as a component.
    field : str
        Its place in the configuration, for messages.

    Returns
    -------
    str
        ``package.module:object``. The module of the program itself is ``__main__``.

    Raises
    ------
    InputError
        For what no name at the top level of its module stands for, such as a method, or a lambda
        or ``functools.partial`` within a call.

    Examples
    --------
    >>> name_of(InputError, "model")
    'mpifed.errors:InputError'
    >>> name_of(lambda data: None, "model")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    mpifed.errors.InputError: model is a lambda, which a configuration cannot name; ...
    """
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
    """Return the name of a user's component without the module that it is in.

    Parameters
    ----------
    name : str
        The name of a component.

    Examples
    --------
    >>> without_module("mymethod:Mymethod"), without_module("fedem")
    ('Mymethod', 'fedem')
    """
    module, _, own = name.rpartition(":")
    return own if own.isidentifier() and all(map(str.isidentifier, module.split("."))) else name


def hint_at_own(name: str) -> str:
    """Return the form of names of a user's own components, where a name with dots looks like one.

    Examples
    --------
    >>> hint_at_own("json.loads")
    "did you mean 'json:loads'? components of your own are named package.module:object; "
    >>> hint_at_own("lineal")
    ''
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
    """Return the end of a sentence: how a file of Python is named, and where it is looked for.

    Examples
    --------
    >>> where_modules_are("mine.py", "net")
    "; write 'mine:net'; the file must be in the working directory or in a folder of PYTHONPATH"
    """
    file = module.removesuffix(".py").rpartition("/")[2]
    named = f"; write '{file}:{attribute}'" if file != module else ""
    return f"{named}; the file must be in the working directory or in a folder of PYTHONPATH"


def with_options(name: str, path: str) -> tuple[str, dict[str, Any]]:
    """Split ``name:key=value,...``, as ``python -m topologies`` does; other names have no options.

    Parameters
    ----------
    name : str
        What was given as a component's name.
    path : str
        Its place in the configuration, for messages.

    Raises
    ------
    InputError
        If a part is not ``key=value``, or a key comes twice.

    Examples
    --------
    >>> with_options("torus:rows=4,cols=5", "exchange.topology")
    ('torus', {'rows': 4, 'cols': 5})
    >>> with_options("mine:graph", "exchange.topology")
    ('mine:graph', {})
    """
    if SPELT.match(name) is None:
        return name, {}
    from topologies.catalogue import parse_spec  # here, since few names are so
    from topologies.parameters import TopologyError

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
