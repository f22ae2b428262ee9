"""Base classes of models.

A model is a function of *rows* of parameters: R copies, each a flat vector of ``n_parameters``
numbers, each with its own batch of B samples. ``mpifed.models.losses`` says what outputs mean.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from torch import Tensor

from mpifed.components.base import Contract
from mpifed.models.losses import CROSS_ENTROPY, Loss


class Parametrised(Contract, kind="model"):
    """Base class of everything that a run can be given as its model, predictors or not.

    Attributes
    ----------
    loss : Loss
        Training loss; the cross-entropy of a classifier by default.
    """

    loss: Loss = CROSS_ENTROPY

    @property
    @abstractmethod
    def n_parameters(self) -> int:
        """Number of parameters P of one copy."""


class Model(Parametrised, kind="model"):
    """Base class of parametrised predictors.

    Subclasses evaluate many copies at once and differentiate by rows. The result of a row must not
    depend on other rows, so that a run gives the same numbers on any number of ranks.
    """

    @abstractmethod
    def init(self, generator: np.random.Generator) -> np.ndarray:
        """Return initial parameters.

        Parameters
        ----------
        generator : numpy.random.Generator
            Source of the random numbers.

        Returns
        -------
        numpy.ndarray
            float64 (n_parameters,).
        """

    @abstractmethod
    def logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        """Return the outputs of R copies, each on its own inputs.

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
