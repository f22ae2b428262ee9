"""What a run says of kernels that depend on which clients share a rank: nothing, or what to do."""

from __future__ import annotations

import pytest
from commands import TINY, call

from mpifed.models.linear import Linear
from mpifed.surrogates.dictionary import Dictionary
from mpifed.training.verification import CBWR, advice

DICTIONARY = ("fedmm-homogeneous", "clients=3", "rounds=1", "data.samples=90")
WHOLE = (*DICTIONARY, "compression=none", "participation=1")
TRANSPORT = ("transport-fedmm-ot", "data.dimension=2", "data.samples=60", "data.benchmark=gaussian")
TRANSPORT += ("model.hidden=[8, 8]", "local.batch_size=8", "algorithm.pretraining=5", "clients=3")
MADE = {
    "linear": TINY,
    "float64": (*TINY, "dtype=float64", "algorithm=fedavg"),
    "mlp": (*TINY, "model={name: mlp, hidden: [17, 9]}"),
    "gossip": (*TINY, "exchange=gossip"),
    "flix": (*TINY, "algorithm=flix"),
    "maml": (*TINY, "algorithm=maml"),
    "fedmm": DICTIONARY,
    "fedmm_by_gossip": (*WHOLE, "exchange=gossip", "algorithm.control_variate_rate=0"),
    "fedmgs": (*WHOLE, "algorithm=fedmgs"),
    "fedmm_ot": TRANSPORT,
}


def warnings_of(words, tmp_path, capfd) -> list[str]:
    outcome = call([*words, "rounds=1", "--output", tmp_path / "run"], capfd)
    assert outcome.code == 0, outcome.err
    lines = (tmp_path / "run" / "log.txt").read_text().splitlines()
    return [line for line in lines if "warning on rank" in line]


@pytest.mark.parametrize("kind", MADE)
def test_a_plain_run_ends_without_a_warning(kind, tmp_path, capfd):
    assert warnings_of(MADE[kind], tmp_path, capfd) == []


def test_gradients_that_depend_on_the_block_are_warned_of(tmp_path, capfd, monkeypatch):
    exact = Linear.gradient

    def gradient(self, parameters, *batch):
        return exact(self, parameters, *batch) * (1 + 1e-6 * len(parameters))

    monkeypatch.setattr(Linear, "gradient", gradient)
    (line,) = warnings_of(TINY, tmp_path, capfd)
    assert "the model's gradients depend on which clients share a rank" in line
    assert "same number of ranks" in line


def test_outputs_that_depend_on_addresses_are_warned_of(tmp_path, capfd, monkeypatch):
    exact = Linear.shared_logits

    def shared_logits(self, parameters, x):
        return exact(self, parameters, x) + 1e-6 * (x.data_ptr() % 64)

    monkeypatch.setattr(Linear, "shared_logits", shared_logits)
    (line,) = warnings_of(TINY, tmp_path, capfd)
    assert "the model's outputs depend" in line


def test_statistics_that_depend_on_other_clients_are_warned_of(tmp_path, capfd, monkeypatch):
    exact = Dictionary.statistics

    def statistics(self, z, theta, offsets):
        return exact(self, z, theta, offsets) * (1 + 1e-6 * len(z))

    monkeypatch.setattr(Dictionary, "statistics", statistics)
    (line,) = warnings_of(DICTIONARY, tmp_path, capfd)
    assert "the surrogate's statistics depend" in line


def test_advice_says_what_to_do():
    assert "same number of ranks" in advice(True)
    assert "built without MKL" in advice(False, False, {"MKL_CBWR": CBWR})
    assert advice(False, True, {"MKL_CBWR": "AVX"}) == (
        "MKL_CBWR is 'AVX': unset it, or set it to AUTO,STRICT"
    )
    assert "import mpifed before torch" in advice(False, True, {"MKL_CBWR": CBWR})
