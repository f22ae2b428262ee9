"""Writes docs/configuration.md and docs/components.md: ``python scripts/pages/configuration.py``.

The one has all keys of an experiment, the other the options of each component. Types, bounds,
defaults and meanings are those by which mpifed checks each option, as ``mpifed run --list NAME``
prints them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mpifed.components.tables import LISTS
from mpifed.config.configuration import SECTIONS, Configuration
from mpifed.config.experiments import DEFAULTS
from mpifed.config.job import JobOptions
from mpifed.config.listing import listed_records
from topologies.parameters import options_of

DOCS = Path(__file__).parents[2] / "docs"

COMPONENTS = """# Options of components

The options of every method, data set, model, graph and other component: types, defaults and
meanings. They stand in the component's section (`algorithm: {name: ditto, weight: 0.1}`), or behind
its key with a dot (`algorithm.weight=0.1`). Keys of all experiments are in
[the configuration](configuration.md).
`python scripts/pages/configuration.py` writes this page from the code.
"""

HEAD = """# Configuration

Every key of an experiment, with its type, default and meaning. Write keys in a YAML file, or behind
a command with dots (`local.lr=0.05`). `mpifed run --list NAME` prints the same of a section or of a
component, `mpifed run --list local.lr` of one key, `mpifed run --list all` all names. Methods, data
sets, models and other components have [options of their own](components.md).
`python scripts/pages/configuration.py` writes this page from the code.
"""

JOBS = "These keys are for [`mpifed jobs`](slurm.md); `mpifed run` refuses them.\n"

VARIABLES = """## Environment variables

| variable | meaning |
| --- | --- |
| `MPIFED_DATA` | the folder of raw data sets where `data.raw` is not set |
| `MPIFED_SITE` | the site file of `mpifed jobs` where there is no `--site` |
| `MPIFED_DEBUG=1` | bad words and files, too, show Python's traceback |
| `MPIFED_PREFORK=0` | each rank starts its own interpreter, in place of a fork on each node |
| `MPIFED_PYTHON`, `MPIFED_MPI` | Python and MPI of `scripts/quickstart` and `scripts/test` |
| `MPIFED_TRACK` | the trackers of runs without `--track` |
| `MPI4PY_LIBMPI` | the MPI library that mpi4py loads |
| `OMP_NUM_THREADS` | threads of a rank where `threads` is not set |
"""


def _cell(text: Any) -> str:
    words = str(text).replace("|", "\\|").replace("\n", " ")
    return re.sub(r"'([^' ]+)'", r"`\1`", words)


def _default(option: dict[str, Any]) -> str:
    if "default" not in option:
        return "required"
    value = option["default"]
    words = {None: "null", True: "true", False: "false", "": "''"}
    shown = words.get(value, value) if value is None or isinstance(value, bool | str) else value
    return f"`{shown}`"


def _table(options: list[dict[str, Any]], prefix: str = "") -> Iterator[str]:
    yield "| key | type | default | meaning |"
    yield "| --- | --- | --- | --- |"
    for option in options:
        summary = _cell(option["summary"] or "")
        cells = (f"`{prefix}{option['name']}`", _cell(option["allowed"]), _default(option), summary)
        yield f"| {' | '.join(cells)} |"


def _options(component: Any) -> list[dict[str, Any]]:
    """Return the options of a class of the configuration."""
    return [
        {
            "name": each.name,
            "allowed": each.allowed,
            **({} if each.required else {"default": each.default}),
            "summary": each.summary.replace("``", "'"),
        }
        for each in options_of(component).values()
    ]


def configuration() -> str:
    """Return the page of keys and sections."""
    plain = [each for each in _options(Configuration) if each["name"] not in {*SECTIONS, *DEFAULTS}]
    for each in plain:
        if each["name"] in LISTS:
            each["allowed"] = f"a number or [a kind](components.md#{each['name']})"
    lines = [HEAD, "## Keys\n", *_table(plain), "", "## Components\n"]
    lines += ["| key | default | allowed |", "| --- | --- | --- |"]
    lines += [
        f"| `{kind}` | `{default}` | [{LISTS[kind]}](components.md#{LISTS[kind]}) |"
        for kind, default in DEFAULTS.items()
        if kind in LISTS
    ]
    for section, component in {**SECTIONS, "job": JobOptions}.items():
        about = [JOBS] if component is JobOptions else []
        lines += ["", f"## {section}\n", *about, *_table(_options(component), f"{section}.")]
    return "\n".join([*lines, "", VARIABLES])


def components() -> str:
    """Return the page of the options of components."""
    lines = [COMPONENTS]
    for kind, plural in LISTS.items():
        lines += ["", f"## {plural}\n"]
        for name in [record["name"] for record in listed_records(plural)]:
            (record,) = [each for each in listed_records(name) if each["kind"] == kind]
            lines += [f"### {name}\n", f"{_cell(record.get('summary', '')).rstrip('.')}.\n"]
            lines += [*_table(record["options"]), ""] if record["options"] else []
    return "\n".join(lines)


PAGES = {"configuration.md": configuration, "components.md": components}


if __name__ == "__main__":
    for name, text in PAGES.items():
        (DOCS / name).write_text(text(), encoding="utf-8")
