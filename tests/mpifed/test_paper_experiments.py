"""The experiments of Marfoq et al. 2021, as files and as rows of the tables that reproduce them."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import yaml
from commands import call

EXPERIMENTS = Path(__file__).parents[2] / "mpifed" / "experiments"


def resolved(words, capfd) -> dict:
    """The complete configuration that the words of a run mean."""
    outcome = call([*words, "--dry-run", "--json"], capfd)
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)["configuration"]


@pytest.mark.parametrize(
    ("experiment", "option", "row"),
    [
        ("synthetic-released", ["--table", "2"], "fedem"),
        ("synthetic-unseen", ["--study", "figure-2"], "fedem"),
        ("synthetic-time", ["--table", "7"], "fedem-a-third-of-the-rounds"),
        ("synthetic-sampling", ["--table", "8"], "fedem"),
    ],
)
def test_a_synthetic_experiment_is_fedems_row_of_its_table(
    experiment, option, row, tmp_path, capfd
):
    words = ["fedem", *option, "--data", "published-tuned", "--dry-run", "--output", tmp_path]
    planned = call(words, capfd, "reproduce")
    assert planned.code == 0, planned.err
    (line,) = [line for line in planned.out.splitlines() if line.endswith(f"/{row}/seed=0")]
    words = shlex.split(line.partition(" mpifed.run ")[2])
    # The table's learning rate is that of its tuning.
    words = [each for each in words if not each.startswith("local.lr=")]
    of_table = resolved(words[: words.index("--output")], capfd)
    of_file = resolved([experiment], capfd)
    for part in ("clients", "rounds", "data", "model", "algorithm", "local", "exchange"):
        assert of_file[part] == of_table[part], part
    assert of_file["participation"] == of_table["participation"]
    for part in ("unseen_fraction", "unseen_shares"):
        assert of_file["evaluation"][part] == of_table["evaluation"][part]


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
    file = yaml.safe_load((EXPERIMENTS / f"{name}-fedem.yaml").read_text())
    assert (file["data"]["name"], file["model"]["name"]) == (name, model)
    assert (file["clients"], file["rounds"]) == (clients, rounds)
    assert (file["algorithm"]["name"], file["algorithm"]["n_components"]) == ("fedem", 3)
