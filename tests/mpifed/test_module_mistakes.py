"""How often a user's module is built, what is loaded of it, and names of another form."""

from __future__ import annotations

import mistaken_modules as mistakes
import pytest
import torch
from network_cases import data
from torch import nn

import mpifed
from mpifed.errors import InputError
from mpifed.models.modules import module_model

SMALL = {"clients": 3, "rounds": 1, "algorithm": "fedavg"}


def model_of(build):
    return module_model(lambda: build(data((8, 8))), (8, 8), (10,))


def test_lazy_layers_may_be_built_in_another_type():
    assert model_of(mistakes.lazy_in_double).n_parameters == 650


@pytest.mark.parametrize("build", [mistakes.weight_norm, mistakes.parametrised, mistakes.Keeps])
def test_modules_whose_attributes_have_a_graph_are_trained_and_loaded(build, tmp_path):
    """Their row is as long as that of the parameters, and what is loaded is what was scored."""
    result = mpifed.run("digits-fedem", output=tmp_path / "run", **SMALL, model=build)
    trained = mpifed.load(tmp_path / "run")
    module, test = trained.client(1), trained.samples(1).test
    with torch.no_grad():
        loss = nn.functional.cross_entropy(module(test.x), test.y)
    assert float(loss) == pytest.approx(result.clients["test_loss"][1], rel=1e-5)
    own = build(data((8, 8)))
    own.load_state_dict(module.state_dict())
    with torch.no_grad():
        assert torch.allclose(own.eval()(test.x), module(test.x))


def test_statistics_are_as_before_the_trial():
    model = module_model(lambda: nn.BatchNorm1d(4), (4,), (4,))
    assert bool((model.network.running_mean == 0).all())
    assert int(model.network.num_batches_tracked) == 0


@pytest.mark.parametrize("method", ["flix", "maml"])
def test_methods_of_whole_risks_refuse_batch_normalisation_before_their_options(method, tmp_path):
    """They would ask for a step size first, in vain."""
    with pytest.raises(InputError, match="computes gradients of whole risks; use a network"):
        mpifed.run(
            "digits-fedem",
            output=tmp_path / "run",
            clients=3,
            algorithm=method,
            model={"name": "network_modules:cnn", "norm": True},
        )
    assert not (tmp_path / "run").exists()
