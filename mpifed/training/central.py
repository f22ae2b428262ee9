"""The scores of the shared model on the test set of ``evaluation.central``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from mpifed import state as states
from mpifed.errors import InputError
from mpifed.federation.clients import Clients
from mpifed.local.scoring import client_scores
from mpifed.method.predictor import Predictor
from mpifed.models.base import Model
from mpifed.training.scores import Samples, of_samples, scores_of_all
from mpifed.training.setup import Setup

PREFIX = "central_test_"

Deploy = Callable[[np.ndarray], Predictor]


def central_columns(setup: Setup) -> list[str]:
    """Return the columns of metrics.csv for the central test set."""
    if setup.central is None:
        return []
    measure = setup.model.loss.measure
    others = [measure] if measure not in (None, "accuracy") else []
    metrics = [metric.name for metric in setup.metrics if metric.is_number]
    return [f"{PREFIX}{name}" for name in ("loss", "accuracy", *others, *metrics)]


def shared_models(setup: Setup, state: Any, deployed: Callable[[], Predictor]) -> Tensor | None:
    """Return the models that all clients share, (M, P), their mean under gossip; None without any.

    ``deployed`` returns what no clients at all predict with. Collective.
    """
    axes = 3 if setup.exchange.shared_is_rows else 2
    for models in states.shared_tensors(state):
        if models.dim() == axes and models.shape[-1] == setup.model.n_parameters:
            return setup.exchange.mean(models)
    of_all = deployed().parameters
    return of_all if of_all is not None and of_all.dim() == 2 else None


def central_scores(
    setup: Setup, state: Any, training: Clients, deploy: Deploy
) -> dict[str, float | None]:
    """Return the scores of the shared model on the central test set, on rank 0. Collective."""
    models, mixture = shared_predictor(setup, state, training, deploy)
    ids, split = setup.central_part
    rows, reads = np.arange(len(ids)), of_samples(setup.metrics)
    scores = client_scores(
        setup.model, lambda _: models, lambda *_: mixture, split, rows, None, reads
    )
    communicator, loss = setup.federation.communicator, setup.model.loss
    samples = Samples(ids, split.counts, scores.samples)
    n_classes = setup.dataset.description.n_classes
    pooled = scores_of_all(communicator, setup.metrics, [samples], n_classes)
    parts = communicator.gather_object(
        (ids, split.counts, scores.loss, scores.hits, scores.possible)
    )
    if parts is None:
        return {}
    ids, counts, losses, hits, possible = map(np.concatenate, zip(*parts, strict=True))
    order = np.argsort(ids, kind="stable")
    order = order[counts[order] > 0]
    mean = float((losses[order] * counts[order]).sum() / counts[order].sum())
    measured: dict[str, float | None] = {"loss": mean, **pooled}
    if loss.measure is not None:
        measured[loss.measure] = float(hits[order].sum() / possible[order].sum())
    return {f"{PREFIX}{name}": value for name, value in measured.items()}


def shared_predictor(
    setup: Setup, state: Any, training: Clients, deploy: Deploy
) -> tuple[Tensor, Tensor | None]:
    """Return the shared models, (M, P), and their weights, (M,) or None where M is 1. Collective.

    ``deploy`` returns what the training clients at some positions predict with. Several models are
    mixed with the mean of the clients' weights pi_t, each counted n_t times: the weights that the
    M-step (Marfoq et al. 2021, eq. 9) gives to one client with the samples of all.
    """
    check_central(setup)
    models = shared_models(setup, state, lambda: deploy(np.zeros(0, np.int64)))
    if models is None:
        raise _refused(setup, "no model that all clients share")
    models = models.to(setup.dtype)
    if len(models) == 1:
        return models, None
    mixture = deploy(np.arange(len(training))).mixture
    if mixture is None or mixture.shape[1] != len(models):
        raise _refused(setup, f"{len(models)} models and no weights by which all clients mix them")
    return models, training.total(mixture, training.weights).to(models)


def check_central(setup: Setup) -> None:
    """Refuse a central test set for a method that has no model to share."""
    if setup.central is not None and not (
        setup.algorithm.communicates and isinstance(setup.model, Model)
    ):
        raise _refused(setup, "no model that all clients share")


def _refused(setup: Setup, has: str) -> InputError:
    return InputError(
        f"evaluation.central is '{setup.evaluation.central}', but algorithm "
        f"'{setup.method.name}' has {has}, for one test set to score; allowed with it: null"
    )
