"""Command lines: their parser, the numbers among their arguments, and what they print."""

from __future__ import annotations

import argparse
import codecs
import io
import os
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from topologies.errors import InputError, RunError, closest, nearest
from topologies.job_environment import is_silent

# In ASCII, signs as wide as they are, so that columns of tables stay below each other.
PLAIN = {"±": "~", "–": "-", "−": "-", "×": "x", "·": "."}


def discard_output() -> None:
    """Send standard output nowhere: Python flushes once more at its end, and would complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _plain(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    sign = error.object[error.start]
    return PLAIN.get(sign, sign.encode("ascii", "backslashreplace").decode()), error.start + 1


def escape_unshown() -> None:
    """Let what standard output cannot show, in ASCII say, appear as a like sign or its code."""
    codecs.register_error("plain", _plain)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="plain")


def say(text: str, end: str = "\n") -> None:
    """Print at once; where the reader has left, what goes on without one goes on in silence."""
    try:
        print(text, end=end, flush=True)
    except OSError as error:
        discard_output()
        if not isinstance(error, BrokenPipeError):
            raise RunError(f"standard output cannot be written: {error.strerror}") from error


def number(kind: type, allowed: str, holds: Callable[[Any], bool]) -> Callable[[str], Any]:
    """Return the ``type`` of an argument that is a number."""

    def read(text: str) -> Any:
        try:
            value = kind(text) if text.isascii() and "_" not in text else None
        except ValueError:
            value = None
        if value is None or not holds(value):
            typed = repr(text) if value is None else text
            raise argparse.ArgumentTypeError(f"is {typed}; it must be {allowed}")
        return value

    return read


class Parser(argparse.ArgumentParser):
    """argparse, except that a wrong argument raises ``InputError``."""

    def format_help(self) -> str:
        """Return the help, without the marks of code in docstrings."""
        return super().format_help().replace("``", "")

    def _print_message(self, message: str, file: Any = None) -> None:
        if not is_silent():
            say(message, end="")  # argparse would say nothing of a full disk

    def error(self, message: str) -> NoReturn:
        """Raise the message of argparse, with what may be meant."""
        if match := re.fullmatch(
            r"argument (.+): invalid choice: '(.*)' \(choose from (.*)\)", message
        ):
            argument, choice, allowed = match.groups()
            names = [name.strip("'") for name in allowed.split(", ")]
            raise InputError(f"{argument} is {choice!r}; {closest(choice, names)}")
        if match := re.fullmatch(r"argument (.+?): (is .*)", message, re.DOTALL):
            raise InputError(f"{match[1]} {match[2]}")
        unknown = re.match(r"unrecognized arguments: --([\w-]+)(?:[ =]([^- ]\S*))?", message)
        hint = ""
        if unknown:
            near = [nearest(f"--{unknown[1]}", self._option_string_actions) or ""]
            if unknown[2] and any("key=value" in str(each.metavar) for each in self._actions):
                near.append(f"{unknown[1].replace('-', '_')}={unknown[2]}")
            hint = f"did you mean {' or '.join(filter(None, near))}? " if any(near) else ""
        raise InputError(f"{message}; {hint}--help shows how the command is used")
