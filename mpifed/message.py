"""What parts that change messages are written with: the stable names for your own ones.

* a compressor derives from: ``Compressor``
* a correction of gossip derives from: ``Correction``
* an aggregator of a server derives from: ``ByCoordinates`` or ``ByProducts``
* what comes before an aggregator derives from: ``PreAggregator``
* an attack derives from: ``Attack``, or ``Colluding`` if its clients know all updates
* a server optimizer derives from: ``ServerOptimizer``

Keyword-only parameters of a class are its options, checked by their annotations. A configuration
names it ``package.module:Class``. What a class needs of other values is declared in ``requires``,
a tuple of ``Requirement``, with ``Not`` and ``Only`` for some values.

The other names are what these classes are given and compute with: ``Draws`` and ``random_bits``
for compressors; ``Neighbours``, ``Nearby``, ``Observations``, ``HeldOutRisks``, ``Needs``,
``Gather`` and ``halves`` for corrections; ``Round``, ``Byzantine``, ``count_of`` and
``squared_distances`` for aggregators, and ``inner_products`` for what comes before one;
``ClientNumber`` and ``Seen`` for attacks. ``ComponentOf`` annotates an option that is itself a
component.

Methods take from here

* messages of which few numbers are sent: ``SparseRows``, ``add_scaled``, ``flat_positions``,
  ``gathered``; what compressors do to them: ``message_variance``, ``proven_contraction``
* steps of a server: ``Adam`` with ``Moments``, ``Nesterov`` with ``Moment``, their options ``Rate``
  and ``Decay``, and ``averaged_buffers`` behind them. ``adam_step`` is that of local steps.
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
from mpifed.exchange.compression import (
    Compressor,
    message_variance,
    proven_contraction,
    random_bits,
)
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
from mpifed.exchange.server_optimizers import (
    Adam,
    Decay,
    Moment,
    Moments,
    Nesterov,
    Rate,
    ServerOptimizer,
    averaged_buffers,
)
from mpifed.federation.clients import Draws
from mpifed.federation.reduction import SparseRows, add_scaled, flat_positions, gathered
from mpifed.local.optimizers import adam_step
from topologies.parameters import ComponentOf

__all__ = [
    "Adam",
    "Attack",
    "ByCoordinates",
    "ByProducts",
    "Byzantine",
    "ClientNumber",
    "Colluding",
    "ComponentOf",
    "Compressor",
    "Correction",
    "Decay",
    "Draws",
    "Gather",
    "HeldOutRisks",
    "Moment",
    "Moments",
    "Nearby",
    "Needs",
    "Neighbours",
    "Nesterov",
    "Not",
    "Observations",
    "Only",
    "PreAggregator",
    "Rate",
    "Requirement",
    "Round",
    "Seen",
    "ServerOptimizer",
    "SparseRows",
    "adam_step",
    "add_scaled",
    "averaged_buffers",
    "count_of",
    "flat_positions",
    "gathered",
    "halves",
    "inner_products",
    "message_variance",
    "proven_contraction",
    "random_bits",
    "squared_distances",
]
