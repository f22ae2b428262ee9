"""Where FedAvg and its relatives end on two quadratics, in closed form."""

from __future__ import annotations

import pytest
from convex import Run, two_quadratics

from mpifed.algorithms.global_model.fedavg import FedAvg


@pytest.mark.parametrize(("epochs", "limit"), [(1, 3.0), (5, 2.680532285)])
def test_fedavg_ends_at_the_weighted_mean_of_its_clients_contractions(epochs, limit):
    """sum_i g_i c_i / sum_i g_i with g_i = 1 - (1 - eta a_i)^E; 3 is the minimiser of the mean."""
    run = Run(FedAvg, two_quadratics(), local={"lr": 0.1, "epochs": epochs}).go(200)
    assert run.deployed() == pytest.approx(limit, rel=1e-9)
