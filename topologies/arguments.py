"""What is said of a wrong argument of a command, in place of what argparse says."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from typing import Any

from topologies.spelling import nearest

# What argparse says of a word that is none of those allowed.
CHOICE = r"argument (.+): invalid choice: '(.*)' \(choose from (.*)\)"

KINDS = {"int": "a whole number", "float": "a number"}

HELP = "--help shows how the command is used"


def number(kind: type, allowed: str, holds: Callable[[Any], bool]) -> Callable[[str], Any]:
    """Return the ``type`` of an argument that is a number."""

    def read(text: str) -> Any:
        try:
            value = kind(text) if text.isascii() and "_" not in text else None
        except ValueError:
            value = None
        if value is None or not holds(value):
            given = repr(text) if value is None else text
            raise argparse.ArgumentTypeError(f"is {given}; it must be {allowed}")
        return value

    return read


def choice_in(message: str) -> tuple[str, str, list[str]] | None:
    """Return the argument, the word given and those allowed where argparse refuses a choice."""
    found = re.fullmatch(CHOICE, message)
    if found is None:
        return None
    place, given, known = found.groups()
    return place, given, [name.strip("'") for name in known.split(", ")]


def sentence(message: str, options: Iterable[str]) -> str:
    """Return what argparse says as a sentence: what was wrong, where, and what is allowed."""
    if found := re.fullmatch(r"argument (.+?): invalid (int|float) value: (.*)", message):
        place, kind, given = found.groups()
        return f"{place} is {given}; it must be {KINDS[kind]}"
    if found := re.fullmatch(r"argument (.+?): (is .*)", message, re.DOTALL):
        return f"{found[1]} {found[2]}"
    if found := re.fullmatch(r"argument (.+?): expected .*arguments?", message):
        return f"{found[1]} has no value; {HELP}"
    if found := re.fullmatch(r"argument (.+?): ignored explicit argument (.*)", message):
        return f"{found[1]} is {found[2]}, but it takes no value; {HELP}"
    unknown = re.match(r"unrecognized arguments: (--[\w-]+)", message)
    near = nearest(unknown[1], options) if unknown else None
    return f"{message}; " + (f"did you mean {near}? " if near else "") + HELP
