"""`python -m mpifed.data NAME --output FILE.h5 --clients N ...`: makes a federated HDF5 file."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mpifed.command import Parser, carried_out, program, whole
from mpifed.components.registry import find, summaries, summary
from mpifed.components.tables import DATASETS
from mpifed.errors import EXIT_FINISHED, InputError, closest, one_line
from mpifed.io.yaml_files import parse_value
from mpifed.mpi.communicator import Alone
from mpifed.watchdog.launcher import check_one_process
from topologies.parameters import Parameter, allowed_values, options_of
from topologies.schema import check_value

OWN_FLAGS = {"--help", "--output", "--clients", "--seed", "--force", "--dtype"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return carried_out("mpifed.data", lambda: _run(words))


def _run(words: list[str]) -> int:
    check_one_process("start it without mpirun or srun")
    if not words or words[0].startswith("-"):
        _general_parser().parse_args(words)
        raise InputError(
            "the name of a data set must come first; --help shows how the command is used"
        )
    try:
        print(_write(words[0], words[1:]))
    except InputError as error:
        raise InputError(_as_flags(str(error))) from None
    return EXIT_FINISHED


def _write(name: str, words: list[str]) -> str:
    """Write the file; return the line that says what it holds."""
    component = find("data", name)
    options = options_of(component)
    parser = _parser(name, component, options)
    flags = {*OWN_FLAGS, *map(_flag, options)}
    for word in words:
        flag = word.partition("=")[0]
        if flag.startswith("--") and flag not in flags:
            raise InputError(f"{flag} is not an option of {name}; {closest(flag, flags)}")
    arguments = vars(parser.parse_args(words))
    n_clients, seed, output = arguments["clients"], arguments["seed"], _writable(arguments)
    values = {
        key: option.default if text is None or key == "seed" else _value(text, option)
        for key, option in options.items()
        for text in [arguments[key]]
    }
    if "seed" in options:
        values["seed"] = arguments["seed"]
    complete = getattr(component, "complete_options", None)
    values = complete(values, n_clients) if complete else values
    # These bring torch, which no wrong word shall wait for.
    from mpifed.data.federated_file import make
    from mpifed.io.memory import check_memory, enough_memory

    check_memory(8.0 * n_clients, f"--clients is {n_clients}, which")
    with enough_memory(f"the data set {name} with such options"):
        dataset = component(n_clients, seed or 0, Alone(), **values)
    for line in dataset.remarks:
        print(_as_flags(line))
    make(dataset, output, {"dataset": name, **values}, seed or 0, arguments["dtype"])
    description = dataset.description
    return (
        f"{output}: {n_clients} clients of {one_line(description.source, 200)}, "
        f"{description.n_train.sum()} training, {description.n_val.sum()} validation and "
        f"{description.n_test.sum()} test samples, {output.stat().st_size / 1e6:.1f} MB"
    )


def _general_parser() -> Parser:
    return Parser(
        prog=program("data"),
        usage="%(prog)s NAME --output FILE.h5 --clients N [options of the data set]",
        description="Makes a federated HDF5 file that a run takes as data=FILE.h5.",
        epilog=f"Data sets (NAME --help shows the options of one): {', '.join(DATASETS)}",
    )


def _parser(name: str, component: Callable[..., Any], options: dict[str, Parameter]) -> Parser:
    parser = Parser(
        prog=f"{program('data')} {name}", description=summary(component), allow_abbrev=False
    )
    add = parser.add_argument
    add("--output", required=True, metavar="FILE.h5", help="the file to write")
    add("--clients", required=True, type=whole(1), metavar="N", help="how many clients")
    add("--seed", type=whole(0), metavar="S", help="seed of everything random (default 0)")
    add("--force", action="store_true", help="replace FILE.h5 if it exists")
    add(
        *("--dtype",),
        choices=("float32", "float64"),
        default="float32",
        help="how x is stored; images stay bytes (default float32)",
    )
    lines = summaries(component)
    for option in options.values():
        if option.name == "seed":
            continue
        line = lines.get(option.name)
        words = (
            f"{line}: {allowed_values(option.annotation)}"
            if line
            else allowed_values(option.annotation)
        )
        if not option.required:
            words += f" (default {'null' if option.default is None else repr(option.default)})"
        help_text = words.replace("%", "%%")
        add(_flag(option.name), metavar="VALUE", required=option.required, help=help_text)
    return parser


def _value(text: str, option: Parameter) -> Any:
    """The value of an option in its type; a text may look like a number, as a directory 7."""
    flag = _flag(option.name)
    try:
        return check_value(parse_value(text, flag), option.annotation, flag)
    except InputError:
        with contextlib.suppress(InputError):
            return check_value(text, option.annotation, flag)
        raise


def _writable(arguments: dict[str, Any]) -> Path:
    output = Path(os.path.expanduser(arguments["output"]))
    if output.is_symlink() or (output.exists() and not output.is_file()):
        raise InputError(f"--output is '{output}', which is not a regular file")
    if not output.parent.is_dir():
        raise InputError(f"--output is '{output}', but there is no directory '{output.parent}'")
    if not os.access(output.parent, os.W_OK | os.X_OK):
        raise InputError(f"--output is '{output}', whose directory is not writable")
    if output.exists() and not arguments["force"]:
        raise InputError(f"--output is '{output}', which exists; --force replaces it")
    return output


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _as_flags(message: str) -> str:
    """A data set's message in the words of this command: data.min_samples is --min-samples."""
    message = re.sub(r"(?<![\w/'.])data\.(\w+)", lambda match: _flag(match[1]), message)
    return re.sub(r"^clients is\b", "--clients is", message)


if __name__ == "__main__":
    sys.exit(main())
