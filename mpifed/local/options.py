"""The section ``local`` of a configuration: ``local.lr`` and the rest, with their bounds."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

# Epochs or steps of a round, whose minibatches are numbered by int64.
MOST = 10**13

Sampling = Literal["shuffled", "uniform"]


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """The section ``local``: how clients take their local steps.

    ``lr_clock``, ``reset_momentum`` and ``sampling`` name points where the published FedEM code and
    its text differ or leave a choice; see docs/deviations.md.

    Parameters
    ----------
    optimizer : {'sgd', 'adam', 'adamw', 'muon'}
        Stochastic gradient descent, Adam, Adam with weights that decay apart from the gradient, or
        Muon for hidden matrices with AdamW for all else.
    lr : float
        Learning rate of the first round.
    lr_schedule : {'constant', 'multi_step', 'sqrt', 'linear', 'cosine'}
        How the learning rate falls over the rounds.
    lr_warmup : int
        Rounds over which the learning rate rises to what the schedule says, by equal steps (Goyal
        et al. 2017, sec. 2.2); local epochs where ``lr_clock`` counts these.
    lr_clock : {'round', 'local_epoch'}
        Whether the schedule counts rounds or local epochs.
    lr_horizon : int, optional
        The R of the schedules. None is ``rounds`` when the run began.
    momentum : float
        Momentum of SGD.
    reset_momentum : bool
        Whether every round begins without momentum, or without moments of Adam.
    beta1, beta2 : float
        Decay rates of Adam's moments; beta1 also of Muon's.
    epsilon : float
        What Adam adds to the root of the second moment.
    weight_decay : float
        Factor of the parameters that is added to the gradient.
    sam_radius : float
        The rho of sharpness-aware steps (Foret et al. 2021): gradients g of the risk alone, without
        terms of the method and weight decay, are taken again at theta + rho g / ||g||, on the same
        samples. 0 is none. Under gossip they make DFedSAM (Shi et al. 2023).
    batch_size : int
        Samples of a minibatch.
    epochs : int
        Passes over a client's samples in a round.
    steps : int, optional
        Local steps in a round, in place of ``epochs``.
    sampling : {'shuffled', 'uniform'}
        Whether minibatches cut a shuffled epoch, or are each drawn anew, with replacement. An
        epoch has as many of the latter as of the former.
    stepping : {'auto', 'stacked', 'one_by_one'}
        Whether clients of a rank step together, as stacked rows, or one after the other at their
        true batch size. ``auto`` goes by the kind of model.
    buffers : {'average', 'local'}
        Whether running statistics of normalisation layers are averaged like parameters, or stay
        with the client.
    autocast : {'bfloat16'}, optional
        Type of the products in local steps. None is that of the parameters.
    """

    optimizer: Literal["sgd", "adam", "adamw", "muon"] = "sgd"
    lr: Annotated[float, Gt(0)] = 0.1
    lr_schedule: Literal["constant", "multi_step", "sqrt", "linear", "cosine"] = "constant"
    lr_warmup: Annotated[int, Ge(0)] = 0
    lr_clock: Literal["round", "local_epoch"] = "round"
    lr_horizon: Annotated[int, Ge(1)] | None = None
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.0
    reset_momentum: bool = False
    beta1: Annotated[float, Ge(0), Lt(1)] = 0.9
    beta2: Annotated[float, Ge(0), Lt(1)] = 0.999
    epsilon: Annotated[float, Gt(0)] = 1e-8
    weight_decay: Annotated[float, Ge(0)] = 0.0
    sam_radius: Annotated[float, Ge(0)] = 0.0
    batch_size: Annotated[int, Ge(1)] = 128
    epochs: Annotated[int, Ge(1), Le(MOST)] = 1
    steps: Annotated[int, Ge(1), Le(MOST)] | None = None
    sampling: Sampling = "shuffled"
    stepping: Literal["auto", "stacked", "one_by_one"] = "auto"
    buffers: Literal["average", "local"] = "average"
    autocast: Literal["bfloat16"] | None = None


def unread(options: LocalOptions, read: Collection[str]) -> dict[str, Any]:
    """Return the options that the section ``options`` sets although they are not among ``read``.

    ``lr_horizon`` is left out: a run that is continued for more rounds sets it by itself.

    Parameters
    ----------
    options : LocalOptions
        The section of a configuration.
    read : collection of str
        Names of the options that the algorithm reads.

    Returns
    -------
    dict
        Values of those that differ from their defaults, by name.

    Examples
    --------
    >>> unread(LocalOptions(lr=0.5, epochs=2), read=["lr"])
    {'epochs': 2}
    """
    plain = LocalOptions()
    return {
        key: value
        for key, value in vars(options).items()
        if key not in (*read, "lr_horizon") and value != getattr(plain, key)
    }
