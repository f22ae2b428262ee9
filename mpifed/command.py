"""The parser that all commands share, and their names in help texts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from mpifed.errors import InputError, closest
from topologies.inputs import choice_in, number, sentence

N = TypeVar("N", int, float)


class Parser(argparse.ArgumentParser):
    """argparse, except that a wrong argument raises ``InputError``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.register("type", int, _plain(int))
        self.register("type", float, _plain(float))

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> Any:
        """As argparse; all other parsing methods call this one."""
        words = list(sys.argv[1:] if args is None else args)
        for word in words:
            if any("\ud800" <= letter <= "\udfff" for letter in word):
                raise InputError(f"{word!a} is not text in UTF-8; rename what it names")
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        """Raise ``InputError`` with the message of argparse, and with what may be meant."""
        choice = choice_in(message)
        if choice is not None:
            place, given, names = choice
            raise InputError(f"{place} is {given!r}; {closest(given, names)}")
        raise InputError(sentence(message, self._option_string_actions))


def whole(least: int) -> Callable[[str], int]:
    """Return the ``type`` of an argument that is a whole number."""
    return number(int, f"a whole number, at least {least}", lambda value: bool(value >= least))


def started_as() -> str:
    """Return the text that starts ``mpifed``: its script, or Python with the package."""
    return "mpifed" if Path(sys.argv[0]).name == "mpifed" else "python -m mpifed"


def program(subcommand: str) -> str:
    """Return the text that starts a subcommand, in the form in which this process was started."""
    started = Path(sys.argv[0])
    dispatched = started.name == "mpifed" or started.parts[-2:] == ("mpifed", "__main__.py")
    return f"{started_as()} {subcommand}" if dispatched else f"python -m mpifed.{subcommand}"


def _plain(kind: Callable[[str], N]) -> Callable[[str], N]:
    """Return ``kind`` restricted to texts that mean the same number outside Python."""

    def read(text: str) -> N:
        if not text.isascii() or "_" in text:
            raise ValueError
        return kind(text)

    return read
