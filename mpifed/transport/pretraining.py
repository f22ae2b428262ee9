"""Initial parameters for both networks of optimal transport: those of the identity map."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mpifed.models.icnn import DenseICNN
from mpifed.transport.adam import Adam

SPREAD = 3.0
"""Points are drawn from N(0, 3^2 I)."""


def identity_potential(
    model: DenseICNN,
    generator: np.random.Generator,
    dtype: torch.dtype,
    *,
    lr: float = 1e-3,
    tolerance: float = 1e-3,
    iterations: int = 5000,
    batch_size: int = 1024,
) -> Tensor:
    """Return parameters for which the gradient of f is close to the identity.

    From ``model.init``, Adam minimises the mean square of grad f(x) - x, per coordinate, over
    batches x ~ N(0, 9 I), setting negative weights to 0 after each step (published code of Korotin
    et al. 2021). The result depends on the generator alone.

    Parameters
    ----------
    model : DenseICNN
        The network.
    generator : numpy.random.Generator
        The generator of the initial parameters and the batches.
    dtype : torch.dtype
        The type of the result.
    lr : float, default 0.001
        The step size of Adam.
    tolerance : float, default 0.001
        The mean square at which to stop.
    iterations : int, default 5000
        The largest number of steps.
    batch_size : int, default 1024
        The samples per step.

    Returns
    -------
    Tensor, shape (n_parameters,)
        The parameters.
    """
    optimizer = Adam(lr)
    parameters = torch.from_numpy(model.init(generator)).to(dtype)
    state = optimizer.init(parameters)
    for _ in range(iterations):
        x = torch.from_numpy(generator.standard_normal((batch_size, model.dimension), np.float32))
        x = (SPREAD * x).to(dtype)
        point = model.at(parameters, x)
        error = point.push() - x
        if error.square().mean() < tolerance:
            break
        gradient = point.along(error * (2 / error.numel())).gradient()
        parameters, state = optimizer.step(parameters, gradient, state)
        parameters = model.convexify(parameters)
    return parameters
