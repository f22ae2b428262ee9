"""Where the templates, the shell library and the site files are.

They live in ``jobs/`` of the repository; installing mpifed puts a copy beside this module.
"""

from __future__ import annotations

from pathlib import Path

FOLDERS = ("templates", "lib", "sites", "examples")


def folder(name: str) -> Path:
    """Return a directory of files that come with mpifed.

    Parameters
    ----------
    name : str
        One of ``FOLDERS``.

    Returns
    -------
    Path
        The directory, in the installation or in the repository.
    """
    beside = Path(__file__).parent / name
    return beside if beside.is_dir() else Path(__file__).parents[2] / "jobs" / name
