"""What a round of FedMM's methods takes and gives: starts, samples, projections, gossip, FedMGS."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from commands import call
from fedmm_runs import Problem, Run, Unequal, data_of

import mpifed
from mpifed.config.configuration import resolve
from mpifed.config.experiments import read_experiment
from mpifed.method import Draws
from mpifed.testing import find_item

RHO, GAMMA = 0.1, 0.3
MIXTURE = {"name": "gaussian_mixture", "components": 2}
RIDGE = {"name": "quadratic", "rho": RHO, "regularisation": "ridge", "strength": 0.5}


def shards(n=3, size=6, q=4, seed=0):
    draw = np.random.default_rng(seed)
    return [draw.normal(size=(size, q + 1)) for _ in range(n)]


@pytest.mark.parametrize(("start", "unit"), [("normal", False), ("unit", True)])
def test_a_dictionary_begins_with_atoms_of_its_start(start, unit):
    surrogate = {"name": "dictionary", "n_atoms": 3, "start": start}
    run = Run("fedmm", data_of(shards(q=4)), surrogate)
    atoms = run.theta.view(-1, 3)
    normal = Draws(0, 0).stream("surrogate").standard_normal(atoms.shape)
    expected = normal / np.linalg.norm(normal, axis=0) if unit else normal
    assert atoms.numpy() == pytest.approx(expected, abs=1e-12)
    # S_0 = (I, (1 + 2 eta) theta_0) with eta = 0.2.
    assert run.s[:9].view(3, 3).numpy() == pytest.approx(np.eye(3), abs=1e-15)
    assert run.s[9:].view(-1, 3).numpy() == pytest.approx(1.4 * expected, abs=1e-12)


@pytest.mark.parametrize("kind", ["fedmm", "fedmm_theta"])
def test_a_dictionary_begins_with_the_statistics_of_all_samples(kind):
    parts, penalty = shards(q=4), 0.1
    surrogate = {"name": "dictionary", "n_atoms": 3, "codes": "ridge", "start": "statistics"}
    run = Run(kind, data_of(parts), surrogate)
    atoms = Draws(0, 0).stream("surrogate").standard_normal((5, 3))
    atoms /= np.linalg.norm(atoms, axis=0)
    first, second = np.zeros((3, 3)), np.zeros((5, 3))
    for z in parts:
        h = z @ atoms @ np.linalg.inv(atoms.T @ atoms + penalty * np.eye(3))
        first += h.T @ h / len(z) / 3
        second += z.T @ h / len(z) / 3
    learnt = second @ np.linalg.inv(first + 0.4 * np.eye(3))
    assert run.theta.view(5, 3).numpy() == pytest.approx(learnt, abs=1e-12)
    if kind == "fedmm":
        assert run.s[:9].view(3, 3).numpy() == pytest.approx(first, abs=1e-12)
        assert run.s[9:].view(5, 3).numpy() == pytest.approx(second, abs=1e-12)


@pytest.mark.parametrize("name", ["heterogeneous", "homogeneous", "ratings"])
def test_shipped_experiments_begin_with_atoms_of_norm_1(name):
    configuration = resolve(read_experiment(f"fedmm-{name}"))
    assert configuration.algorithm.options["surrogate"].options["start"] == "unit"


@pytest.mark.parametrize("kind", ["fedmm", "fedmm_theta"])
@pytest.mark.parametrize("surrogate", [{"name": "dictionary", "n_atoms": 3}, "gaussian_mixture"])
def test_both_begin_from_the_same_theta(kind, surrogate):
    run = Run(kind, data_of(shards(q=2)), surrogate, seed=5)
    first = run.surrogate.init(Draws(5, 0).stream("surrogate"))
    assert run.theta.numpy() == pytest.approx(first, abs=1e-12)


@pytest.mark.parametrize("batch", [1, 4])
def test_a_batch_has_as_many_samples_of_each_client_as_are_asked_for(batch):
    run = Run("fedmm", data_of(shards()), "gaussian_mixture", batch=batch)
    split = run.algorithm.samples(run.clients, Draws(0, 1))
    assert split.counts.tolist() == [batch] * 3
    shard = run.clients.shards.train.x[6:12]
    for row in split.x[batch : 2 * batch]:
        assert (row == shard).all(1).any()


def test_online_every_round_draws_samples_of_its_own():
    data = {"name": "gaussian_mixture", "n_test": 4}
    run = Run("fedmm", Problem(data), MIXTURE, keys={"clients": 3}, batch=2, online=True)
    first, second = (run.algorithm.samples(run.clients, Draws(0, round)) for round in (1, 2))
    assert first.counts.tolist() == second.counts.tolist() == [2, 2, 2]
    rows = torch.cat([run.clients.shards.train.x, first.x, second.x]).flatten(1)
    assert len(rows.unique(dim=0)) == len(rows)
    s = run.s.clone()
    assert not run.go().s.equal(s)


def test_what_leaves_s_is_projected():
    run = Run("fedmm", data_of([np.ones((2, 1))]), "remark_one", step_rule="constant", step=1.0)
    run.start_from(variate=[-50.0])
    assert float(run.go().s) == pytest.approx(1e-12)


@pytest.mark.parametrize("kind", ["fedmm", "fedmm_theta"])
def test_by_gossip_clients_move_by_gamma_and_then_mix(kind):
    parts = shards()
    exchange = {"name": "gossip", "topology": "path", "weights": "metropolis_hastings"}
    data, keys = data_of(parts, targets=1), {"exchange": exchange}
    run = Run(kind, data, RIDGE, keys=keys, step_rule="constant", step=GAMMA)
    s = np.random.default_rng(1).normal(size=(3, 4))
    run.start_from(surrogate=s, previous=s)
    shrunk = 1 / (1 + 0.5 * RHO)
    moved = []
    for z, row in zip(parts, s, strict=True):
        theta = row if kind == "fedmm_theta" else shrunk * row
        x, y = z[:, :-1], z[:, -1]
        statistic = theta - RHO * x.T @ (x @ theta - y) / len(z)
        target = shrunk * statistic if kind == "fedmm_theta" else statistic
        moved.append(row + GAMMA * (target - row))
    w = run.mixing_matrix()
    after = run.go().state
    assert after.surrogate.numpy() == pytest.approx(w @ np.array(moved), abs=1e-13)
    assert np.array_equal(after.previous.numpy(), s)


def factorised(parts, **options):
    run = Run("fedmgs", data_of(parts), n_atoms=2, **options)
    return run.state, run.go().state, run.objective()


@pytest.mark.parametrize("codes", ["ridge", "nonnegative", "one_hot"])
def test_a_factorisation_takes_gradient_steps_of_one_over_l(codes):
    parts = shards(q=3)
    options = {"code_penalty": 0.3, "atom_penalty": 0.2, "one_hot_penalty": 0.7}
    state, after, _ = factorised(parts, codes=codes, code_steps=1, atom_steps=1, **options)
    atoms, crossing = state.atoms.numpy(), 0.7 * (codes == "one_hot")
    gram = atoms.T @ atoms + 0.3 * np.eye(2) + crossing * (np.ones((2, 2)) - np.eye(2))
    a, b = np.zeros((2, 2)), np.zeros((4, 2))
    for i, x in enumerate(parts):
        h = state.codes[i].numpy()
        h = h - (gram @ h - atoms.T @ x.T) / np.linalg.norm(gram, 2)
        h = h if codes == "ridge" else np.maximum(h, 0)
        assert after.codes[i].numpy() == pytest.approx(h, abs=1e-12)
        a, b = a + h @ h.T / len(x) / 3, b + x.T @ h.T / len(x) / 3
    a = a + 2 * 0.2 * np.eye(2)
    expected = atoms - (atoms @ a - b) / np.linalg.norm(a, 2)
    assert after.atoms.numpy() == pytest.approx(expected, abs=1e-12)


def test_weighted_by_samples_a_factorisation_is_that_of_the_pooled_data():
    parts = [part[:m] for part, m in zip(shards(q=3, size=9), (2, 9, 5), strict=True)]
    options = {"code_penalty": 0.3, "atom_penalty": 0.2, "atom_steps": 1}
    state, after, objective = factorised(parts, client_weights="samples", **options)
    x = np.concatenate(parts).T
    h = np.hstack([codes[:, : len(z)] for codes, z in zip(after.codes.numpy(), parts, strict=True)])
    atoms, found = state.atoms.numpy(), after.atoms.numpy()
    a, b = h @ h.T / 16 + 0.4 * np.eye(2), x @ h.T / 16
    step = (atoms @ a - b) / np.linalg.norm(a, 2)
    assert found == pytest.approx(atoms - step, abs=1e-12)
    risk = (np.square(x - found @ h).sum() + 0.3 * np.square(h).sum()) / 32
    assert objective == pytest.approx(risk + 0.2 * np.square(found).sum(), rel=1e-12)


# Step sizes, measures and the direction of FedMM and its twin, against closed forms and numpy.


BETA = 0.4
RULES = {
    "constant": [0.4] * 5,
    "sqrt": [0.4 / 1.4**0.5, 0.4 / 2.4**0.5, 0.4 / 3.4**0.5, 0.4 / 4.4**0.5, 0.4 / 5.4**0.5],
    "inverse": [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5],
    "inverse_kept": [1 / 2, 1 / 3, 1 / 4, 1 / 5, 1 / 6],
}
RHO_OF_MEASURES, STRENGTH = 0.1, 0.3
L1 = {
    "name": "quadratic",
    "loss": "least_squares",
    "rho": RHO_OF_MEASURES,
    "regularisation": "l1",
    "strength": STRENGTH,
}


@pytest.mark.parametrize("rule", RULES)
def test_steps_are_those_of_their_rule_from_round_one(rule):
    """Where statistics do not depend on theta, S_t - s* is prod (1 - gamma_t) of S_0 - s*."""
    run = Run("fedmm", data_of([np.full((2, 1), 2.5)]), "remark_one", step_rule=rule, step=BETA)
    run.begin(torch.tensor([7.0], dtype=torch.float64))
    away = 4.5
    for gamma in RULES[rule]:
        away *= 1 - gamma
        assert float(run.go().s) - 2.5 == pytest.approx(away, rel=1e-13, abs=1e-15)


def shards_of_measures(seed=0, sizes=(5, 9, 14), q=4):
    """Samples (x, target) of clients that differ, of unequal numbers."""
    draw = np.random.default_rng(seed)
    parts = []
    for size in sizes:
        x = draw.normal(size=(size, q))
        parts.append(np.hstack([x, x @ draw.normal(size=(q, 1)) + draw.normal(size=(size, 1))]))
    return parts


def prox(s):
    return np.sign(s) * np.maximum(np.abs(s) - RHO_OF_MEASURES * STRENGTH, 0)


def statistic(z, theta):
    return theta - RHO_OF_MEASURES * z[:, :-1].T @ (z[:, :-1] @ theta - z[:, -1]) / len(z)


def mean_statistic(parts, theta, mu):
    return sum(m * statistic(z, theta) for m, z in zip(mu, parts, strict=True))


def objective(parts, theta, mu):
    risks = [0.5 * np.mean((z[:, :-1] @ theta - z[:, -1]) ** 2) for z in parts]
    return np.dot(mu, risks) + STRENGTH * np.abs(theta).sum()


MU = {"uniform": [1 / 3] * 3, "samples": [5 / 28, 9 / 28, 14 / 28]}


@pytest.mark.parametrize("weights", MU)
def test_measures_of_fedmm_are_moves_over_the_squared_step(weights):
    parts, mu = shards_of_measures(), MU[weights]
    options = {"step_rule": "sqrt", "step": BETA, "client_weights": weights}
    run = Run("fedmm", data_of(parts, targets=1), L1, **options)
    s = run.s.numpy().copy()
    first = run.measured()
    assert first == {"objective": pytest.approx(objective(parts, prox(s), mu), rel=1e-12)}
    for gamma in RULES["sqrt"]:
        before, s = s, s + gamma * (mean_statistic(parts, prox(s), mu) - s)
        found = run.go().measured()
        assert found == {
            "objective": pytest.approx(objective(parts, prox(s), mu), rel=1e-12),
            "surrogate_update": pytest.approx(np.sum((s - before) ** 2) / gamma**2, rel=1e-9),
            "parameter_update": pytest.approx(
                np.sum((prox(s) - prox(before)) ** 2) / gamma**2, rel=1e-9
            ),
        }


@pytest.mark.parametrize("weights", MU)
def test_measures_of_the_twin_are_in_its_own_space_and_by_all_data_in_the_other(weights):
    parts, mu = shards_of_measures(), MU[weights]
    options = {"step_rule": "sqrt", "step": BETA, "client_weights": weights}
    run = Run("fedmm_theta", data_of(parts, targets=1), L1, **options)
    theta = run.s.numpy().copy()
    for gamma in RULES["sqrt"]:
        before = theta
        mapped = [m * prox(statistic(z, theta)) for m, z in zip(mu, parts, strict=True)]
        theta = theta + gamma * (sum(mapped) - theta)
        moved = mean_statistic(parts, theta, mu) - mean_statistic(parts, before, mu)
        found = run.go().measured()
        assert found.pop("surrogate_update_estimate") == found["surrogate_update"]
        assert found == {
            "objective": pytest.approx(objective(parts, theta, mu), rel=1e-12),
            "surrogate_update": pytest.approx(np.sum(moved**2) / gamma**2, rel=1e-9),
            "parameter_update": pytest.approx(np.sum((theta - before) ** 2) / gamma**2, rel=1e-9),
        }


def test_measures_of_the_twin_take_whole_shards_where_rounds_take_batches():
    parts, mu = shards_of_measures(), MU["uniform"]
    options = {"step_rule": "constant", "step": BETA, "batch": 2}
    run = Run("fedmm_theta", data_of(parts, targets=1), L1, **options)
    for _ in range(3):
        before = run.s.numpy().copy()
        found = run.go().measured()
        after = run.s.numpy()
        moved = mean_statistic(parts, after, mu) - mean_statistic(parts, before, mu)
        expected = np.sum(moved**2) / BETA**2
        assert found["surrogate_update"] == pytest.approx(expected, rel=1e-9)
        # The estimate has the minibatches of this round and of the next one.
        means = []
        for at, round in ((after, run.round + 1), (before, run.round)):
            seen = run.algorithm.samples(run.clients, Draws(0, round))
            rows = np.hstack([seen.x.numpy(), seen.y.numpy()])
            drawn = np.split(rows, seen.offsets[1:-1])
            means.append(mean_statistic(drawn, at, mu))
        estimate = np.sum((means[0] - means[1]) ** 2) / BETA**2
        assert found["surrogate_update_estimate"] == pytest.approx(estimate, rel=1e-9)
        assert estimate != pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(
    ("weights", "mu"), [("uniform", [1 / 2, 1 / 2]), ("samples", [3 / 11, 8 / 11])]
)
def test_the_objective_on_test_samples_is_that_of_the_clients_that_have_any(weights, mu):
    parts, tests = shards_of_measures(), shards_of_measures(1, (3, 1, 8))
    tests[1] = tests[1][:0]
    data = data_of(parts, targets=1, tests=tests)
    run = Run("fedmm", data, L1, step_rule="constant", step=BETA, client_weights=weights).go(2)
    assert run.algorithm.columns[-1] == "test_objective"
    expected = objective([tests[0], tests[2]], run.theta.numpy(), mu)
    assert run.measured()["test_objective"] == pytest.approx(expected, rel=1e-12)
    trained = objective(parts, run.theta.numpy(), MU[weights])
    assert run.measured()["objective"] == pytest.approx(trained, rel=1e-12)


def test_without_test_samples_there_is_no_such_column():
    run = Run("fedmm", data_of(shards_of_measures(), targets=1), L1)
    columns = find_item("algorithm", "fedmm").columns
    assert run.algorithm.columns == columns and set(run.go().measured()) == set(columns)


DRAWS = 1_000


def variance_of(delta, compressor, k):
    """E (Q_j - Delta_j)^2 in closed form: 8-bit stochastic rounding, and k of the coordinates."""
    if compressor == "rand_k":
        return (delta.shape[1] / k - 1) * delta**2
    unit = np.abs(delta).max(1, keepdims=True) / 127
    part = np.abs(delta) / unit % 1
    return unit**2 * part * (1 - part)


@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize(("compressor", "options"), [("quantise", {}), ("rand_k", {"k": 2})])
def test_the_direction_is_unbiased(compressor, options, rate):
    """H is linear in the clients, so a round of each client 1000 times is the mean of as many."""
    parts, p = shards_of_measures(2, (6, 6, 6)), 0.5
    draw = np.random.default_rng(3)
    s, v = draw.normal(size=4), draw.normal(size=(3, 4))
    data = data_of(parts * DRAWS, {"name": "bernoulli", "p": p}, targets=1)
    run = Run(
        "fedmm",
        data,
        {"name": "quadratic", "rho": RHO_OF_MEASURES},
        (compressor, options),
        step_rule="constant",
        step=1.0,
        control_variate_rate=rate,
    )
    run.begin(torch.from_numpy(s), torch.from_numpy(np.tile(v, (DRAWS, 1)))).go()
    delta = np.array([statistic(z, s) for z in parts]) - s - v
    second = (variance_of(delta, compressor, 2) + delta**2) / p
    error = np.sqrt((second - delta**2).sum(0) / 9 / DRAWS)
    direction = run.s.numpy() - s
    assert (np.abs(direction - (delta + v).mean(0)) < 4 * error).all()
    # V moves by alpha times the same sum, and stays the mean of the V_i.
    sent = direction - v.mean(0)
    assert run.state.variate.numpy() == pytest.approx(v.mean(0) + rate * sent, abs=1e-12)
    assert run.state.variates.numpy().mean(0) == pytest.approx(run.state.variate.numpy(), abs=1e-12)


# FedMM by gossip on clients with unequal numbers of samples: whose problem it solves.


BASE = {
    "clients": 5,
    "data": "fedmm_runs:Unequal",
    "dtype": "float64",
    "participation": 1.0,
    "compression": "none",
    "evaluation.every": 400,
    "checkpoint.every": 400,
}
NUMBERS = np.arange(1, 6)
MU_OF_GOSSIP = {"uniform": np.full(5, 0.2), "samples": Unequal.SIZES / Unequal.SIZES.sum()}


def learnt(output, weights, method="fedmm", **more):
    algorithm = {
        "name": method,
        "surrogate": "remark_one",
        "step_rule": "constant",
        "step": 0.25,
        "client_weights": weights,
    }
    given = {**BASE, "algorithm": algorithm, "rounds": 200, **more}
    return mpifed.run("fedmm-homogeneous", output=output, quiet=True, **given)


@pytest.mark.parametrize("weights", MU_OF_GOSSIP)
@pytest.mark.parametrize("topology", ["ring", pytest.param("complete", marks=pytest.mark.slow)])
def test_gossip_finds_the_minimum_that_the_weights_ask_for(tmp_path, weights, topology):
    exchange = {"name": "gossip", "topology": topology, "weights": "metropolis_hastings"}
    found = learnt(tmp_path / "mixed", weights, exchange=exchange)
    mean = MU_OF_GOSSIP[weights] @ NUMBERS
    assert float(found.learnt["theta"]) == pytest.approx(mean**-0.5, rel=1e-12)
    assert found.metrics["objective"][-1] == pytest.approx(2 * mean**0.5, rel=1e-12)
    naive = learnt(tmp_path / "naive", weights, "fedmm_theta", exchange=exchange)
    assert float(naive.learnt["theta"]) == pytest.approx(
        MU_OF_GOSSIP[weights] @ NUMBERS**-0.5, rel=1e-12
    )


@pytest.mark.parametrize("method", ["fedmm", "fedmm_theta"])
def test_among_neighbours_of_all_each_round_is_the_servers(tmp_path, method):
    """With one step size for statistics of theta too: a mixture, whose S is not linear in theta."""
    complete = {"name": "gossip", "topology": "complete", "weights": "metropolis_hastings"}
    runs = [
        learnt(
            tmp_path / exchange["name"],
            "samples",
            method,
            exchange=exchange,
            rounds=6,
            **{"algorithm.surrogate": MIXTURE},
        )
        for exchange in ({"name": "server"}, complete)
    ]
    server, gossip = (run.learnt["means"] for run in runs)
    assert gossip == pytest.approx(server, rel=1e-12)
    assert runs[1].metrics["objective"][-1] == pytest.approx(runs[0].metrics["objective"][-1])


def test_a_step_beyond_a_clients_statistics_is_refused(tmp_path, capfd):
    """7 of 20 samples: n mu_i is 1.75."""
    words = [f"{key}={value}" for key, value in BASE.items()]
    words += ["fedmm-homogeneous", "exchange=gossip", "rounds=2", "--output", tmp_path / "run"]
    algorithm = "name: fedmm, surrogate: remark_one, client_weights: samples"
    refused = call([*words, f"algorithm={{{algorithm}, step_rule: inverse}}"], capfd)
    assert refused.code == 2 and not (tmp_path / "run").exists()
    assert "1.75" in refused.err and "algorithm.step" in refused.err
    allowed = f"algorithm={{{algorithm}, step_rule: constant, step: 0.5}}"
    assert call([*words, allowed], capfd).code == 0
