"""Reads descriptions of options from docstrings: the section ``Parameters`` of numpydoc."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

HEADING = "Parameters\n----------\n"
YEAR = re.compile(r"\b(19|20)\d\d\b")
SENTENCE = re.compile(r"(?<=[\w)\]'`])\.\s+(?=[A-Z`])")


def summaries(component: Callable[..., Any]) -> dict[str, str]:
    """Return a line about each parameter of a component, by name.

    The line is the first sentence of its description, and the next one where that begins with None.

    Parameters
    ----------
    component : callable
        A function or class. Base classes of a class are read too.

    Examples
    --------
    >>> def model(data, *, width=None):
    ...     '''A model.
    ...
    ...     Parameters
    ...     ----------
    ...     width : int
    ...         Width of a layer. None is the
    ...         number of inputs. It changes nothing.
    ...     '''
    >>> summaries(model)
    {'width': 'Width of a layer; null is the number of inputs'}
    """
    found: dict[str, str] = {}
    parts = reversed(inspect.getmro(component)) if inspect.isclass(component) else [component]
    for part in parts:
        for names, text in _entries(inspect.cleandoc(part.__doc__ or "")):
            found |= {name.strip(): _line(text) for name in names.split(",")}
    return found


def source(component: Callable[..., Any]) -> str:
    """Return the first sentence of the component's module if it names a year of a paper, else ''.

    Examples
    --------
    >>> from mpifed.algorithms.ditto import Ditto
    >>> source(Ditto)
    'Ditto (Li et al. 2021, Algorithm 1): a global model, and personal ones that are pulled to it'
    >>> source(len)
    ''
    """
    module = inspect.getmodule(component)
    first = " ".join(((module and module.__doc__) or "").split("\n\n")[0].split())
    first = SENTENCE.split(first)[0].removesuffix(".").replace("``", "'")
    return first if YEAR.search(first) else ""


def _line(text: str) -> str:
    first, *rest = SENTENCE.split(text.removesuffix("."))
    if rest and rest[0].startswith("None "):
        first += f"; null {rest[0].removeprefix('None ')}"
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
