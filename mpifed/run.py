"""The module that mpirun starts on every rank, ``python -m mpifed.run``, in prose ``mpifed run``.

``mpifed.launch`` carries it out. Nothing imports this module, since as an attribute of the package
it would hide the function ``mpifed.run`` of the Python interface.
"""

import sys

from mpifed.__main__ import run
from mpifed.command import carried_out

if __name__ == "__main__":
    sys.exit(carried_out("mpifed", run, by_all=True))
