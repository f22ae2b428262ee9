"""The options of ``python -m mpifed.report``, and what they ask for."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from mpifed.command import Parser, program
from mpifed.errors import InputError, closest
from mpifed.report.drawing import SIZE, Pictures
from mpifed.report.figure import Wanted
from mpifed.report.groups import Group
from mpifed.report.names import in_words
from topologies.inputs import number

FORMATS = ("png", "svg", "pdf")
# The word for no pictures: the page and the tables alone.
NO_FORMAT = "none"

SMALLEST, LARGEST = 1.0, 50.0  # inches of a picture's side
POINTS = number(float, "from 4 to 40 points", lambda value: 4 <= value <= 40)
POSITIVE = number(float, "above 0", lambda value: value > 0)
FRACTION = number(float, "a fraction in (0, 1)", lambda value: 0 < value < 1)


def parser(about: str | None) -> Parser:
    """Return the parser of the command line, whose help begins with ``about``."""
    made = Parser(
        prog=program("report"),
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument(
        "run_dirs", nargs="+", type=Path, metavar="RUN_DIR", help="a run directory, or one above"
    )
    made.add_argument("--output", type=Path, metavar="DIR", help="where tables and plots go")
    made.add_argument("--against", metavar="METHOD", help="a method as the table names it")
    made.add_argument("--target", type=FRACTION, metavar="FRACTION", help="a test accuracy")
    made.add_argument("--figure", metavar="COLUMN", help="a column of metrics.csv to draw")
    made.add_argument("--grid", metavar="COLUMN", help="a column to tabulate over --x and --by")
    made.add_argument(
        "--x", metavar="WHAT", help="rounds, bits, floats, simulated_seconds or a key"
    )
    made.add_argument("--by", nargs="+", metavar="KEY", help="dotted keys, a line for each value")
    made.add_argument("--aside", nargs="+", metavar="KEY", help="dotted keys that make no panels")
    made.add_argument("--until", type=POSITIVE, metavar="X", help="the largest x of --figure")
    made.add_argument("--linear", action="store_true", help="no logarithms in --figure or --grid")
    pictures = made.add_argument_group("pictures")
    pictures.add_argument("--format", metavar="FORMATS", help="png by default; png,svg,pdf; none")
    pictures.add_argument(
        "--size", metavar="WIDTHxHEIGHT", help="inches, without the names: 6.6x4.2"
    )
    pictures.add_argument("--font", metavar="FAMILY", help="a font that is installed")
    pictures.add_argument("--font-size", type=POINTS, metavar="POINTS", help="11 by default")
    for option, of, example in (
        ("--title", "PICTURE", "as test-accuracy='Accuracy (%%)'"),
        ("--x-label", "PICTURE", "as test-accuracy-rounds='rounds of FedEM'"),
        ("--label", "METHOD", "its name in tables and pictures; repeatable as these all"),
    ):
        pictures.add_argument(option, action="append", metavar=f"{of}=TEXT", help=example)
    return made


def figure_wanted(options: argparse.Namespace) -> Wanted | None:
    """Return what --figure and its options ask for."""
    needed = {"--x": options.x, "--by": options.by, "--aside": options.aside}
    needed["--linear"] = options.linear or None
    for name, value in needed.items():
        if value is not None and options.figure is None and options.grid is None:
            raise InputError(f"{name} is for --figure or --grid, and neither is given")
    if options.figure is None:
        if options.until is not None:
            raise InputError("--until is for --figure, which is not given")
        return None
    if options.grid is not None:
        raise InputError("--figure and --grid read --x and --by each in its own way; give one")
    return _wanted(options, "--figure", options.figure)


def grid_wanted(options: argparse.Namespace) -> Wanted | None:
    """Return what --grid and its options ask for."""
    if options.grid is None:
        return None
    if options.x is None or len(options.by or ()) != 1:
        raise InputError(
            "--grid needs one key for its columns, --x KEY, and one for its rows, --by KEY"
        )
    return _wanted(options, "--grid", options.grid)


def _wanted(options: argparse.Namespace, option: str, column: str) -> Wanted:
    if options.output is None:
        raise InputError(f"{option} needs --output, the directory in which it is drawn")
    by, aside = tuple(options.by or ()), tuple(options.aside or ())
    return Wanted(column, options.x or "rounds", by, options.linear, aside, options.until)


def pictures_wanted(options: argparse.Namespace) -> Pictures:
    """Return how pictures are to be made."""
    for name in ("format", "size", "font", "font_size", "title", "x_label"):
        if getattr(options, name) is not None and options.output is None:
            raise InputError(f"--{name.replace('_', '-')} is for pictures and needs --output")
    if options.font is not None:
        _check_font(options.font)
    return Pictures(
        _formats(options.format or "png"),
        _size(options.size),
        options.font,
        options.font_size or 11.0,
        _texts("--title", options.title),
        _texts("--x-label", options.x_label),
    )


def names_wanted(options: argparse.Namespace, groups: Sequence[Group]) -> dict[str, str]:
    """Return names of methods, by the label that the tables have."""
    names = _texts("--label", options.label)
    return {_method(f"--label is for '{name}'", name, groups): names[name] for name in names}


def against_wanted(options: argparse.Namespace, groups: Sequence[Group]) -> str | None:
    """Return the label of the method that others are compared with, if there is one."""
    given = options.against
    return None if given is None else _method(f"--against is '{given}'", given, groups)


def _method(what: str, given: str, groups: Sequence[Group]) -> str:
    """Return the label of a method that is named by it, or in the words of the tables."""
    labels = {group.method for group in groups}
    named = {in_words(label): label for label in labels} | {label: label for label in labels}
    if given not in named:
        shown = [in_words(label) for label in labels]
        raise InputError(f"{what}, which is none of the methods; {closest(given, shown)}")
    return named[given]


def _texts(option: str, words: Sequence[str] | None) -> dict[str, str]:
    """Texts by name. The name ends at the last equals sign, for labels of methods have some."""
    found = {}
    for word in words or ():
        name, equals, text = word.rpartition("=")
        if not (equals and name and text.strip() and text.isprintable()):
            raise InputError(f"{option} is {word!a}; it must be NAME=TEXT, printable")
        found[name] = text.strip()
    return found


def _formats(words: str) -> tuple[str, ...]:
    found = () if words == NO_FORMAT else tuple(dict.fromkeys(words.split(",")))
    if not set(found) <= set(FORMATS):
        known = ", ".join(FORMATS)
        raise InputError(f"--format is '{words}'; it must be some of {known}, or {NO_FORMAT}")
    return found


def _size(words: str | None) -> tuple[float, float]:
    if words is None:
        return SIZE
    try:
        width, height = (float(part) for part in words.split("x"))
    except ValueError:
        raise InputError(f"--size is '{words}'; it must be WIDTHxHEIGHT in inches") from None
    if not all(SMALLEST <= side <= LARGEST for side in (width, height)):
        raise InputError(
            f"--size is '{words}'; both sides must be from {SMALLEST:g} to {LARGEST:g} inches"
        )
    return width, height


def _check_font(font: str) -> None:
    from matplotlib.font_manager import get_font_names

    families = [*get_font_names(), "serif", "sans-serif", "monospace"]
    if font not in families:
        raise InputError(f"--font is '{font}', which is not installed; {closest(font, families)}")
