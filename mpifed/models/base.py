"""What a model is to the rest of mpifed.

A model is a function of *rows* of parameters: R copies, each a flat vector of ``n_parameters``
numbers, each with its own batch. What its outputs mean is said in ``losses``.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from torch import Tensor


class Model(Protocol):
    """A parametrised family of predictors.

    An attribute ``loss`` (``mpifed.models.losses.Loss``) says what it is trained with; without it,
    a model is a classifier.
    """

    @property
    def n_parameters(self) -> int:
        """Numbers in one copy."""

    def init(self, generator: np.random.Generator) -> np.ndarray:
        """Initial parameters, float64 (n_parameters,)."""

    def logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        """(R, n_parameters) and (R, B, *input_shape) to (R, B, outputs)."""

    def shared_logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        """(M, n_parameters) on the same inputs (B, *input_shape), to (M, B, outputs)."""

    def gradient(self, parameters: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Gradient of sum_b weights[r, b] * loss(x[r, b], y[r, b]) per row: (R, n_parameters).

        ``y`` is (R, B), or (R, B, targets), ``weights`` floating (R, B).
        """
