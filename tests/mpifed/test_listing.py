from __future__ import annotations

import pytest

from mpifed.components.registry import ALGORITHMS, find_algorithm
from mpifed.config.catalogue import listing
from mpifed.config.configuration import resolve
from mpifed.errors import InputError

PROBLEMS = {
    "sa_ssmm": {"clients": 1},
    "fedmm_ot": {"data": "transport", "model": "icnn"},
}


def allowed(name, **sections):
    try:
        resolve({**PROBLEMS.get(name, {}), "algorithm": name, **sections})
    except InputError:
        return False
    return True


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_the_table_of_algorithms_says_is_what_is_refused(name):
    algorithm = find_algorithm(name)
    assert allowed(name)
    assert allowed(name, exchange="gossip") == (algorithm.exchanges != ("server",))
    if not algorithm.communicates:
        return
    assert allowed(name, compression="rand_k") == (algorithm.compressors != "none")
    assert allowed(name, compression="top_k") == (algorithm.compressors == "any")


def test_the_table_shows_it():
    lines = {line.split()[0]: line.split() for line in listing("algorithms").splitlines()}
    assert lines["flix"][1:4] == ["yes", "yes", "any"]
    assert lines["diana"][1:4] == ["yes", "no", "unbiased"]
    assert lines["local"][1:5] == ["nothing", "sent", "nothing", "sent"]
