"""A harness for tests of methods, compressors, data sets and other items, also of a user's own.

``run_rounds`` runs a few rounds in this process, on one rank or several that threads play, and
returns states, predictors, metrics and digests. ``load_dataset`` makes the data set of a run, and
``run_command`` carries out a command. Each ``check_...`` raises ``AssertionError`` with a sentence
where an item does not keep what every item of its kind promises.
"""

from mpifed.testing.checks import (
    check_aggregator,
    check_attack,
    check_compressor,
    check_correction,
    check_dataset,
    check_method,
    check_model,
    check_schedule,
    check_server_optimizer,
    check_topology,
)
from mpifed.testing.commands import run_command
from mpifed.testing.data import load_dataset
from mpifed.testing.ranks import played, world
from mpifed.testing.rounds import Deployed, Rounds, run_rounds

__all__ = [
    "Deployed",
    "Rounds",
    "check_aggregator",
    "check_attack",
    "check_compressor",
    "check_correction",
    "check_dataset",
    "check_method",
    "check_model",
    "check_schedule",
    "check_server_optimizer",
    "check_topology",
    "load_dataset",
    "played",
    "run_command",
    "run_rounds",
    "world",
]
