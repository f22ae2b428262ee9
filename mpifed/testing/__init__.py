"""A harness for tests of methods, compressors, data sets and other items, also of a user's own.

``run_rounds`` runs a few rounds in this process, on one rank or several that threads play, and
returns states, predictors, metrics and digests. ``load_dataset`` and ``make_model`` make the data
set and the model of a run, ``run_command`` carries out a command, and ``names`` and ``find_item``
lead to shipped items. Each ``check_...`` raises ``AssertionError`` with a sentence where an item
does not keep what every item of its kind promises. An error that the item's own code or a run
raises passes through.
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
    check_surrogate,
    check_topology,
)
from mpifed.testing.commands import run_command
from mpifed.testing.data import load_dataset
from mpifed.testing.models import make_model
from mpifed.testing.ranks import played, world
from mpifed.testing.rounds import Deployed, Rounds, run_rounds
from mpifed.testing.shelves import find_item, names
from mpifed.testing.surrogates import make_surrogate

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
    "check_surrogate",
    "check_topology",
    "find_item",
    "load_dataset",
    "make_model",
    "make_surrogate",
    "names",
    "played",
    "run_command",
    "run_rounds",
    "world",
]
