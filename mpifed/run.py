"""The module that mpirun starts on every rank, ``python -m mpifed.run``, in prose ``mpifed run``;
where it is imported, it is the function of this name.
"""

import sys

import mpifed
from mpifed.__main__ import run
from mpifed.command import carried_out

if __name__ == "__main__":
    sys.exit(carried_out("mpifed", run, by_all=True))
elif __name__ == "mpifed.run":
    # As an attribute of the package, a module would hide the function; ``runpy`` asks for the spec.
    vars(mpifed.run)["__spec__"] = __spec__
    vars(sys)["modules"][__name__] = mpifed.run
