"""Prints a script with which bash or zsh completes the words of mpifed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from mpifed.command import Parser, program
from mpifed.completion.script import SHELLS, script
from mpifed.errors import EXIT_BAD_INPUT, EXIT_FINISHED, InputError, closest, complain, text_of


def main(words: Sequence[str] | None = None) -> int:
    """Run ``mpifed completion``."""
    try:
        shell = parser().parse_args(words).shell
        if shell not in SHELLS:
            raise InputError(f"the shell is '{shell}'; {closest(shell, SHELLS)}")
        text = script(shell)
    except InputError as error:
        complain("mpifed.completion", text_of(error))
        return EXIT_BAD_INPUT
    print(text, end="")
    return EXIT_FINISHED


def parser() -> Parser:
    """Return the parser of the command."""
    made = Parser(
        prog=program("completion"),
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("shell", metavar="SHELL", help=" or ".join(SHELLS))
    return made


if __name__ == "__main__":
    sys.exit(main())
