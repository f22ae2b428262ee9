"""``python -m mpifed.dry_runs``: dry runs of many configurations, for a sweep that begins."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mpifed.api import execute
from mpifed.components.without_torch import names_own_module
from mpifed.config.configuration import resolve
from mpifed.config.experiments import apply_overrides, parse_overrides, read_experiment
from mpifed.errors import InputError, text_of
from mpifed.io.yaml_files import as_text
from mpifed.mpi.communicator import Alone
from mpifed.training.build import make_dataset
from mpifed.training.request import Request
from mpifed.watchdog.launcher import die_with_parent


def refusal_of(experiment: str, words: list[str], output: str, ranks: int) -> str | None:
    """Return why a run would be refused, as far as its dry run on one rank tells."""
    try:
        overrides = parse_overrides(words)
        asked = apply_overrides(read_experiment(experiment), overrides)
        if asked.get("clients") == "ranks":
            overrides["clients"] = ranks
        request = Request(
            experiment, overrides, Path(output), resume=True, dry_run=True, quiet=True
        )
        with contextlib.redirect_stdout(io.StringIO()):
            execute(request, Alone(), lambda: False)
    except InputError as error:
        return text_of(error)
    except Exception:  # a user's component may raise anything
        return None
    return None


def _make_data_once(experiment: str, words: list[str], made: set[str]) -> None:
    """Make the data set here where it is a shipped one, so that copies find its libraries."""
    with contextlib.suppress(Exception):  # which the dry run tells
        asked = apply_overrides(read_experiment(experiment), parse_overrides(words))
        section = as_text({key: asked[key] for key in ("data", "clients") if key in asked})
        if section not in made and not names_own_module(section):
            made.add(section)
            make_dataset(resolve({"clients": asked["clients"], "data": asked["data"]}), Alone())


def _in_a_copy(*about: Any) -> str | None:
    """Call ``refusal_of`` in a copy of this process."""
    reading, writing = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            die_with_parent(parent)
            said = refusal_of(*about) or ""
            with os.fdopen(writing, "w", encoding="utf-8", errors="replace") as told:
                told.write(said)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8", errors="replace") as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text or None


def answer(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first refusal, and how many configurations were tried."""
    experiment, latest = asked["experiment"], time.monotonic() + asked["seconds"]
    made: set[str] = set()
    for number, (words, output) in enumerate(asked["tried"]):
        if number >= asked["needed"] and time.monotonic() > latest:
            return {"tried": number, "refused": None}
        own = any(map(names_own_module, [experiment, *words]))
        if own:
            _make_data_once(experiment, words, made)
        refused = (_in_a_copy if own else refusal_of)(experiment, words, output, asked["ranks"])
        if refused is not None:
            return {"tried": number + 1, "refused": refused}
    return {"tried": len(asked["tried"]), "refused": None}


def main() -> None:
    """Answer what is asked on standard input; what components print is not part of it."""
    asked = json.load(sys.stdin)
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as told:
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        json.dump(answer(asked), told)


if __name__ == "__main__":
    main()
