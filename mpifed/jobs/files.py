"""Where the templates, the shell library and the site files are.

They live in ``jobs/`` of the repository; installing mpifed puts a copy beside this module.
"""

from __future__ import annotations

from pathlib import Path

FOLDERS = ("templates", "lib", "sites", "examples")


def folder(name: str) -> Path:
    """The directory ``name``, one of ``FOLDERS``."""
    beside = Path(__file__).parent / name
    return beside if beside.is_dir() else Path(__file__).parents[2] / "jobs" / name
