"""What FedMM's methods refuse, in one sentence that names the field and what is allowed."""

from __future__ import annotations

import pytest

from mpifed.components.registry import Section
from mpifed.config.configuration import apply_overrides, parse_overrides, read_experiment, resolve
from mpifed.errors import InputError

DICTIONARY, MAP, ADAM = "fedmm-heterogeneous", "transport-fedmm-ot", "transport-fedadam"


@pytest.mark.parametrize(
    ("experiment", "words", "message"),
    [
        (DICTIONARY, ["compression={name: top_k, k: 3}"], "'top_k', which is biased, but fedmm"),
        (DICTIONARY, ["exchange=gossip"], "control_variate_rate is above 0.*allowed with gossip"),
        (
            DICTIONARY,
            ["exchange=gossip"],
            "allowed with gossip: 0; besides, compression.name is 'quantise' under gossip: .*1.0",
        ),
        (
            DICTIONARY,
            ["algorithm=sa_ssmm"],
            "^clients is 20, participation is not 1.0 and compression is 'quantise', but sa_ssmm .*"
            "; allowed: clients=1 participation=1.0 compression=none$",
        ),
        (
            DICTIONARY,
            ["algorithm=sa_ssmm", "clients=1", "compression=none"],
            "^participation is not 1.0, but sa_ssmm .*; allowed: participation=1.0$",
        ),
        (
            DICTIONARY,
            ["compression={name: bernoulli, inner: top_k}"],
            "compression.inner is 'top_k', which is biased",
        ),
        (
            DICTIONARY,
            ["algorithm=fedmgs"],
            "^compression is 'quantise', but fedmgs sends .*; allowed: compression=none; besides, "
            "participation is not 1.0, but fedmgs .*; allowed: participation=1.0$",
        ),
        (
            DICTIONARY,
            ["algorithm=fedmgs", "compression=none", "exchange=gossip"],
            "^exchange is 'gossip', which fedmgs does not support; allowed: server$",
        ),
        (DICTIONARY, ["algorithm.surrogate=dictionaries"], "did you mean 'dictionary'"),
        (DICTIONARY, ["algorithm.surrogate.n_atoms=0"], "surrogate.n_atoms is 0"),
        (DICTIONARY, ["algorithm.step=1.5"], "algorithm.step is 1.5"),
        (
            MAP,
            ["exchange=gossip"],
            "exchange is 'gossip', which fedmm_ot does not .*allowed: server",
        ),
        (MAP, ["compression={name: top_k, k: 3}"], "'top_k', which is biased, but fedmm_ot"),
        (MAP, ["model=linear"], "needs data.name transport and model.name icnn"),
        (MAP, ["local.momentum=0.9"], "local.momentum is 0.9, but fedmm_ot.*lr, batch_size, steps"),
        (MAP, ["local.lr_schedule=sqrt"], "local.lr_schedule is sqrt"),
        (ADAM, ["local.lr=0.5"], "local.lr is 0.5, but fedadam has no use for it"),
        (ADAM, ["data=digits"], "needs data.name transport and model.name icnn"),
        (ADAM, ["exchange=gossip"], "exchange is 'gossip', which fedadam does not"),
    ],
)
def test_what_does_not_go_together_is_refused(experiment, words, message):
    mapping = apply_overrides(read_experiment(experiment), parse_overrides(words))
    with pytest.raises(InputError, match=message):
        resolve(mapping)


@pytest.mark.parametrize(
    "words",
    [
        ["algorithm=fedmm_theta"],
        ["algorithm=sa_ssmm", "clients=1", "compression=none", "participation=1.0"],
        ["algorithm=fedmgs", "compression=none", "participation=1.0"],
        ["algorithm.control_variate_rate=0", "exchange=gossip", "compression=none"],
        ["compression={name: bernoulli, p: 0.5, inner: quantise}", "participation=1.0"],
    ],
)
def test_what_goes_together_is_not(words):
    mapping = apply_overrides(read_experiment(DICTIONARY), parse_overrides(words))
    assert resolve(mapping).model == Section("none")
