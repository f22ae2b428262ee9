"""The experiments of Marfoq et al. 2021, as files and as rows of the tables that reproduce them."""

import pytest

from mpifed.config.configuration import apply_overrides, resolve
from mpifed.config.experiments import read_experiment
from mpifed.reproduce.experiments.studies import studies


@pytest.mark.parametrize(
    ("experiment", "study", "row"),
    [
        ("synthetic-released", "table-2", "FedEM"),
        ("synthetic-unseen", "figure-2", "FedEM"),
        ("synthetic-time", "table-7", "FedEM, a third of the rounds"),
        ("synthetic-sampling", "table-8", "FedEM"),
    ],
)
def test_a_synthetic_experiment_is_fedems_row_of_its_table(experiment, study, row):
    table = studies("fedem")[study]
    (entry,) = (each for each in table.entries if each.label == row)
    of_data = dict(table.data["released"])
    base = of_data.pop("experiment")
    settings = {**of_data, **table.common, **entry.overrides}
    of_table = resolve(apply_overrides(read_experiment(base), settings))
    of_file = resolve(read_experiment(experiment))
    for part in ("clients", "rounds", "data", "model", "algorithm", "local", "exchange"):
        assert getattr(of_file, part) == getattr(of_table, part), part
    assert of_file.participation == of_table.participation
    for part in ("unseen_fraction", "unseen_shares"):
        assert getattr(of_file.evaluation, part) == getattr(of_table.evaluation, part)


@pytest.mark.parametrize(
    ("name", "clients", "rounds", "model"),
    [
        ("cifar10", 80, 200, "mobilenet_v2"),
        ("cifar100", 100, 200, "mobilenet_v2"),
        ("emnist", 100, 200, "cnn"),
        ("femnist", 539, 200, "cnn"),
        ("shakespeare", 778, 80, "lstm"),
    ],
)
def test_experiments_on_real_data_are_those_of_table_1(name, clients, rounds, model):
    found = resolve(read_experiment(f"{name}-fedem"))
    assert (found.data.name, found.model.name) == (name, model)
    assert (found.clients, found.rounds) == (clients, rounds)
    assert found.algorithm.options["n_components"] == 3
