"""The commands of mpifed, carried out in this process."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mpifed.__main__
import mpifed.launch
import mpifed.verify

UNGUARDED: Mapping[str, Callable[[list[str]], int]] = {
    "run": mpifed.launch.main,
    "verify": mpifed.verify.verified,
}
SIGNALS = (signal.SIGINT, signal.SIGUSR1, signal.SIGTERM)


def run_command(words: Sequence[Any]) -> int:
    """Carry out what follows ``mpifed`` on a command line, in this process.

    It prints what the command prints, and leaves signals as they were.

    Parameters
    ----------
    words : sequence
        The subcommand and its arguments; paths and numbers are written out.

    Returns
    -------
    int
        The exit code.

    Examples
    --------
    >>> run_command(["topologies", "list", "nothing"])
    2
    """
    texts = [str(word) for word in words]
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        # This process goes on afterwards, so no launcher's guard is to end it.
        if texts and texts[0] in UNGUARDED:
            return UNGUARDED[texts[0]](texts[1:])
        return mpifed.__main__.main(texts)
    except SystemExit as ended:
        return int(ended.code or 0)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
