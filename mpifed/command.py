"""The parser that all commands share."""

from __future__ import annotations

import argparse
from typing import NoReturn

from mpifed.errors import InputError


class Parser(argparse.ArgumentParser):
    """argparse, except that a wrong argument raises ``InputError``."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; --help shows how the command is used")
