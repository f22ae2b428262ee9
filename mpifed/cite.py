"""``python -m mpifed.cite RUN ...``: BibTeX of the method, data, graph and other parts of runs.

Docstrings of components name authors and years, and references.bib has the titles. A paper that it
lacks, such as one that an own component names, becomes a short entry.
"""

from __future__ import annotations

import inspect
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from mpifed import __version__
from mpifed.command import Parser, carried_out, parser_of
from mpifed.components.registry import find
from mpifed.errors import EXIT_FINISHED, InputError
from mpifed.local.options import LocalOptions
from mpifed.results.configurations import read_stored
from topologies import FAMILIES, WEIGHTS, names
from topologies.parameters import options_of
from topologies.schedules.table import SCHEDULES

# Kinds of components that are cited; of the first, the head of their module counts, too.
BY_MODULE = ("algorithm", "model")
KINDS = (
    *(*BY_MODULE, "data", "compression", "correction", "aggregator", "pre_aggregator"),
    *("server_optimizer", "attack", "surrogate"),
)
GRAPHS: Mapping[str, Any] = {"topology": FAMILIES, "weights": WEIGHTS, "schedule": SCHEDULES}

# A family name, and a citation: names, and others, perhaps a place in capitals, and a year.
NAME = r"(?:(?:De|El|T|van) )?[A-Z][\w'’-]*[a-z][\w'’-]*"
CITATION = re.compile(
    rf"({NAME})((?:, {NAME})*(?:,? and {NAME})?)( et al\.)?,?(?: [A-Z]{{3,}})? \(?((?:19|20)\d\d)\b"
)
ENTRY = re.compile(r"^@\w+\{(\w+), (.*), cited = \{(.*)\}\}$", re.MULTILINE)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command."""
    return carried_out("mpifed.cite", lambda: _cite(sys.argv[1:] if words is None else words))


def _cite(words: Sequence[str]) -> int:
    options = parser().parse_args(words)
    print("\n\n".join(bibliography(options.runs)))
    return EXIT_FINISHED


def bibliography(runs: Sequence[Path]) -> list[str]:
    """Return the entries of BibTeX for runs, mpifed itself first, none twice.

    Parameters
    ----------
    runs : sequence of Path
        Run directories.

    Returns
    -------
    list of str
        Entries.
    """
    entries = [
        "@software{mpifed,\n  author = {{The mpifed developers}},\n  title = {mpifed: federated "
        "learning, centralised and decentralised, simulated over MPI},\n  version = "
        f"{{{__version__}}}\n}}"
    ]
    for run in runs:
        if not (run / "config.yaml").is_file():
            raise InputError(f"RUN is '{run}', which holds no run: there is no config.yaml in it")
        stored = read_stored(run / "config.yaml")
        for kind, name in dict.fromkeys(components_of(stored)):
            entries += cited_by(kind, name)
        entries += cited_by_steps(stored.get("local"))
    by_key: dict[str, str] = {}
    for entry in entries:
        by_key.setdefault(entry.partition(",")[0], entry)
    return list(by_key.values())


def components_of(mapping: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, str]]:
    """Return the kind and the name of each component in a configuration, or in a section."""
    for key, value in mapping.items():
        for part in value if isinstance(value, list) else [value]:
            named = isinstance(part, Mapping)
            name = part.get("name") if named else part
            # A component in options of another one, such as one of several compressors.
            kind = within if named and key not in (*KINDS, *GRAPHS) else key
            if isinstance(name, str) and kind in (*KINDS, *GRAPHS):
                yield kind, name
            if named:
                yield from components_of(part, kind)


def cited_by(kind: str, name: str) -> list[str]:
    """Return the entries of BibTeX that a component's docstring names."""
    component: Callable[..., Any]
    if kind in GRAPHS:
        component = names.find(GRAPHS[kind], kind, name).build
    else:
        component = find(kind, name)
    text = inspect.getdoc(component) or ""
    module = sys.modules[component.__module__].__doc__ or ""
    head, above = (part.split("\n\n")[0] for part in (text, module))
    further = [above] if kind in BY_MODULE else [text, above] if kind in GRAPHS else [text]
    for part in (head, *further):
        part = " ".join(part.split())
        citations = list(CITATION.finditer(part))
        if citations:
            words = f"{name} {head} {above}"
            return [_entry(citation, words, f"{kind} {name}") for citation in citations]
    return []


def cited_by_steps(options: Any) -> list[str]:
    """Return the entries that options of local steps name, of those that are not at defaults."""
    chosen = options if isinstance(options, Mapping) else {}
    return [
        _entry(citation, option.summary, f"local.{name}")
        for name, option in options_of(LocalOptions).items()
        if chosen.get(name, option.default) != option.default
        for citation in CITATION.finditer(option.summary)
    ]


def _entry(citation: re.Match[str], text: str, component: str) -> str:
    """Return the entry of a citation, of those in references.bib or made of its words."""
    family, others, et_al, year = citation.groups()
    authors = [family, *re.findall(NAME, others)]
    content = (files("mpifed") / "references.bib").read_text(encoding="utf-8")
    references = [
        (reference.partition(f" {year}"), key, fields)
        for key, fields, cited in ENTRY.findall(content)
        for reference in cited.split("; ")
    ]
    for name in authors:  # the first, but for a method that stands before them
        for (author, of_year, words), key, fields in references:
            if of_year and author == name and words.strip() in text:
                return _formatted(key, fields, content)
    authors += ["others"] * bool(et_al)
    plain = unicodedata.normalize("NFKD", family).encode("ascii", "ignore").decode()
    key = re.sub(r"\W", "", plain).lower() + year
    return (
        f"@misc{{{key},\n  author = {{{' and '.join(authors)}}},\n  year = {{{year}}},\n"
        f"  note = {{Named by mpifed's {component.replace('_', chr(92) + '_')}; add its title}}\n}}"
    )


def _formatted(key: str, fields: str, content: str) -> str:
    """Return an entry with a field a line."""
    kind = re.search(rf"^(@\w+)\{{{key},", content, re.MULTILINE)
    lines = re.sub(r", (\w+) = \{", r",\n  \1 = {", fields)
    return f"{kind[1] if kind else '@misc'}{{{key},\n  {lines}\n}}"


def parser() -> Parser:
    """Return the parser of the command."""
    command_line = parser_of(
        "cite",
        "Print BibTeX of what runs used: method, data, graph, weights, compressor and other parts.",
        epilog="Example: python -m mpifed.cite runs/first > paper.bib",
    )
    command_line.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="a run directory, finished or not"
    )
    return command_line


if __name__ == "__main__":
    sys.exit(main())
