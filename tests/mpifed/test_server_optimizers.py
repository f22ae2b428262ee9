"""Server optimizers: recursions in numpy (Reddi et al. 2021), and the methods that they serve."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from convex import Run
from personal_runs import LOCAL, gradient, mean, ran, regression

from mpifed.errors import InputError
from mpifed.testing import run_rounds

RATE, TAU, B1, B2 = 0.3, 0.05, 0.9, 0.8


def sgd(delta, kept):
    return RATE * delta, kept


def momentum(delta, kept):
    m = B1 * kept.get("m", 0) + delta
    return RATE * m, {"m": m}


def nesterov(delta, kept):
    m = B1 * kept.get("m", 0) + delta
    return RATE * (delta + B1 * m), {"m": m}


def adaptive(second):
    def step(delta, kept):
        m = B1 * kept.get("m", 0) + (1 - B1) * delta
        v = second(kept.get("v", TAU**2), delta**2)
        return RATE * m / (np.sqrt(v) + TAU), {"m": m, "v": v}

    return step


PROGRAMS = {
    "sgd": ({"name": "sgd", "lr": RATE}, sgd),
    "momentum": ({"name": "momentum", "lr": RATE, "beta": B1}, momentum),
    "nesterov": ({"name": "nesterov", "lr": RATE, "beta": B1}, nesterov),
    "adagrad": (
        {"name": "adagrad", "lr": RATE, "beta1": B1, "tau": TAU},
        adaptive(lambda v, d: v + d),
    ),
    "yogi": (
        {"name": "yogi", "lr": RATE, "beta1": B1, "beta2": B2, "tau": TAU},
        adaptive(lambda v, d: v - (1 - B2) * d * np.sign(v - d)),
    ),
    "adam": (
        {"name": "adam", "lr": RATE, "beta1": B1, "beta2": B2, "tau": TAU},
        adaptive(lambda v, d: B2 * v + (1 - B2) * d),
    ),
}


def served(kind, data, optimizer, **options):
    """A method with a server that has an optimizer."""
    return Run(kind, data, local=LOCAL, keys={"server_optimizer": optimizer}, **options)


@pytest.mark.parametrize("name", PROGRAMS)
def test_rounds_are_those_of_a_program_in_numpy(name):
    optimizer, program = PROGRAMS[name]
    data, samples = regression()
    run = served("fedavg", data, optimizer)
    x, kept = run.x.copy(), {}
    for _ in range(4):
        here = run.participants
        if len(here):
            delta = mean({i: -LOCAL["lr"] * gradient(samples[i], x) for i in here}, here, True)
            step, kept = program(delta, kept)
            x = x + step
        assert run.go().x == pytest.approx(x, rel=1e-12)


def test_fedadam_is_fedavg_with_adam_bit_for_bit():
    data, _ = regression()
    options = {"beta1": B1, "beta2": B2, "tau": TAU, "bias_correction": True}
    one = Run("fedadam", data, local=LOCAL, server_lr=RATE, **options).go(4)
    other = served("fedavg", data, {"name": "adam", "lr": RATE, **options}).go(4)
    assert one.x.tobytes() == other.x.tobytes()
    assert torch.equal(one.state.moments.second.flatten(), other.memory.moments.second)


def test_other_methods_take_the_same_steps():
    data, _ = regression()
    optimizer = PROGRAMS["yogi"][0]
    plain = served("fedavg", data, optimizer).go(4).x
    assert served("fedprox", data, optimizer, mu=0.0).go(4).x == pytest.approx(plain, rel=1e-13)
    alone = served("fedem", data, optimizer, n_components=1).go(4).state.components
    assert alone[0].numpy() == pytest.approx(plain, rel=1e-13)


def test_the_rate_of_the_server_is_scaffolds_own():
    data, _ = regression()
    own = Run("scaffold", data, local=LOCAL, server_lr=0.5).go(4)
    assert served("scaffold", data, {"name": "sgd", "lr": 0.5}).go(4).x.tobytes() == own.x.tobytes()


@pytest.mark.parametrize("algorithm", ["fedavg", "fedper", "fedrod_hyper"])
def test_running_statistics_are_averaged(algorithm):
    """With a mean over clients alone, the first round of any optimizer leaves the same ones."""
    model = {"model": "network_modules:normalised_mlp"}
    found = []
    for optimizer in ("sgd", {"name": "adam", "lr": 0.5}):
        run = ran(algorithm, rounds=1, server_optimizer=optimizer, **model)
        shared = run.state.body if algorithm == "fedper" else run.state.model
        kept = run.algorithm.shared_buffers
        assert kept.stop - kept.start == run.model.n_buffers > 0
        found.append((shared[..., kept], shared[..., : kept.start]))
    torch.testing.assert_close(found[0][0], found[1][0])
    assert not torch.allclose(found[0][1], found[1][1])


def test_fedbn_shares_no_statistics():
    run = ran("fedbn", model="network_modules:normalised_mlp", server_optimizer="adam")
    kept = run.algorithm.shared_buffers
    assert kept.start == kept.stop


def test_the_mean_as_it_is_is_no_optimizer():
    plain = ran("fedavg", participation=0.5)
    for optimizer in ("sgd", {"name": "sgd", "lr": 1.0}):
        run = ran("fedavg", participation=0.5, server_optimizer=optimizer)
        assert run.digest == plain.digest and run.configuration == plain.configuration


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"exchange": "gossip"}, "exchange.*'gossip'.*server_optimizer.*server"),
        *(
            ({"method": name}, f"algorithm.*'{name}'.*server_optimizer.*fedavg")
            for name in ("ifca", "local")
        ),
        ({"method": "fedadam"}, "server_optimizer.*algorithm.*'fedadam'"),
        ({"method": {"name": "fedem", "restarts": 2}}, "server_optimizer.*restarts.* 2"),
    ],
)
@pytest.mark.parametrize("optimizer", ["momentum", {"name": "sgd", "lr": 0.5}])
def test_what_does_not_go_with_one_is_refused(more, word, optimizer):
    with pytest.raises(InputError, match=word):
        run_rounds(**{"method": "fedavg", "server_optimizer": optimizer, "rounds": 0, **more})
