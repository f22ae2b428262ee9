"""FedBN (Li et al. 2021): FedAvg without the normalisation layers, which stay with the clients.

Algorithm 1: after the local steps of client k, every layer l that is no batch normalisation becomes

    w_l <- sum_k (n_k / n) w_l^k

The scales, shifts, running means and variances of batch normalisation are never sent. The paper
has equally many samples of each client, hence weights 1 / K.
"""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge

from mpifed.algorithms.shared_body.fedper import Parts, unseen_fitter
from mpifed.errors import InputError
from mpifed.method import Channel, LocalSolver, StepScale
from mpifed.model import Model, normalisation_layers


class FedBN(Parts[Channel]):
    """FedBN: all is averaged but normalisation layers, their parameters and running statistics.

    Parameters
    ----------
    layers : {'batch', 'every'}
        Which layers stay with the client: batch (and instance) normalisation, or all that
        normalise, ``GroupNorm`` and ``LayerNorm`` included.
    unseen_epochs : int
        Epochs in which an unseen client fits its normalisation layers, with all else fixed.
    gossip_step_scale : {'paper', 'normalised', 'none'}
        How the learning rate depends on a client's share of the samples under gossip, as for
        FedAvg: n_t / n, the same with mean one, or 1.
    """

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        layers: Literal["batch", "every"] = "batch",
        unseen_epochs: Annotated[int, Ge(1)] = 10,
        gossip_step_scale: StepScale = "normalised",
    ) -> None:
        names = normalisation_layers(model, layers == "every")
        if not names:
            kinds = "batch normalisation" if layers == "batch" else "layers that normalise"
            raise InputError(
                f"algorithm fedbn keeps normalisation layers at the clients (algorithm.layers is "
                f"'{layers}'), but the model has no {kinds}; use one with it, such as resnet18, "
                "or algorithm=fedavg"
            )
        super().__init__(
            model,
            local,
            head=names,
            gossip_step_scale=gossip_step_scale,
        )
        self.fitter = unseen_fitter(local, unseen_epochs)
