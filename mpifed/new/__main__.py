"""Writes a component that works as it is, to be changed, and a test of it."""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from mpifed.command import Parser, carried_out, program
from mpifed.errors import EXIT_BAD_INPUT, EXIT_FINISHED, InputError, closest, complain

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Kind:
    """A kind of component that there is a template of."""

    about: str
    command: str


KINDS: Mapping[str, Kind] = {
    "method": Kind(
        "FedAvg with a learning rate at the server", "digits-fedem algorithm.name=$module:$name"
    ),
    "model": Kind(
        "a small convolutional network", "digits-fedem algorithm=fedavg model.name=$module:$name"
    ),
    "data": Kind(
        "two classes, with a centre of its own for each client",
        "synthetic-fedem algorithm=fedavg clients=20 data.name=$module:$name",
    ),
    "schedule": Kind(
        "pairs that average, others in every round",
        "synthetic-gossip clients=10 exchange.schedule=$module:$function",
    ),
}


def main(words: Sequence[str] | None = None) -> int:
    """Run the command."""
    try:
        options = parser().parse_args(words)
        lines = write(options.kind, options.name, Path(options.directory))
    except InputError as error:
        complain("mpifed.new", str(error))
        return EXIT_BAD_INPUT
    print(*lines, sep="\n")
    return EXIT_FINISHED


def write(kind: str, name: str, directory: Path) -> list[str]:
    """Write the module and its test."""
    if kind not in KINDS:
        raise InputError(f"{kind!r} is not a kind of component; {closest(kind, KINDS)}")
    _check_name(name)
    if not directory.is_dir():
        raise InputError(f"--directory {directory} is not a directory that exists")
    files = {
        directory / f"{name}.py": TEMPLATES / f"{kind}.txt",
        directory / f"test_{name}.py": TEMPLATES / f"test_{kind}.txt",
    }
    for path in files:
        if path.exists():
            raise InputError(f"{path} exists; choose another name, or remove it")
    known = {
        "module": name,
        "function": name,
        "name": "".join(part.capitalize() for part in name.split("_")),
    }
    for path, template in files.items():
        text = Template(template.read_text(encoding="utf-8")).substitute(known)
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror}") from None
    module, test = files
    at = "" if directory.resolve() == Path.cwd() else f"cd {directory} && "
    used = Template(KINDS[kind].command).substitute(known)
    return [
        f"wrote {module}: {KINDS[kind].about}; change it",
        f"wrote {test}",
        f"  {at}python -m mpifed.run {used} rounds=5",
        f"  {at}python -m pytest {test.name}",
    ]


def _check_name(name: str) -> None:
    """Refuse a name that cannot be imported, or under which something else is."""
    if not name.isidentifier() or keyword.iskeyword(name) or name.strip("_") == "":
        raise InputError(
            f"{name!r} cannot be the name of a module; use letters, digits and _, as in my_method"
        )
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        found = None
    if found is not None and Path(found.origin or "").parent.resolve() != Path(os.getcwd()):
        raise InputError(
            f"{name!r} is the name of a module that Python already finds"
            + (f" in {found.origin}" if found.origin else "")
            + "; choose another name"
        )


def parser() -> Parser:
    """Return the parser of the command."""
    kinds = "\n".join(f"  {name:<9} {kind.about}" for name, kind in KINDS.items())
    made = Parser(
        prog=program("new"),
        description=f"{__doc__}\nkinds:\n{kinds}\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("kind", metavar="KIND", help=", ".join(KINDS))
    made.add_argument("name", metavar="NAME", help="name of the module, as in my_method")
    made.add_argument("--directory", default=".", help="where it is written (default: here)")
    return made


if __name__ == "__main__":
    sys.exit(carried_out("mpifed.new", main))
