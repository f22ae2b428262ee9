"""Where the templates, the shell library and the site files are."""

from __future__ import annotations

from pathlib import Path
from typing import Literal


def folder(name: Literal["templates", "lib", "sites", "examples"]) -> Path:
    """Return the directory ``name`` of the files that come with mpifed."""
    return Path(__file__).parent / name
