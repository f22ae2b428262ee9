"""Running statistics are averaged as in FedAvg, whatever a server does with parameters."""

from __future__ import annotations

import pytest
import torch
from test_algorithms import engine_of

from mpifed.training.evaluation import training_of

OPTIONS = {
    "fedprox": {"mu": 5.0},
    "scaffold": {"server_lr": 3.0},
    "qffl": {"q": 2.0},
}
NORMALISED = {
    "data": {"name": "digits"},
    "model": {"name": "network_modules:cnn", "norm": True},
    "local": {"batch_size": 16},
}


def engine_after_a_round(name, **options):
    engine = engine_of("fedavg", "server", algorithm={"name": name, **options}, **NORMALISED)
    with torch.no_grad():
        engine.prepare()
    engine.advance()
    return engine


@pytest.mark.parametrize("name", ["scaffold", "qffl"])
def test_after_the_same_local_steps_they_are_those_of_fedavg(name):
    """Control variates are zero and weights by risks come after the steps of the first round."""
    plain, engine = engine_after_a_round("fedavg"), engine_after_a_round(name, **OPTIONS[name])
    expected, found = (e.state.algorithm.model for e in (plain, engine))
    n = plain.setup.model.n_buffers
    assert n == 13
    assert torch.allclose(found[..., -n:], expected[..., -n:], atol=1e-5)
    assert not torch.allclose(found[..., :-n], expected[..., :-n], atol=1e-3)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("buffers", ["average", "local"])
def test_clients_deploy_their_own_or_the_averaged_ones(name, buffers):
    local = {**NORMALISED["local"], "buffers": buffers}
    how = {**NORMALISED, "local": local, "algorithm": {"name": name, **OPTIONS[name]}}
    engine = engine_of("fedavg", "server", **how)
    with torch.no_grad():
        engine.prepare()
        engine.advance()
        algorithm, state = engine.setup.algorithm, engine.state.algorithm
        found = algorithm.deploy(state, training_of(engine.setup, engine.samples), None).parameters
    assert found.dim() == (2 if buffers == "average" else 3)
    assert torch.isfinite(found).all()
