"""``python -m mpifed.run [EXPERIMENT] [key=value ...] [options]``: see ``mpifed.launch``."""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class _CallableModule(types.ModuleType):
    """A callable module, since importing ``mpifed.run`` shadows the function of that name."""

    def __call__(self, experiment: str | Path | None = None, **overrides: Any) -> Any:
        from mpifed.api import run

        return run(experiment, **overrides)


sys.modules[__name__].__class__ = _CallableModule


def main(words: Sequence[str]) -> int:
    """Run the command, guarded where a launcher started this process."""
    from mpifed.watchdog.guard import guarded

    return guarded(lambda: _launch(list(words)), lambda: _preload(list(words)))


def _launch(words: list[str]) -> int:
    from mpifed import launch  # later than the fork, since a guard needs none of it

    return launch.main(words)


def _preload(words: list[str]) -> None:
    from mpifed.launch import preload

    preload(words)


if __name__ == "__main__":
    from mpifed.command import carried_out  # later than a guard, which needs none of it

    sys.exit(carried_out("mpifed", lambda: main(sys.argv[1:]), by_all=True))
