"""The fenced blocks of the documentation, and the comments that say how each is tested.

The line before a block of ``sh``, ``console`` or ``python`` is one of

    <!-- docs: run -->                     it runs as it is printed
    <!-- docs: run, with rounds=2 -->      likewise, with these words behind those of every run
    <!-- docs: run, exit 2 -->             likewise, and its last command ends with this code
    <!-- docs: run and compare -->         a console prints what is shown (... stands for anything)
    <!-- docs: file NAME -->               those that follow find it under this name
    <!-- docs: check -->                   every word is one that its command takes; nothing is run
    <!-- docs: tested by PATH -->          a test of its own
    <!-- docs: not run: REASON -->         nothing tests it

Blocks of other languages (text, yaml, ...) are no commands. The blocks of a page that run share
one directory, in their order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMANDS = ("sh", "console", "python")
OTHERS = ("text", "yaml", "csv", "json", "toml")
WRITTEN_BY_COMMANDS = "docs/evidence/tables/"
"""Pages that ``mpifed.reproduce`` writes, each with its own command."""

MARK = re.compile(
    r"<!-- docs: (?:(?P<run>run)(?:, with (?P<words>.+?))?(?:, exit (?P<code>\d+))?"
    r"|(?P<compare>run and compare)|(?P<check>check)|file (?P<file>\S+)"
    r"|tested by (?P<tested>\S+)|not run: (?P<reason>.+)) -->"
)
FENCE = re.compile(r"(?P<indent> *)```(?P<language>\S*)$")


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes
    ----------
    page : str
        The file, relative to the repository.
    line : int
        The line of its first fence, from 1.
    language, text : str
        What is behind the fence, and the lines between.
    mark : dict or None
        What the comment before it says; None without one that is understood.
    """

    page: str
    line: int
    language: str
    text: str
    mark: dict[str, str | None] | None

    @property
    def place(self) -> str:
        """Return where it is, as compilers write it."""
        return f"{self.page}:{self.line}"

    @property
    def runs(self) -> bool:
        """Return whether it is executed."""
        return self.mark is not None and bool(self.mark["run"] or self.mark["compare"])

    @property
    def script(self) -> str:
        """Return the commands alone: of a console, what is behind its prompts."""
        if self.language != "console":
            return self.text
        lines = re.findall(r"^\$ (.*(?:\\\n.*)*)$", self.text, re.MULTILINE)
        return "\n".join(lines) + "\n"


def pages() -> list[Path]:
    """Return the pages that are written by hand."""
    found = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "AGENTS", "RELEASE")]
    found += sorted(ROOT.glob("docs/**/*.md"))
    return [
        path for path in found if not str(path.relative_to(ROOT)).startswith(WRITTEN_BY_COMMANDS)
    ]


def blocks_of(path: Path) -> list[Block]:
    """Return the blocks of a page, in their order."""
    lines = path.read_text(encoding="utf-8").splitlines()
    page, found, number = str(path.relative_to(ROOT)), [], 0
    while number < len(lines):
        fence = FENCE.match(lines[number])
        if fence:
            end = number + 1
            while lines[end].strip() != "```":
                end += 1
            cut = len(fence["indent"])
            text = "".join(f"{line[cut:]}\n" for line in lines[number + 1 : end])
            said = MARK.fullmatch(lines[number - 1].strip()) if number else None
            mark = said.groupdict() if said else None
            found.append(Block(page, number + 1, fence["language"], text, mark))
            number = end
        number += 1
    return found


BLOCKS = [block for path in pages() for block in blocks_of(path)]
