"""The state and the options of FedGMM, and what it asks of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Lt
from torch import Tensor

from mpifed import state
from mpifed.algorithms.base import Algorithm
from mpifed.algorithms.fedem.expectation import check_floor
from mpifed.algorithms.fedgmm.gaussians import (
    Gaussians,
    Representation,
    Represented,
    gaussians_of,
)
from mpifed.exchange.base import ServerChannel
from mpifed.federation.clients import Draws
from mpifed.federation.participation import is_unbiased
from mpifed.local.solver import LocalSGD, OptimizerState
from mpifed.models.base import Model


@dataclass(frozen=True)
class FedGMMState:
    """Components, Gaussians, mixture weights and the clients' optimizers.

    Attributes
    ----------
    components : Tensor
        theta, (M2, P).
    statistics : Tensor
        Statistics of the Gaussians, float64 (M1, 1 + d + d d), or (M1, 1 + 2 d) where covariances
        are diagonal.
    mixture : Tensor
        pi, (clients, M1 M2).
    optimizer : OptimizerState
        SGD buffers of the clients.
    """

    components: Tensor = state.shared()
    statistics: Tensor = state.server()
    mixture: Tensor = state.client()
    optimizer: OptimizerState = state.client()


class JointMixtures(Algorithm[ServerChannel]):
    """Base class of FedGMM.

    Parameters
    ----------
    n_components : int
        Number M2 of conditional models.
    n_gaussians : int
        Number M1 of Gaussians.
    covariance : {'full', 'diagonal'}
        Form of the covariances.
    covariance_floor : float
        Least eigenvalue of a covariance.
    gmm_dimension : int, optional
        Inputs of more numbers are represented by so many random projections, on which the Gaussians
        are. None takes all inputs as they are.
    mixture_init : {'random', 'uniform'}
        First mixture weights: drawn from the flat Dirichlet distribution, or all equal.
    mixture_floor : float
        Least mixture weight; those below it are raised before the weights are normalised.
    unseen_e_steps : int, optional
        E-steps that fit the mixture weights of an unseen client, from uniform ones. None is until
        they converge.
    """

    exchanges = ("server",)
    steps_locally = True
    tasks = ("classification", "multi_label", "regression")

    def __init__(
        self,
        model: Model,
        local: LocalSGD,
        *,
        n_components: Annotated[int, Ge(1)] = 3,
        n_gaussians: Annotated[int, Ge(1)] = 3,
        covariance: Literal["full", "diagonal"] = "full",
        covariance_floor: Annotated[float, Gt(0)] = 1e-3,
        gmm_dimension: Annotated[int, Ge(1)] | None = 16,
        mixture_init: Literal["random", "uniform"] = "random",
        mixture_floor: Annotated[float, Ge(0), Lt(1)] = 0.0,
        unseen_e_steps: Annotated[int, Ge(1)] | None = 1,
    ) -> None:
        self.shape, self.n_pairs = (n_gaussians, n_components), n_gaussians * n_components
        check_floor(mixture_floor, self.n_pairs, "(n_gaussians n_components)")
        self.model, self.local, self.deploys_mixtures = model, local, n_components > 1
        self.full, self.covariance_floor = covariance == "full", covariance_floor
        self.gmm_dimension, self.mixture_init = gmm_dimension, mixture_init
        self.mixture_floor, self.unseen_e_steps = mixture_floor, unseen_e_steps
        self.represented = Represented()

    @staticmethod
    def refuse(configuration: Any) -> str | None:
        """Return why these options do not fit together, or None."""
        if not is_unbiased(configuration.participation):
            return None
        return (
            "participation.weights is 'unbiased', but fedgmm takes means and covariances from "
            "averages of moments; allowed: participation.weights=renormalised"
        )

    def representation(self, draws: Draws) -> Representation:
        """Return what the Gaussians are over."""
        return Representation(self.gmm_dimension, draws.seed)

    def gaussians(self, state: FedGMMState) -> Gaussians:
        """Return mu and Sigma."""
        dtype = state.components.dtype
        return gaussians_of(state.statistics, self.full, self.covariance_floor, dtype)

    def payload(self) -> int:
        return self.shape[1] * self.model.n_parameters
