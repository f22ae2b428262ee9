"""Source distributions and wheels, made of a clean copy of the checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def built(kind: str, source: Path, target: Path) -> Path:
    """The sdist or the wheel that setuptools makes of ``source``."""
    program = f"import setuptools.build_meta as b; print(b.build_{kind}({str(target)!r}))"
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=source, capture_output=True, text=True, timeout=120
    )
    assert answer.returncode == 0, answer.stderr
    return target / answer.stdout.splitlines()[-1]


def copied(place: Path) -> Path:
    """What a distribution is made of, without what earlier builds and runs have left."""
    left = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("mpifed", "topologies"):
        shutil.copytree(ROOT / name, place / name, ignore=left)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place / name)
    return place
