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
* ``load_weights`` copies the tensors of a file into a module.
* Models made from others: ``Derived`` of rows ``Between`` two models, or with ``TwoHeads`` or
  ``HyperHeads``; ``contrastive`` and ``prototyped`` losses of representations, whose prototypes are
  ``label_means`` of ``label_sums``.
* ``merge`` puts plain layers in place of those with low-rank adapters.
* ``logistic`` and ``sigmoid`` functions that round alike everywhere.

Of a model's risks on the clients' samples, methods take from here

* losses: ``train_losses``, ``train_risks``, ``held_out_risks``, ``mean_by_client``,
  ``samples_of``, ``best_weight``
* risks with gradients: ``Objectives``, which makes an ``Objective``, with a ``Regulariser``;
  ``StackedObjective``, ``sampled_gradients``, ``row_norms``, ``row_products``; of linear models
  ``SparseObjective``, ``columns_of``, ``rows_of``, ``design``, ``hessian``, ``smoothness``
* minibatches without the local solver: ``batches``, ``minibatches``, ``chosen``, ``share_weights``
* minimisers: ``local_optima`` by a ``Solver`` from a ``Start`` of ``local_starts`` up to the
  ``usual_tolerance``, and constants of that search; ``starting_point`` of one model for all.
"""

from mpifed.data.base import Description
from mpifed.io.weights import load_weights
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
    starting_point,
    usual_tolerance,
)
from mpifed.local.scoring import (
    best_weight,
    held_out_risks,
    mean_by_client,
    samples_of,
    train_losses,
    train_risks,
)
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
from mpifed.models.loss import Loss, logistic, sigmoid
from mpifed.models.losses import CROSS_ENTROPY, HALF_SQUARED, SQUARED, own_loss
from mpifed.models.modules import ModuleModel, module_model
from mpifed.models.representations import contrastive, label_means, label_sums, prototyped

__all__ = [
    "CROSS_ENTROPY",
    "FIRST_SMOOTHNESS",
    "HALF_SQUARED",
    "MOST_SMOOTHNESS",
    "SMALL_LOSS",
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
    "Objective",
    "Objectives",
    "Parametrised",
    "PotentialValues",
    "Regulariser",
    "Solver",
    "SparseObjective",
    "StackedObjective",
    "Start",
    "TwoHeads",
    "batches",
    "best_weight",
    "chosen",
    "columns_of",
    "contrastive",
    "design",
    "head_of",
    "held_out_risks",
    "hessian",
    "label_means",
    "label_sums",
    "last_layer",
    "last_sizes",
    "load_weights",
    "local_optima",
    "local_starts",
    "logistic",
    "mean_by_client",
    "merge",
    "minibatches",
    "module_model",
    "normalisation_layers",
    "own_loss",
    "prototyped",
    "representation",
    "row_norms",
    "row_products",
    "rows_of",
    "sampled_gradients",
    "samples_of",
    "share_weights",
    "sigmoid",
    "smoothness",
    "starting_point",
    "train_losses",
    "train_risks",
    "usual_tolerance",
]
