"""LG-FedAvg (Liang et al. 2020, Algorithm 1): clients keep their bodies and share a head.

With the local representation l_m and the global model g behind it, of client m with N_m samples,

    Client m   (l_m, g_m) <- SGD on f_m(l_m, g), both parts at once
    Server     g <- sum_m (N_m / N) g_m

It is FedPer with the parts exchanged. Assumed: all l_m begin alike, as in the published code, which
begins at a model of FedAvg.
"""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge

from mpifed.algorithms.shared_body.fedper import Parts, unseen_fitter
from mpifed.method import Channel, LocalSolver, StepScale
from mpifed.model import Model


class LGFedAvg(Parts[Channel]):
    """LG-FedAvg: the head averaged as in FedAvg, the layers below trained beside it and kept.

    Parameters
    ----------
    head : list of str, optional
        Layers or parameters that are shared. None is the model's last layer; ``["*"]`` is FedAvg.
    unseen_epochs : int
        Epochs in which an unseen client fits its body, with the head fixed.
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
        unseen_epochs: Annotated[int, Ge(1)] = 10,
        gossip_step_scale: StepScale = "normalised",
    ) -> None:
        super().__init__(
            model,
            local,
            head=head,
            gossip_step_scale=gossip_step_scale,
        )
        self.fitter = unseen_fitter(local, unseen_epochs)
        # The base class averages what it calls the body.
        self.head, self.body = self.body, self.head
