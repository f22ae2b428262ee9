"""What models are written with, and what methods ask of models: the names that stay stable.

Any torch module is a model, and ``mpifed new model NAME`` writes one, so that most users need none
of these names; they are for models that compute gradients by formulas of their own, and for methods
that look into a model.

* A module's attribute ``loss`` is what it is trained on: ``own_loss`` makes one of a function,
  ``CROSS_ENTROPY``, ``SQUARED`` and ``HALF_SQUARED`` are there, and each is a ``Loss``.
* ``Model`` is what predicts and computes gradients by rows of parameters, ``Parametrised`` what has
  parameters alone, ``NoModel`` what has none. ``Linear`` and ``DenseICNN`` (convex networks, with
  ``PotentialValues``) derive from them; ``ModuleModel`` is any module, of which ``module_model``
  makes it.
* Parts of a model: ``head_of``, ``last_layer``, ``last_sizes``, ``normalisation_layers``, and what
  its last layer is given, the ``representation``.
* Models made from others: ``Derived`` of rows ``Between`` two models, or with ``TwoHeads`` or
  ``HyperHeads``; ``contrastive`` and ``prototyped`` losses of representations.
* ``merge`` puts plain layers in place of those with low-rank adapters.
* ``logistic`` and ``sigmoid`` functions that round alike everywhere.
"""

from mpifed.data.base import Description
from mpifed.models.adapters import merge
from mpifed.models.base import Model, NoModel, Parametrised
from mpifed.models.heads import (
    Between,
    Derived,
    HyperHeads,
    TwoHeads,
    head_of,
    last_layer,
    last_sizes,
    normalisation_layers,
    representation,
)
from mpifed.models.icnn import DenseICNN, PotentialValues
from mpifed.models.linear import Linear
from mpifed.models.losses import (
    CROSS_ENTROPY,
    HALF_SQUARED,
    SQUARED,
    Loss,
    logistic,
    own_loss,
    sigmoid,
)
from mpifed.models.modules import ModuleModel, module_model
from mpifed.models.representations import contrastive, prototyped

__all__ = [
    "CROSS_ENTROPY",
    "HALF_SQUARED",
    "SQUARED",
    "Between",
    "DenseICNN",
    "Derived",
    "Description",
    "HyperHeads",
    "Linear",
    "Loss",
    "Model",
    "ModuleModel",
    "NoModel",
    "Parametrised",
    "PotentialValues",
    "TwoHeads",
    "contrastive",
    "head_of",
    "last_layer",
    "last_sizes",
    "logistic",
    "merge",
    "module_model",
    "normalisation_layers",
    "own_loss",
    "prototyped",
    "representation",
    "sigmoid",
]
