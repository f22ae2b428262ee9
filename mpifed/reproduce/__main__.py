"""The command; all of it is in ``experiments/``."""

import sys

from mpifed.command import carried_out
from mpifed.reproduce.experiments.command import main

if __name__ == "__main__":
    sys.exit(carried_out("mpifed.reproduce", main))
