"""The command; all of it is in ``experiments/``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from mpifed.command import carried_out
from mpifed.reproduce.experiments import command


def main(words: Sequence[str] | None = None) -> int:
    """Run the command."""
    return carried_out("mpifed.reproduce", lambda: command.main(words))


if __name__ == "__main__":
    sys.exit(main())
