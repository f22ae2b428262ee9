"""What methods are written with: the names that stay stable, for shipped methods and your own.

``mpifed new method NAME`` writes a method that uses them.

* what a method derives from: ``Algorithm``, as ``Algorithm[Channel]`` for any exchange,
  ``Algorithm[ServerChannel]`` for a server, or ``Algorithm[GossipChannel]`` where clients choose
  neighbours
* what it is given: ``Clients``, also for sums over those of all ranks outside of a round
  (``clients.total``); ``Draws``, its random numbers; ``Exchange`` in ``init``, a channel in
  ``round``
* what it computes with: ``LocalSolver``, whose state is an ``OptimizerState``; ``initial_models``
* what clients deploy: ``Predictor``, after fine-tuning by a ``local.tuner``
* terms of the gradient: ``Proximal`` and ``Shift``; others derive from ``Adjustment``
* several models, one minibatch: ``Coupling``, whose ``move`` gets a ``Minibatch``
* what does not go together: declared in ``requires``, a tuple of ``Requirement``, with ``Not``
  and ``Only`` for some values

Fields of the state are declared by ``mpifed.state``; bad options raise ``InputError`` of
``mpifed.errors``. Samples have the types of ``mpifed.dataset``; risks of models are in
``mpifed.model``, what concerns messages and steps of a server in ``mpifed.message``.

For some families of methods:

* ``to_server`` of a channel that may lead to one
* ``AnyChannel``, of base classes whose subclasses say which; ``StepScale`` of rates under gossip
* ``over_rates``, moves divided by the learning rates of their steps
* another run's results: ``stored_configuration``, ``stored_state``, ``plain``
* ``heartbeat`` of a long computation.
"""

from mpifed.components.registry import plain
from mpifed.components.requirement import Not, Only, Requirement
from mpifed.exchange.base import Channel, Exchange, ServerChannel, to_server
from mpifed.exchange.gossip_channel import GossipChannel
from mpifed.federation.clients import Clients, Draws
from mpifed.federation.options import StepScale
from mpifed.local.adjustments import Adjustment, Coupling, Minibatch, Proximal, Shift
from mpifed.local.solver import LocalSolver, OptimizerState, over_rates
from mpifed.method.algorithm import Algorithm, AnyChannel
from mpifed.method.initial import initial_models
from mpifed.method.predictor import Predictor
from mpifed.method.stored import stored_configuration, stored_state
from mpifed.watchdog import heartbeat

__all__ = [
    "Adjustment",
    "Algorithm",
    "AnyChannel",
    "Channel",
    "Clients",
    "Coupling",
    "Draws",
    "Exchange",
    "GossipChannel",
    "LocalSolver",
    "Minibatch",
    "Not",
    "Only",
    "OptimizerState",
    "Predictor",
    "Proximal",
    "Requirement",
    "ServerChannel",
    "Shift",
    "StepScale",
    "heartbeat",
    "initial_models",
    "over_rates",
    "plain",
    "stored_configuration",
    "stored_state",
    "to_server",
]
