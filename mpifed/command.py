"""What all commands share: their parser, and what they are called in their help."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NoReturn

from mpifed.errors import InputError


class Parser(argparse.ArgumentParser):
    """argparse, except that a wrong argument raises ``InputError``."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; --help shows how the command is used")


def started_as() -> str:
    """Return what a user types to start ``mpifed``: its script, or Python with the package."""
    return "mpifed" if Path(sys.argv[0]).name == "mpifed" else "python -m mpifed"


def program(subcommand: str) -> str:
    """Return what a user types to start a subcommand, as this process was started."""
    started = Path(sys.argv[0])
    dispatched = started.name == "mpifed" or started.parts[-2:] == ("mpifed", "__main__.py")
    return f"{started_as()} {subcommand}" if dispatched else f"python -m mpifed.{subcommand}"
