"""What docstrings say of a function or class, and of each of its parameters."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

HEADING = "Parameters\n----------\n"
SENTENCE = re.compile(r"(?<=[\w)\]'`])\.\s+(?=[A-Z`])")


def summary(component: Callable[..., Any]) -> str:
    """Return the first sentence of the component's docstring, also where it has several lines."""
    paragraph = " ".join((component.__doc__ or "").strip().split("\n\n")[0].split())
    first, *others = SENTENCE.split(paragraph)
    return f"{first}." if others else first


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
