"""From what can be typed to the script of a shell."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from mpifed import __version__
from mpifed.components.without_torch import without_torch
from mpifed.errors import RunError

SHELLS = ("bash", "zsh")
TEMPLATES = Path(__file__).parent


def script(shell: str) -> str:
    """Return the script with which a shell completes ``mpifed``."""
    with without_torch():
        from mpifed.__main__ import SUBCOMMANDS
        from mpifed.completion.words import CONFIGURED, words

        found = words()
    sections = sorted({section for section, name in found.keys if name})
    lists = [
        _function("subcommands", {"*": SUBCOMMANDS}),
        _function("options", {_key(name): given for name, given in found.options.items()}),
        _function("arguments", {_key(name): given for name, given in found.arguments.items()}),
        _function("after", {_key(*pair): given for pair, given in found.after.items()}),
        _function("values", {_key(key): given for key, given in found.values.items()}),
        _function("plain_keys", {"*": found.keys["", ""]}),
        _function("job_keys", {"*": found.keys["job", ""]}),
        _function("component_keys", _by_component(found.keys, sections)),
        _function("sections", {"*": sections}),
        _function("configured", {"|".join(CONFIGURED): ["yes"]}),
    ]
    text = (TEMPLATES / "common.sh").read_text(encoding="utf-8")
    own = (TEMPLATES / f"{shell}.sh").read_text(encoding="utf-8")
    head = "#compdef mpifed\n" if shell == "zsh" else ""
    head += f"# Completion of mpifed {__version__}: 'mpifed completion {shell}' prints it.\n"
    return head + "\n".join([*lists, text, own])


def _by_component(
    keys: Mapping[tuple[str, str], list[str]], sections: Iterable[str]
) -> dict[str, list[str]]:
    """Return keys by component, and those of all components for a section that names none."""
    one = {_key(section, name): given for (section, name), given in keys.items() if name}
    every = {}
    for section in sections:
        known = [given for (of, name), given in keys.items() if of == section and name]
        every[f"{shlex.quote(section + ' ')}*"] = sorted(set(itertools.chain(*known)))
    return {**one, **every}


def _key(*words: str) -> str:
    return shlex.quote(" ".join(words))


def _function(name: str, cases: Mapping[str, Iterable[str]]) -> str:
    """Return a function that prints words, one a line, by its arguments."""
    lines = [f"_mpifed_{name}() {{", '    case "$*" in']
    for case, given in cases.items():
        texts = list(given)
        if any(any(c.isspace() for c in text) for text in texts):
            raise RunError(f"a word of the completion has a space: {texts}")
        if texts:
            lines.append(f"    {case}) printf '%s\\n' {' '.join(map(shlex.quote, texts))} ;;")
    return "\n".join([*lines, "    esac", "}", ""])
