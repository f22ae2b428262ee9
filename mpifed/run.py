"""The module that mpirun starts on every rank, ``python -m mpifed.run``, in prose ``mpifed run``;
where it is imported, it is the function of this name.
"""

import sys
from importlib import import_module

import mpifed
from mpifed.errors import EXIT_FAILED, complain
from mpifed.watchdog.guard import guarded


def carry_out() -> int:
    """Carry out the command in this process."""
    from mpifed.command import carried_out  # here, since every guard would import it

    return carried_out("mpifed", lambda: int(import_module("mpifed.launch").main()), by_all=True)


if __name__ == "__main__":
    if "--ranks" in " ".join(sys.argv):  # it may start ranks, and be none
        from mpifed.__main__ import run
        from mpifed.command import carried_out

        sys.exit(carried_out("mpifed", run, by_all=True))
    try:
        code = guarded(carry_out, lambda: import_module("mpifed.launch").preload())
    except (OSError, KeyboardInterrupt) as error:  # of the process that a launcher started
        complain("mpifed", str(error) or "interrupted")
        code = EXIT_FAILED
    sys.exit(code)
elif __name__ == "mpifed.run":
    # As an attribute of the package, a module would hide the function; ``runpy`` asks for the spec.
    vars(mpifed.run)["__spec__"] = __spec__
    vars(sys)["modules"][__name__] = mpifed.run
