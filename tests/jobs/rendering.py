"""Scripts of jobs, as ``mpifed jobs render`` prints them."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from mpifed.testing import run_command

TEMPLATES = Path(__file__).parents[2] / "jobs"
"""Templates of scripts, sites and examples."""


def rendered(*words: object) -> str:
    code, out, err = _jobs("render", *words)
    assert code == 0, err
    return out


def refusal(*words: object) -> str:
    """The sentence by which a job is refused."""
    code, out, err = _jobs("render", *words)
    assert (code, out) == (2, "") and err.startswith("mpifed.jobs: ") and err.count("\n") == 1, err
    return err


def site(folder: Path, options: Mapping[str, Any]) -> list[str]:
    """The words of a job with these options, from a file of a site."""
    (folder / "site.yaml").write_text(yaml.safe_dump(dict(options), allow_unicode=True))
    return ["clients=4", "--output", str(folder / "run"), "--site", str(folder / "site.yaml")]


def directives(script: str) -> dict[str, str]:
    """What a script asks SLURM for, by the names of options."""
    lines = [line.removeprefix("#SBATCH --") for line in script.splitlines() if "#SBATCH" in line]
    return dict(line.partition("=")[::2] for line in lines)


def _jobs(*words: object) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_command(["jobs", *words])
    return code, out.getvalue(), err.getvalue()
