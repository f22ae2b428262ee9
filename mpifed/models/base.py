"""What a model is to the rest of mpifed.

A model is a function of *rows* of parameters: R copies, each a flat vector of ``n_parameters``
numbers, each with its own batch. What its outputs mean is said in ``losses``.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from torch import Tensor

from mpifed.components.base import Contract
from mpifed.models.losses import CROSS_ENTROPY, Loss


class Parametrised(Contract, kind="model"):
    """Base class of whatever a run is given as its model, also of what predicts nothing.

    Attributes
    ----------
    loss : Loss
        What it is trained with; a classifier unless said otherwise.
    """

    loss: Loss = CROSS_ENTROPY

    @property
    @abstractmethod
    def n_parameters(self) -> int:
        """Numbers in one copy."""


class Model(Parametrised, kind="model"):
    """Base class of parametrised families of predictors."""

    @abstractmethod
    def init(self, generator: np.random.Generator) -> np.ndarray:
        """Return initial parameters, float64 (n_parameters,)."""

    @abstractmethod
    def logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        """Return the outputs of R copies, each on inputs of its own.

        Parameters
        ----------
        parameters : Tensor
            (R, n_parameters).
        x : Tensor
            (R, B, *input_shape).

        Returns
        -------
        Tensor
            (R, B, outputs).
        """

    @abstractmethod
    def shared_logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        """Return the outputs of M copies on the same inputs.

        Parameters
        ----------
        parameters : Tensor
            (M, n_parameters).
        x : Tensor
            (B, *input_shape).

        Returns
        -------
        Tensor
            (M, B, outputs).
        """

    @abstractmethod
    def gradient(self, parameters: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Return the gradient of sum_b weights[r, b] * loss(x[r, b], y[r, b]) for each row r.

        Parameters
        ----------
        parameters : Tensor
            (R, n_parameters).
        x : Tensor
            (R, B, *input_shape).
        y : Tensor
            (R, B), or (R, B, targets).
        weights : Tensor
            Floating-point (R, B).

        Returns
        -------
        Tensor
            (R, n_parameters).
        """
