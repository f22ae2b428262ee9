"""`python -m mpifed.data NAME --output FILE.h5 --clients N ...`: makes a federated HDF5 file."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from mpifed.command import Parser, carried_out, program
from mpifed.components.registry import check_name, declared_options, find, summaries, summary
from mpifed.components.schema import Option, check_value, describe, options_of
from mpifed.components.tables import DATASETS
from mpifed.errors import (
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    EXIT_FINISHED,
    InputError,
    RunError,
    closest,
    complain,
    in_words,
)
from mpifed.mpi.communicator import LAUNCHER_SIZES

INTERRUPTED = 130

# A whole number as it is typed; Python takes more for one, and refuses those that are longer.
WHOLE = re.compile(r"[+-]?[0-9]{1,1000}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _check_alone()
        return _run(words)
    except InputError as error:
        return _fail(_as_flags(str(error)), EXIT_BAD_INPUT)
    except KeyboardInterrupt:
        return _fail("interrupted; nothing was written", INTERRUPTED)
    except SystemExit:
        raise  # after --help
    except BaseException as error:
        expected = isinstance(error, RunError)
        return _fail(str(error) if expected else in_words(error), EXIT_FAILED)


def _fail(message: str, code: int) -> int:
    if os.environ.get("MPIFED_DEBUG") == "1":
        traceback.print_exc()
    complain("mpifed.data", message)
    return code


def _check_alone() -> None:
    for variable in LAUNCHER_SIZES:
        tasks = os.environ.get(variable, "")
        if tasks.isdigit() and int(tasks) > 1:
            raise InputError(
                f"{variable} says that {tasks} tasks were started, but one process writes a data "
                "file; start python -m mpifed.data without mpirun or srun"
            )


@dataclass(frozen=True)
class _Asked:
    """What the words ask for."""

    name: str
    component: Callable[..., Any]
    n_clients: int
    seed: int
    values: dict[str, Any]
    dtype: str
    output: Path


def _run(words: list[str]) -> int:
    _check_early(words)
    from mpifed.data.federated_file import make  # brings torch, which no wrong word shall wait for

    asked = _asked(words)
    line = make(
        asked.name,
        asked.component,
        asked.n_clients,
        asked.seed,
        asked.values,
        asked.dtype,
        asked.output,
        lambda remark: print(_as_flags(remark)),
    )
    print(line)
    return EXIT_FINISHED


def _check_early(words: list[str]) -> None:
    """Refuse a name or an option that no data set has, without importing torch."""
    if not words or words[0].startswith("-") or ":" in words[0]:
        return
    check_name("data", words[0], "data.name")
    known = {"--help", "--output", "--clients", "--seed", "--force", "--dtype"}
    known |= set(map(_flag, declared_options(DATASETS[words[0]])))
    for word in words[1:]:
        flag = word.partition("=")[0]
        if flag.startswith("--") and flag not in known:
            raise InputError(f"{flag} is not an option of {words[0]}; {closest(flag, known)}")


def _asked(words: list[str]) -> _Asked:
    if not words or words[0].startswith("-"):
        _general_parser(words).parse_args(words)
        raise InputError(
            "the name of a data set must come first; --help shows how the command is used"
        )
    name = words[0]
    component = find("data", name)
    options = options_of(component)
    known, unknown = _parser(name, component, options).parse_known_args(words[1:])
    if unknown:
        flags = ["--output", "--clients", "--seed", "--force", "--dtype", *map(_flag, options)]
        near = closest(unknown[0], set(flags))
        if not unknown[0].startswith("-"):
            near = "quote a value that has spaces, as '[0, 90]'"
        raise InputError(f"{unknown[0]} is not an option of {name}; {near}")
    given = vars(known)
    n_clients = check_value(_number(given["clients"]), Annotated[int, Ge(1)], "--clients")
    seed = 0
    if given["seed"] is not None:
        seed = check_value(_number(given["seed"]), Annotated[int, Ge(0)], "--seed")
    values = _completed(component, _checked(options, given), n_clients)
    output = _writable(given["output"], given["force"])
    return _Asked(name, component, n_clients, seed, values, given["dtype"], output)


def _general_parser(words: Sequence[str]) -> Parser:
    # Summaries are in modules, all of which are imported for them.
    told = DATASETS if {"-h", "--help"} & {*words} else ()
    names = "\n".join(f"  {name:<16} {summary(find('data', name))}" for name in told)
    return Parser(
        prog=program("data"),
        usage="%(prog)s NAME --output FILE.h5 --clients N [options of the data set]",
        description="Makes a federated HDF5 file that a run takes as data=FILE.h5.",
        epilog=f"data sets (NAME --help shows the options of one):\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _parser(name: str, component: Callable[..., Any], options: dict[str, Option]) -> Parser:
    parser = Parser(
        prog=f"{program('data')} {name}", description=summary(component), allow_abbrev=False
    )
    parser.add_argument("--output", required=True, metavar="FILE.h5", help="the file to write")
    parser.add_argument("--clients", required=True, metavar="N", help="how many clients")
    parser.add_argument("--seed", metavar="S", help="seed of everything random (default 0)")
    parser.add_argument("--force", action="store_true", help="replace FILE.h5 if it exists")
    parser.add_argument(
        "--dtype",
        choices=("float32", "float64"),
        default="float32",
        help="how x is stored; images stay bytes (default float32)",
    )
    lines = summaries(component)
    for option in options.values():
        if option.name == "seed":
            continue
        line = lines.get(option.name)
        words = f"{line}: {describe(option.annotation)}" if line else describe(option.annotation)
        if not option.required:
            words += f" (default {'null' if option.default is None else repr(option.default)})"
        help_text = words.replace("%", "%%")
        parser.add_argument(
            _flag(option.name), metavar="VALUE", required=option.required, help=help_text
        )
    return parser


def _checked(options: dict[str, Option], given: dict[str, Any]) -> dict[str, Any]:
    """The data set's options in their types; those not given have their defaults."""
    values = {}
    for name, option in options.items():
        text = given[name]
        if text is None:
            values[name] = option.default
            continue
        try:
            values[name] = check_value(_number(text), option.annotation, _flag(name))
        except InputError:
            # A text may look like a number, as a directory called 7.
            if not _takes_text(text, option):
                raise
            values[name] = text
    return values


def _completed(component: Any, values: dict[str, Any], n_clients: int) -> dict[str, Any]:
    fill = getattr(component, "complete_options", None)
    return fill(values, n_clients) if fill else values


def _takes_text(text: str, option: Option) -> bool:
    try:
        return bool(check_value(text, option.annotation, option.name) == text)
    except InputError:
        return False


def _number(text: str) -> Any:
    if text.startswith("["):
        with contextlib.suppress(ValueError):
            return json.loads(text)
    words = {"null": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    return int(text) if WHOLE.fullmatch(text) else text


def _writable(text: str, force: bool) -> Path:
    output = Path(text).expanduser()
    try:
        output.exists()
    except OSError as error:
        raise InputError(
            f"--output is '{output}', which cannot be used: {error.strerror}"
        ) from None
    if output.is_dir():
        raise InputError(f"--output is '{output}', which is a directory, not a file to write")
    if output.exists() and not force:
        raise InputError(f"--output is '{output}', which exists; --force replaces it")
    if not output.parent.is_dir():
        raise InputError(f"--output is '{output}', but there is no directory '{output.parent}'")
    if not os.access(output.parent, os.W_OK | os.X_OK):
        raise InputError(f"--output is '{output}', but '{output.parent}' may not be written")
    return output


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _as_flags(message: str) -> str:
    """A data set's message in the words of this command: data.min_samples is --min-samples."""
    message = message.replace("data.name is", "the data set is")
    message = re.sub(r"(?<![\w/'.])data\.(\w+)", lambda found: _flag(found[1]), message)
    return re.sub(r"^clients is\b", "--clients is", message)


if __name__ == "__main__":
    sys.exit(carried_out("mpifed.data", main))
