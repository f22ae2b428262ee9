"""Recovery of clusters: the comparison, the data, and a run that recovers them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpifed
from mpifed.data.sources.synthetic import Synthetic
from mpifed.errors import InputError
from mpifed.mpi.communicator import Alone
from mpifed.theory.recovery import recovery


@given(st.integers(0, 10_000), st.permutations(range(4)))
def test_the_names_of_components_do_not_matter(seed, order):
    draw = np.random.default_rng(seed)
    theta, pi = draw.normal(size=(4, 6)), draw.dirichlet(np.ones(4), 9)
    noisy = theta + 0.01 * draw.normal(size=theta.shape)
    found = recovery(noisy[order], pi[:, order], theta, pi)
    same = recovery(noisy, pi, theta, pi)
    assert found.component_distance == pytest.approx(same.component_distance)
    assert found.assigned == 1 and abs(found.mixture_distance) < 1e-12
    assert [list(order).index(m) for m in range(4)] == found.order.tolist()


def test_one_hot_mixtures_give_every_client_one_component():
    made = Synthetic(40, 3, Alone(), n_components=3, mixtures="one_hot", n_test=5, dimension=4)
    pi = made.truth.mixture
    assert pi.shape == (40, 3) and set(np.unique(pi)) == {0.0, 1.0} and (pi.sum(1) == 1).all()
    assert (pi.sum(0) > 0).all()
    for client in (0, 7):
        assert set(made.latent(client, "train")) == {int(pi[client].argmax())}
    fewer = Synthetic(9, 3, Alone(), n_components=3, mixtures="one_hot", n_test=5, dimension=4)
    assert (fewer.truth.mixture == pi[:9]).all()
    with pytest.raises(InputError, match="published generator"):
        Synthetic(4, 3, Alone(), variant="released", mixtures="one_hot")


def test_fedem_recovers_the_clusters_of_separable_clients(tmp_path):
    """App. J.4 on a small scale: every client is assigned to its own cluster."""
    data = {"name": "synthetic", "variant": "corrected", "mixtures": "one_hot", "n_components": 2}
    data |= {"dimension": 10, "n_test": 20}
    result = mpifed.run(
        "synthetic-fedem",
        output=tmp_path / "run",
        quiet=True,
        clients=30,
        rounds=40,
        data=data,
        algorithm={"name": "fedem", "n_components": 2},
        local={"lr": 1.0, "batch_size": 32},
        evaluation={"every": 40},
    )
    truth = Synthetic(30, 0, Alone(), **{k: v for k, v in data.items() if k != "name"}).truth
    learnt = mpifed.load(tmp_path / "run").components
    theta = np.stack([next(each.parameters()).detach().numpy().ravel() for each in learnt])
    found = recovery(theta, result.clients["mixture"], truth.components, truth.mixture)
    assert found.assigned == 1.0
    assert found.component_distance < 0.05 and found.mixture_distance < 0.02
