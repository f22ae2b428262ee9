"""Methods with personal models train networks with running statistics and dropout."""

from __future__ import annotations

import pytest
import torch
from personal_runs import ran

from mpifed.federation.clients import Draws
from mpifed.training.evaluation import training_of, unseen_of

NETWORK = {
    "data": "digits",
    "model": {"name": "network_modules:cnn", "norm": True, "dropout": 0.2},
    "evaluation": {"unseen_fraction": 0.3},
}
METHODS = {
    "ditto": {},
    "apfl": {"apfl_adaptive": True},
    "pfedme": {"pfedme_lambda": 1.0, "inner_steps": 2, "beta": 1.5},
    "l2gd": {"l2gd_gradients": "minibatch", "l2gd_p": 0.3},
}


@pytest.mark.parametrize("buffers", ["average", "local"])
@pytest.mark.parametrize("name", METHODS)
def test_running_statistics_follow_the_models(name, buffers):
    """They move, stay variances, and are those with which clients are evaluated."""
    local = {"batch_size": 32, "lr": 0.05, "buffers": buffers}
    given = {**NETWORK, "local": local}
    if buffers == "local":
        given = {**given, "evaluation": {}}
    found, engine = ran(name, METHODS[name], rounds=2, **given)
    method, model = engine.setup.algorithm, engine.setup.model
    with torch.no_grad():
        rows = training_of(engine.setup, engine.samples).rows
        own = method.deploy(found, engine.everyone, Draws(0, 2)).parameters[rows]
    places = {place.name: place for place in model.places()}
    spread, count = (
        own[..., places[f"3.{name}"].begin : places[f"3.{name}"].end]
        for name in ("running_var", "num_batches_tracked")
    )
    assert torch.isfinite(own).all()
    assert (spread > 0).all() and (spread != 1).all() and (count > 0).all()
    if buffers == "average":
        with torch.no_grad():
            clients = unseen_of(engine.setup, engine.samples)
            unseen = method.adapt(found, clients, engine.setup.exchange, Draws(0, 2))
        assert torch.isfinite(unseen.parameters).all()
