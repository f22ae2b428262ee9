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
        (DICTIONARY, ["compression={name: top_k, k: 3}"], "compression is 'top_k'"),
        (DICTIONARY, ["exchange=gossip"], r"participation is 0\.5"),
        (
            DICTIONARY,
            ["algorithm=sa_ssmm"],
            "clients is 20",
        ),
        (
            DICTIONARY,
            ["algorithm=fedmgs"],
            "compression is 'quantise'",
        ),
        (DICTIONARY, ["algorithm.surrogate.n_atoms=0"], "surrogate.n_atoms is 0"),
        (MAP, ["compression={name: top_k, k: 3}"], "compression is 'top_k'"),
        (MAP, ["local.momentum=0.9"], r"local\.momentum is 0\.9"),
        (ADAM, ["data=digits"], "data is 'digits'"),
    ],
)
def test_what_does_not_go_together_is_refused(experiment, words, message):
    mapping = apply_overrides(read_experiment(experiment), parse_overrides(words))
    with pytest.raises(InputError, match=message):
        resolve(mapping)


@pytest.mark.parametrize(
    "words",
    [
        ["algorithm=sa_ssmm", "clients=1", "compression=none", "participation=1.0"],
        ["compression={name: bernoulli, p: 0.5, inner: quantise}", "participation=1.0"],
    ],
)
def test_what_goes_together_is_not(words):
    mapping = apply_overrides(read_experiment(DICTIONARY), parse_overrides(words))
    assert resolve(mapping).model == Section("none")
