"""Base classes of models.

A model is a function of *rows* of parameters: R copies, each a flat vector of ``n_parameters``
numbers, each with its own batch of B samples. ``mpifed.models.losses`` says what outputs mean.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mpifed.data.base import Description
from mpifed.errors import InputError
from mpifed.models.layout import Span, mask_of
from mpifed.models.loss import LANES, Loss
from mpifed.models.losses import CROSS_ENTROPY

Stepping = Literal["stacked", "one_by_one"]
Gradient = Callable[[Tensor, Tensor, Tensor], None]
"""Computes the gradient of one copy on x (B, ...), y (B, ...) and weights (B,)."""

RowGradients = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Computes gradients of rows; see ``Model.gradient``."""


class Parametrised(ABC):
    """Base class of everything that a run can be given as its model, predictors or not.

    Attributes
    ----------
    loss : Loss
        Training loss; the cross-entropy of a classifier by default.
    n_buffers : int
        Trailing numbers of a row that training changes without a gradient, such as the running
        means of batch normalisation. They are sent and averaged like parameters.
    deterministic : bool
        False if outputs in training depend on more than the parameters and the sample itself, as
        with dropout and batch normalisation. Methods that need whole risks refuse such a model.
    steppings : tuple of str
        Values of ``local.stepping`` that the model can be trained with.
    stepping, stepping_on_gpu : {'stacked', 'one_by_one'}
        What ``local.stepping: auto`` means on a CPU and on a GPU.
    same_bits : bool
        True if both values of ``local.stepping`` give the same bits.
    single_rows : bool
        True if the gradient of one row alone has the bits that the row has among others.
    lanes : int
        Samples to a multiple of which stacked minibatches are padded, so that the bits of a
        gradient do not depend on other rows. 2 is for models of products, whose bits depend on no
        width but 1, that pad what elementwise functions are applied to.
    """

    loss: Loss = CROSS_ENTROPY
    n_buffers: int = 0
    deterministic: bool = True
    steppings: tuple[Stepping, ...] = ("stacked", "one_by_one")
    stepping: Stepping = "stacked"
    stepping_on_gpu: Stepping = "stacked"
    same_bits: bool = True
    single_rows: bool = False
    lanes: int = LANES

    @property
    @abstractmethod
    def n_parameters(self) -> int:
        """Numbers in one copy, P; buffers that training changes are the last ``n_buffers``."""


class Model(Parametrised):
    """Base class of parametrised predictors.

    Subclasses evaluate many copies at once and differentiate by rows. The result of a row must not
    depend on other rows, so that a run gives the same numbers on any number of ranks.

    Attributes
    ----------
    scored_together : int
        Samples in one call of ``shared_logits``, at most.
    """

    scored_together: int = 8192

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

    def logits_of_parts(self, parameters: Tensor, x: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return the outputs of M copies on several parts of inputs, each computed as if alone.

        Parameters
        ----------
        parameters : Tensor
            (M, n_parameters).
        x : Tensor
            The parts one after the other, (sum of B_k, *input_shape).
        sizes : sequence of int
            B_k of each part; at least one.

        Returns
        -------
        Tensor
            ``shared_logits`` of the parts one after the other, (M, sum of B_k, outputs), bit for
            bit.
        """
        return torch.cat([self.shared_logits(parameters, part) for part in x.split(list(sizes))], 1)

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

    def descend(
        self, parameters: Tensor, x: Tensor, y: Tensor, weights: Tensor, rates: Tensor
    ) -> None:
        """Subtract the gradient times each row's rate from ``parameters``, in place.

        A model may do so without writing the gradient down.

        Parameters
        ----------
        parameters, x, y, weights : Tensor
            As for ``gradient``.
        rates : Tensor
            Learning rates, (R, 1).
        """
        parameters -= self.gradient(parameters, x, y, weights).mul_(rates)

    def gradient_within(self, mask: Tensor) -> RowGradients:
        """Return ``gradient`` for steps that train only some numbers.

        By default it is ``gradient`` itself. A model may leave out what these steps do not read.

        Parameters
        ----------
        mask : Tensor
            Which numbers are trained, bool (n_parameters - n_buffers,).

        Returns
        -------
        callable
            With the arguments of ``gradient``. Trained numbers have the same bits; others may be
            zeros.
        """
        return self.gradient

    def spans(self) -> tuple[Span, ...]:
        """Return where in a row the model's tensors are, by names; none by default."""
        return ()

    def mask(self, names: Iterable[str], field: str = "mask") -> Tensor:
        """Return which numbers of a row belong to some layers or parameters.

        Parameters
        ----------
        names : iterable of str
            Names as in the state dict, with all that begins with a layer's name: ``fc`` is
            ``fc.weight`` and ``fc.bias``. ``*`` stands for any characters.
        field : str
            Where the names come from; the beginning of messages.

        Returns
        -------
        Tensor
            bool (n_parameters,), for the solver's argument ``mask``.

        Raises
        ------
        InputError
            For a name that nothing has, with the closest one.
        """
        return mask_of(self.spans(), self.n_parameters, names, field)

    def representation(self, parameters: Tensor, x: Tensor) -> Tensor:
        """Return the inputs of the last layer, of M copies on the same samples.

        Parameters
        ----------
        parameters : Tensor
            (M, n_parameters).
        x : Tensor
            (B, *input_shape).

        Returns
        -------
        Tensor
            (M, B, inputs).
        """
        raise InputError(
            f"the model is a {type(self).__name__}, of which the inputs of the last layer are not "
            "known; allowed: linear, mlp, or a torch module"
        )

    @contextmanager
    def training(
        self, parameters: Tensor, gradient: Tensor, mask: Tensor | None = None
    ) -> Iterator[Gradient]:
        """Train one copy at its true batch size, without rows beside it.

        By default each call is one of ``gradient``, which moves no buffers: a model with buffers
        overrides this.

        Parameters
        ----------
        parameters : Tensor
            The copy, (n_parameters,). Its buffers change in place with every call.
        gradient : Tensor
            Where each call writes the gradient, (n_parameters - n_buffers,).
        mask : Tensor or None
            Which numbers are trained, bool (n_parameters - n_buffers,); None for all. Gradients of
            tensors that have none of them need not be computed.

        Yields
        ------
        callable
            Computes the gradient at ``parameters`` as they are when it is called; see ``gradient``
            for its arguments, here without the axis of rows.
        """

        def compute(x: Tensor, y: Tensor, weights: Tensor) -> None:
            gradient.copy_(self.gradient(parameters[None], x[None], y[None], weights[None])[0])

        yield compute

    def module(self, parameters: Tensor) -> torch.nn.Module:
        """Return one copy as a torch module in evaluation mode.

        Parameters
        ----------
        parameters : Tensor
            (n_parameters,).

        Returns
        -------
        torch.nn.Module
            Maps a batch (B, *input_shape) to outputs (B, outputs). Its parameters are copies.
        """
        return Frozen(self, parameters.detach().clone())


class Frozen(torch.nn.Module):
    """One copy of a model as a torch module, for models that are written as formulas alone.

    Parameters
    ----------
    model : Model
        What computes the outputs.
    row : Tensor
        The copy, (n_parameters,); the only entry of the state dict.
    """

    row: Tensor

    def __init__(self, model: Model, row: Tensor) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("row", row)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of a batch, (B, outputs)."""
        return self.model.shared_logits(self.row[None], x)[0]


@dataclass(frozen=True)
class NoModel(Parametrised):
    """A model without parameters, which predicts nothing."""

    data: Description

    @property
    def n_parameters(self) -> int:
        """Always 0."""
        return 0


def none(data: Description) -> NoModel:
    """No predictor, for algorithms such as fedmm that train something else."""
    return NoModel(data)
