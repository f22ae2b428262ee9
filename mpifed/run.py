"""``python -m mpifed.run [EXPERIMENT] [key=value ...] [options]``: see ``mpifed.launch``.

Nothing imports this module, which would hide the function of its name.
"""

import sys

from mpifed.__main__ import run
from mpifed.command import carried_out

if __name__ == "__main__":
    sys.exit(carried_out("mpifed", lambda: run(sys.argv[1:]), by_all=True))
