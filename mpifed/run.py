"""The module that mpirun starts on every rank, ``python -m mpifed.run``, in prose ``mpifed run``.

``mpifed.launch`` carries it out. Nothing imports this module, since as an attribute of the package
it would hide the function ``mpifed.run`` of the Python interface.
"""

import sys
from importlib import import_module

from mpifed.errors import EXIT_FAILED, complain
from mpifed.watchdog.guard import guarded


def carry_out() -> int:
    """Carry out the command in this process."""
    from mpifed.command import carried_out  # here, since every guard would import it

    return carried_out("mpifed", lambda: int(import_module("mpifed.launch").main()), by_all=True)


if __name__ == "__main__":
    if any(word.startswith("--ranks") for word in sys.argv):  # it may start ranks, and be none
        from mpifed.__main__ import run
        from mpifed.command import carried_out

        sys.exit(carried_out("mpifed", run, by_all=True))
    try:
        code = guarded(carry_out, lambda: import_module("mpifed.launch").preload())
    except (OSError, KeyboardInterrupt) as error:  # of the process that a launcher started
        complain("mpifed", str(error) or "interrupted")
        code = EXIT_FAILED
    sys.exit(code)
