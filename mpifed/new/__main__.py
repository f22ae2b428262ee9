"""Writes a component that works as it is, to be changed, and a test of it."""

from __future__ import annotations

import importlib.util
import keyword
import sys
from collections.abc import Sequence
from pathlib import Path
from string import Template

from mpifed.command import Parser, carried_out, parser_of
from mpifed.errors import EXIT_FINISHED, InputError

TEMPLATES = Path(__file__).parent / "templates"

# Kinds of components that there is a template of, each with what it is and how it is run.
KINDS = {
    "method": (
        "FedAvg with a learning rate at the server",
        "digits-fedem algorithm.name=$module:$name",
    ),
    "model": (
        "a small convolutional network",
        "digits-fedem algorithm=fedavg model.name=$module:$name",
    ),
    "data": (
        "two classes, with a centre of its own for each client",
        "synthetic-fedem algorithm=fedavg clients=20 data.name=$module:$name",
    ),
    "schedule": (
        "pairs that average, others in every round",
        "synthetic-gossip clients=10 exchange.schedule=$module:$function",
    ),
    "topology": (
        "a ring with links to the opposite client",
        "synthetic-gossip clients=10 exchange.topology=$module:$function",
    ),
    "compressor": (
        "a random share of the numbers",
        "digits-fedem algorithm=fedavg compression.name=$module:$name",
    ),
    "attack": (
        "the signs of the update, reversed",
        "digits-fedem algorithm=fedavg attack.name=$module:$name attack.fraction=0.2",
    ),
    "server_optimizer": (
        "steps by the signs of a momentum",
        "digits-fedem algorithm=fedavg server_optimizer.name=$module:$name",
    ),
    "loss": (
        "the cross-entropy with smoothed labels, of a network",
        "digits-fedem algorithm=fedavg model.name=$module:$name",
    ),
}


def main(words: Sequence[str] | None = None) -> int:
    """Run the command."""
    return carried_out("mpifed.new", lambda: _new(words))


def _new(words: Sequence[str] | None) -> int:
    options = parser().parse_args(words)
    name, directory = options.name, Path(options.directory)
    check_module_name(name)
    if not directory.is_dir():
        raise InputError(f"--directory {directory} is not a directory that exists")
    module, test = directory / f"{name}.py", directory / f"test_{name}.py"
    for path in (module, test):
        if path.exists():
            raise InputError(f"{path} exists; choose another name, or remove it")
    title = "".join(part.capitalize() for part in name.split("_"))
    substitutions = {"module": name, "function": name, "name": title}
    for path, prefix in ((module, ""), (test, "test_")):
        text = (TEMPLATES / f"{prefix}{options.kind}.txt").read_text(encoding="utf-8")
        path.write_text(Template(text).substitute(substitutions), encoding="utf-8")
    description, command = KINDS[options.kind]
    at = "" if directory.resolve() == Path.cwd() else f"cd {directory} && "
    print(f"wrote {module}: {description}; change it\nwrote {test}")
    print(f"  {at}python -m mpifed.run {Template(command).substitute(substitutions)} rounds=5")
    print(f"  {at}python -m pytest {test.name}")
    return EXIT_FINISHED


def check_module_name(name: str) -> None:
    """Refuse a name that cannot be imported, or under which Python finds something else."""
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise InputError(
            f"{name!r} cannot be the name of a module; use letters, digits and _, as in my_method"
        )
    spec = importlib.util.find_spec(name)
    if spec is not None and Path(spec.origin or "").parent.resolve() != Path.cwd():
        raise InputError(
            f"{name!r} is the name of a module that Python already finds in {spec.origin}; "
            "choose another name"
        )


def parser() -> Parser:
    """Return the parser of the command."""
    kinds = "\n".join(f"  {name:<17} {description}" for name, (description, _) in KINDS.items())
    command_line = parser_of("new", f"{__doc__}\nkinds:\n{kinds}\n")
    command_line.add_argument("kind", choices=KINDS, metavar="KIND", help=", ".join(KINDS))
    command_line.add_argument("name", metavar="NAME", help="name of the module, as in my_method")
    command_line.add_argument(
        "--directory", default=".", help="where it is written (default: here)"
    )
    return command_line


if __name__ == "__main__":
    sys.exit(main())
