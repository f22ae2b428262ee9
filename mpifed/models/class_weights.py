"""Cross-entropies in which rare labels count for more (Marfoq et al. 2021, appendix I.1.4).

The label y has the weight w_y; the loss of a sample is w_y times its cross-entropy, or the mean
over positions of that in a sequence. Weights are not divided out again, so with more than one
component the E-step of FedEM sees likelihoods to the power w_y, as in the published code.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mpifed.data.base import Description
from mpifed.errors import InputError
from mpifed.models.likelihoods import cross_entropy, cross_entropy_slopes
from mpifed.models.losses import Loss, loss_for, mixed_cross_entropy

Weighting = Literal["none", "inverse_frequency", "published"]

PUBLISHED_SCALE = 8.0
"""Factor of all weights in the published code."""

PUBLISHED_RATE = 0.0114
"""Share of all characters above which a character's weight falls in the published code.

Its table of weights is min(1, PUBLISHED_RATE / f) within 4 % for the lower-case letters, f being
their shares of Shakespeare's works.
"""


def class_weights(counts: np.ndarray, weighting: Weighting) -> np.ndarray:
    """Return the weight of each label.

    Parameters
    ----------
    counts : numpy.ndarray
        How often each label occurs, (n_classes,). 0 is taken as 1.
    weighting : {'none', 'inverse_frequency', 'published'}
        1; 1 / f divided by its mean over the samples, so that every label has the same share of
        the loss; or 8 min(1, 0.0114 / f). f is a label's share of all.

    Returns
    -------
    numpy.ndarray
        float64 (n_classes,).

    Examples
    --------
    >>> class_weights(np.array([6, 2]), "inverse_frequency")
    array([0.66666667, 2.        ])
    """
    if weighting == "none":
        return np.ones(len(counts))
    shares = np.maximum(counts, 1) / max(counts.sum(), 1)
    if weighting == "published":
        return PUBLISHED_SCALE * np.minimum(1, PUBLISHED_RATE / shares)
    return 1 / (shares * np.count_nonzero(counts))


def weighted_loss(data: Description, weighting: Weighting) -> Loss:
    """Return the loss of a classification or of sequences, weighted by label.

    Parameters
    ----------
    data : Description
        What the samples are.
    weighting : {'none', 'inverse_frequency', 'published'}
        See ``class_weights``.

    Raises
    ------
    InputError
        Where weights are asked for and the data set does not count its labels.
    """
    loss = loss_for(data.task)
    if weighting == "none":
        return loss
    if data.label_counts is None or not data.label_counts.any():
        raise InputError(
            f"model.weighting is {weighting}, but the data set '{data.source}' does not count its "
            "labels; allowed here: none"
        )
    weights = torch.from_numpy(class_weights(data.label_counts, weighting))

    def of(outputs: Tensor, y: Tensor) -> Tensor:
        return weights.to(outputs)[y]

    def mean(values: Tensor) -> Tensor:
        return values.mean(-1) if data.task == "sequence" else values

    def slopes(outputs: Tensor, y: Tensor) -> Tensor:
        positions = y.shape[-1] if data.task == "sequence" else 1
        return cross_entropy_slopes(outputs, y) * of(outputs, y).unsqueeze(-1) / positions

    return replace(
        loss,
        name=f"weighted_{loss.name}",
        samples=lambda outputs, y: mean(of(outputs, y) * cross_entropy(outputs, y)),
        slopes=slopes,
        of_mixture=lambda outputs, y, mixture: mean(
            of(outputs, y) * mixed_cross_entropy(outputs, y, mixture)
        ),
    )
