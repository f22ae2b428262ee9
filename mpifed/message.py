"""What parts that change messages are written with: the stable names for your own ones.

======================================================= ==========================================
a compressor derives from                               ``Compressor``
a correction of gossip derives from                     ``Correction``
an aggregator of a server derives from                  ``ByCoordinates`` or ``ByProducts``
what comes before an aggregator derives from            ``PreAggregator``
an attack derives from                                  ``Attack``, or ``Colluding`` if its clients
                                                        know all updates
a server optimizer derives from                         ``ServerOptimizer``
======================================================= ==========================================

Keyword-only parameters of a class are its options, checked by their annotations. A configuration
names it ``package.module:Class``. What a class needs of other values is declared in ``requires``,
a tuple of ``Requirement``, with ``Not`` and ``Only`` for some values.

The other names are what these classes are given and compute with: ``Draws`` and ``random_bits``
for compressors; ``Neighbours``, ``Nearby``, ``Observations``, ``HeldOutRisks``, ``Needs``,
``Gather`` and ``halves`` for corrections; ``Round``, ``Byzantine``, ``count_of`` and
``squared_distances`` for aggregators, and ``inner_products`` for what comes before one;
``ClientNumber`` and ``Seen`` for attacks. ``ComponentOf`` annotates an option that is itself a
component.
"""

from mpifed.components.requirement import Not, Only, Requirement
from mpifed.exchange.aggregation import (
    ByCoordinates,
    ByProducts,
    Byzantine,
    count_of,
    inner_products,
    squared_distances,
)
from mpifed.exchange.attacks import Attack, ClientNumber
from mpifed.exchange.base import Round
from mpifed.exchange.collusion import Colluding, Seen
from mpifed.exchange.compression import Compressor, random_bits
from mpifed.exchange.correction import (
    Correction,
    Gather,
    HeldOutRisks,
    Needs,
    Neighbours,
    Observations,
    halves,
)
from mpifed.exchange.pre_aggregation import PreAggregator
from mpifed.exchange.routes import Nearby
from mpifed.exchange.server_optimizers import ServerOptimizer
from mpifed.federation.clients import Draws
from topologies.parameters import ComponentOf

__all__ = [
    "Attack",
    "ByCoordinates",
    "ByProducts",
    "Byzantine",
    "ClientNumber",
    "Colluding",
    "ComponentOf",
    "Compressor",
    "Correction",
    "Draws",
    "Gather",
    "HeldOutRisks",
    "Nearby",
    "Needs",
    "Neighbours",
    "Not",
    "Observations",
    "Only",
    "PreAggregator",
    "Requirement",
    "Round",
    "Seen",
    "ServerOptimizer",
    "count_of",
    "halves",
    "inner_products",
    "random_bits",
    "squared_distances",
]
