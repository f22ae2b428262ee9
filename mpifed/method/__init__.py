"""What methods are written with: the names that stay stable, for shipped methods and your own.

Begin with these. ``mpifed new method NAME`` writes a method that uses them.

=================================== ==============================================================
what a method derives from          ``Algorithm``, as ``Algorithm[Channel]`` for any exchange or
                                    ``Algorithm[ServerChannel]`` for a server
what it is given                    ``Clients``, ``Draws`` (its random numbers), ``Exchange`` in
                                    ``init``, ``Channel`` or ``ServerChannel`` in ``round``
what it computes with               ``LocalSolver``, whose state is an ``OptimizerState``;
                                    ``initial_models``
what it declares of its state       ``client``, ``server``, ``shared`` and ``follows``
what clients deploy                 ``Predictor``; ``tuner_of`` and ``tuned`` fine-tune first
terms of the gradient               ``Proximal``, ``Shift`` and ``Within``; others derive from
                                    ``Adjustment``
several models, one minibatch       ``Coupling``, whose ``move`` gets a ``Minibatch``
gossip                              ``step_scale``, the learning rates by shares of the samples;
                                    ``to_neighbours``
what does not go together           is declared in ``requires``, a tuple of ``Requirement``
bad options                         raise ``InputError``
=================================== ==============================================================

The other names are for some families of methods:

* sums over all clients, also outside of a round: ``total``, ``largest``, ``agreed``,
  ``computed_once``, ``where_recorded``; ``averaged_buffers`` after a server's step
* losses on a client's samples: ``train_losses``, ``train_risks``, ``held_out_risks``,
  ``mean_by_client``, ``samples_of``, ``best_weight``
* risks with gradients: ``Objectives``, which makes an ``Objective``, with a ``Regulariser``;
  ``StackedObjective``, ``sampled_gradients``, ``row_norms``, ``row_products``; of linear models
  ``SparseObjective``, ``columns_of``, ``rows_of``, ``design``, ``hessian``, ``smoothness``
* minimisers of a client's risk: ``local_optima``, ``local_starts``, ``usual_tolerance``
* ``over_rates``, moves divided by the learning rates of their steps
* minibatches without the local solver: ``batches``, ``minibatches``, ``chosen``, ``share_weights``
* messages of which few numbers are sent: ``SparseRows``, ``add_scaled``, ``flat_positions``,
  ``gathered``; what compressors do to them: ``message_variance``, ``proven_contraction``
* steps of a server: ``Adam`` with ``Moments``, ``Nesterov`` with ``Moment``; ``adam_step`` of
  local steps
* gossip with chosen neighbours: ``GossipChannel``, ``Nearby``
* random numbers beside ``Draws``: ``stream``, ``shuffles``, ``bits_at``
* ``label_sums`` and ``new_prototypes`` of representations; ``simplex``, the projection
* another run's results: ``stored_configuration``, ``stored_state``, ``plain``
* an option that is a component: ``ComponentOf``, ``checked_section``, ``find``; ``excerpt`` of a
  value in a message
* a long computation: ``check_memory``, ``heartbeat``, ``raise_if_stop_requested``
* optimal transport: ``Benchmark``, ``check_targets``
"""

from mpifed.components.registry import checked_section, find, plain
from mpifed.components.requirement import Not, Only, Requirement
from mpifed.data.base import Description, Shards, Split
from mpifed.errors import InputError
from mpifed.exchange.base import Channel, Exchange, ServerChannel, to_server
from mpifed.exchange.collectives import agreed, computed_once, largest, total, where_recorded
from mpifed.exchange.compression import proven_contraction
from mpifed.exchange.gossip_channel import GossipChannel
from mpifed.exchange.reduction import SparseRows, add_scaled, flat_positions, gathered
from mpifed.exchange.routes import Nearby
from mpifed.exchange.server_optimizers import Adam, Decay, Moment, Moments, Nesterov, Rate
from mpifed.federation.clients import Clients, Draws, Federation
from mpifed.federation.options import StepScale
from mpifed.io.memory import check_memory
from mpifed.local.adjustments import Adjustment, Coupling, Minibatch, Proximal, Shift, Within
from mpifed.local.linear_objective import (
    Objectives,
    SparseObjective,
    columns_of,
    design,
    hessian,
    rows_of,
    smoothness,
)
from mpifed.local.minibatches import batches, chosen, minibatches, share_weights
from mpifed.local.objective import (
    Objective,
    Regulariser,
    StackedObjective,
    row_norms,
    row_products,
    sampled_gradients,
)
from mpifed.local.optima import (
    FIRST_SMOOTHNESS,
    MOST_SMOOTHNESS,
    SMALL_LOSS,
    Solver,
    Start,
    local_optima,
    local_starts,
    usual_tolerance,
)
from mpifed.local.optimizers import adam_step
from mpifed.local.projections import simplex
from mpifed.local.scoring import (
    best_weight,
    held_out_risks,
    mean_by_client,
    samples_of,
    train_losses,
    train_risks,
)
from mpifed.local.solver import LocalSolver, OptimizerState, over_rates
from mpifed.method.algorithm import Algorithm, AnyChannel, Compressors
from mpifed.method.initial import initial_models, starting_point
from mpifed.method.predictor import Predictor
from mpifed.method.prototypes import label_sums, new_prototypes
from mpifed.method.steps import averaged_buffers, message_variance
from mpifed.method.stored import stored_configuration, stored_state
from mpifed.method.tuning import tuned, tuner_of
from mpifed.optimal_transport.benchmarks import Benchmark, check_targets
from mpifed.random import bits_at, shuffles, stream
from mpifed.state import client, follows, server, shared
from mpifed.watchdog import heartbeat
from mpifed.watchdog.heartbeat import raise_if_stop_requested
from topologies.errors import excerpt
from topologies.parameters import ComponentOf

__all__ = [
    "FIRST_SMOOTHNESS",
    "MOST_SMOOTHNESS",
    "SMALL_LOSS",
    "Adam",
    "Adjustment",
    "Algorithm",
    "AnyChannel",
    "Benchmark",
    "Channel",
    "Clients",
    "ComponentOf",
    "Compressors",
    "Coupling",
    "Decay",
    "Description",
    "Draws",
    "Exchange",
    "Federation",
    "GossipChannel",
    "InputError",
    "LocalSolver",
    "Minibatch",
    "Moment",
    "Moments",
    "Nearby",
    "Nesterov",
    "Not",
    "Objective",
    "Objectives",
    "Only",
    "OptimizerState",
    "Predictor",
    "Proximal",
    "Rate",
    "Regulariser",
    "Requirement",
    "ServerChannel",
    "Shards",
    "Shift",
    "Solver",
    "SparseObjective",
    "SparseRows",
    "Split",
    "StackedObjective",
    "Start",
    "StepScale",
    "Within",
    "adam_step",
    "add_scaled",
    "agreed",
    "averaged_buffers",
    "batches",
    "best_weight",
    "bits_at",
    "check_memory",
    "check_targets",
    "checked_section",
    "chosen",
    "client",
    "columns_of",
    "computed_once",
    "design",
    "excerpt",
    "find",
    "flat_positions",
    "follows",
    "gathered",
    "heartbeat",
    "held_out_risks",
    "hessian",
    "initial_models",
    "label_sums",
    "largest",
    "local_optima",
    "local_starts",
    "mean_by_client",
    "message_variance",
    "minibatches",
    "new_prototypes",
    "over_rates",
    "plain",
    "proven_contraction",
    "raise_if_stop_requested",
    "row_norms",
    "row_products",
    "rows_of",
    "sampled_gradients",
    "samples_of",
    "server",
    "share_weights",
    "shared",
    "shuffles",
    "simplex",
    "smoothness",
    "starting_point",
    "stored_configuration",
    "stored_state",
    "stream",
    "to_server",
    "total",
    "train_losses",
    "train_risks",
    "tuned",
    "tuner_of",
    "usual_tolerance",
    "where_recorded",
]
