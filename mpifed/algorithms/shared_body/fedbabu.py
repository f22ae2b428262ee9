"""FedBABU (Oh et al. 2022): the body is trained against a random head, then all is fine-tuned.

Algorithm 1, with the extractor theta_ext and the classifier theta_cls, which is drawn once, the
same for all clients, and never trained:

    Client k   theta_ext^k <- SGD on f_k(theta_ext, theta_cls), theta_cls fixed
    Server     theta_ext <- sum_k (n_k / n) theta_ext^k

A client fine-tunes what it deploys: whole models, as in the paper's main results, bodies or heads.
Fine-tuning begins at the shared model with zero momentum at every evaluation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from mpifed.algorithms.shared_body.fedper import Parts, PartsState
from mpifed.method import (
    Channel,
    Clients,
    Draws,
    Exchange,
    LocalSolver,
    Predictor,
    StepScale,
)
from mpifed.model import Model


class FedBABU(Parts[Channel]):
    """FedBABU: FedAvg on the body with a random head fixed; clients fine-tune what they deploy.

    Parameters
    ----------
    head : list of str, optional
        Layers or parameters that are fixed in training. None is the model's last layer; an empty
        list is FedAvg+.
    tune_part : {'full', 'body', 'head'}
        What is fine-tuned before a client's model is deployed.
    tune_epochs : int
        Epochs of fine-tuning.
    tune_lr : float, optional
        Learning rate of the fine-tuning. None is ``local.lr``, without its schedule.
    gossip_step_scale : {'paper', 'normalised', 'none'}
        How the learning rate depends on a client's share of the samples under gossip, as for
        FedAvg: n_t / n, the same with mean one, or 1.
    """

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        head: list[str] | None = None,
        tune_part: Literal["full", "body", "head"] = "full",
        tune_epochs: Annotated[int, Ge(1)] = 5,
        tune_lr: Annotated[float, Gt(0)] | None = None,
        gossip_step_scale: StepScale = "normalised",
    ) -> None:
        super().__init__(model, local, head=head, gossip_step_scale=gossip_step_scale)
        self.trains = self.body
        self.tuned = {"full": None, "body": self.body, "head": self.head}[tune_part]
        self.tuner = local.tuner(tune_epochs, tune_lr)

    def round(
        self, state: PartsState, clients: Clients, channel: Channel, draws: Draws
    ) -> PartsState:
        return replace(super().round(state, clients, channel, draws), heads=state.heads)

    def deploy(self, state: PartsState, clients: Clients, draws: Draws) -> Predictor:
        """Each client's copy of the shared model, fine-tuned on its shard."""
        models = self.local.with_statistics(self.joined(state.body, state.heads), state.optimizer)
        return Predictor(self.tuner.tuned(models, clients, draws, self.tuned))

    def adapt(
        self, state: PartsState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> Predictor:
        """Unseen clients fine-tune the shared model like all others."""
        start = self.unseen_start(state, clients, exchange)
        return Predictor(self.tuner.tuned(start, clients, draws, self.tuned))
