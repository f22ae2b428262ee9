"""The methods that the theorems of FLIX are about."""

from __future__ import annotations

from pathlib import Path

from mpifed.errors import InputError

METHODS = ("flix", "dcgd", "diana")


def check_method(directory: Path, name: object) -> None:
    """Refuse a run of another method."""
    if name not in METHODS:
        raise InputError(
            f"RUN_DIR is '{directory}', a run of '{name}'; it must be one of: {', '.join(METHODS)}"
        )
