"""FLIX as a user runs it: line search, rule to stop, other runs' models, bad input."""

from __future__ import annotations

import math
import re
import shutil

import h5py
import numpy as np
import pytest
import torch
import yaml
from commands import call, checkpoints, rows
from convex import Run, logistic, problem_of, quadratics
from flix_words import SMALL
from numpy_flix import Constants, Risk, quadratic_risk, spread, variance

from mpifed.model import Objectives, Regulariser


def curves(n=4, m=12, seed=0):
    draw = np.random.default_rng(seed)
    xs = [draw.uniform(-2, 2, size=(m, 1)) for _ in range(n)]
    return problem_of(xs, [np.sin(x[:, 0] + i) for i, x in enumerate(xs)])


NETWORK = {
    "model": {
        "name": "mlp",
        "hidden": [6],
        "activation": "tanh",
        "loss": "squared",
        "initial": "normal",
    },
    "local_solver": "gd",
    "local_tolerance": 1e-2,
    "local_iterations": 50,
    "start": "zeros",
    "step": "line_search",
}


def test_the_line_search_takes_the_first_step_that_falls_and_books_every_trial():
    run = Run("flix", curves(), flix_alpha=0.7, **NETWORK)
    risk = Objectives(run.model, Regulariser())(run.clients)
    optima, d = run.flix.optima, run.model.n_parameters
    uplinks = 0
    for _ in range(5):
        x = run.flix.model[0]
        g = 0.7 * risk.gradients(0.7 * x + 0.3 * optima).mean(0)

        def value(w):
            return float(risk.losses(0.7 * w + 0.3 * optima).mean())

        trials = 1
        while not value(x - g / (0.1 * 2 ** (trials - 1))) < value(x):
            trials += 1
        run.go()
        assert torch.allclose(run.flix.model[0], x - g / (0.1 * 2 ** (trials - 1)), atol=1e-14)
        # Gradient and loss, then a loss for every trial; x, then every trial's model.
        uplinks += 4 * (d + 1 + trials)
        assert run.exchange.ledger.up_floats == uplinks
    assert run.exchange.ledger.up_bits == 64 * uplinks
    assert run.exchange.ledger.down_bits == 64 * d * (uplinks - 4 * 5 * d)


@pytest.mark.parametrize(("stuck", "moves"), [("stay", False), ("redraw", True)])
def test_where_no_step_falls_x_stays_or_is_drawn_anew(stuck, moves):
    run = Run("flix", logistic(), flix_alpha=0.5, l2=0.3, step="line_search", stuck=stuck)
    reference = run.flix.reference
    run.go().start_from(model=reference[None]).advance()
    assert (not torch.equal(run.flix.model[0], reference)) == moves


@pytest.mark.parametrize("rule", ["objective", "paper"])
@pytest.mark.parametrize("step", [None, "line_search"])
def test_x_stays_and_nothing_is_sent_once_the_rule_to_stop_is_met(rule, step):
    # Without alpha_i, and with unequal ones, the sum of gradients vanishes elsewhere than f~'s.
    alpha = [0.2, 0.9, 0.4, 0.6, 1.0, 0.3] if rule == "objective" else [0.6] * 6
    options = {"flix_alpha": alpha, "l2": 0.3, "stop_at": 1e-3, "stop_rule": rule, "step": step}
    run = Run("flix", logistic(), start="ones", **options)
    risk = Risk(run, logistic(), alpha, 0.3)
    factor = np.array(alpha)[:, None] if rule == "objective" else 1.0

    def norm():
        return np.linalg.norm((factor * risk.local_gradients(run.x)).mean(0))

    while norm() >= 1e-3 and run.round < 500:
        assert not int(run.flix.stopped)
        run.go()
    assert 0 < run.round < 500
    x = run.x.copy()
    run.go()
    assert int(run.flix.stopped) == run.round
    sent = dict(vars(run.exchange.ledger))
    run.go(3)
    assert (run.x == x).all()
    assert vars(run.exchange.ledger) == sent


@pytest.mark.parametrize("step", [None, "line_search"])
def test_the_published_rule_to_stop_asks_for_a_small_loss_too(step):
    centres = np.random.default_rng(2).normal(size=(3, 2))
    for apart, stops in ((0.0, True), (1.0, False)):
        # With one centre for all f~ falls to 0, with several it does not.
        data = quadratics([np.eye(2)] * 3, [centres[0] + apart * c for c in centres])
        options = {"stop_at": 1e-2, "stop_rule": "published_code", "step": step}
        run = Run("flix", data, flix_alpha=1.0, start="zeros", **options)
        run.go(60)
        loss = Risk(run, data, risk=quadratic_risk).value(run.x)
        assert (loss < 1e-4) == bool(int(run.flix.stopped)) == stops


def test_a_run_starts_from_another_and_takes_its_optima(tmp_path, capfd):
    one, two, three = (str(tmp_path / name) for name in "abc")
    assert call([*SMALL, "--output", one], capfd).code == 0
    more = ["algorithm.flix_alpha=0.8", f"algorithm.start_from={one}"]
    assert call([*SMALL, *more, f"algorithm.optima_from={one}", "--output", two], capfd).code == 0
    # Where a point to start from is named too, as in an experiment, the run stands over it.
    assert call([*SMALL, *more, "algorithm.start=ones", "--output", three], capfd).code == 0
    assert [r["objective"] for r in rows(tmp_path / "b")] == [
        r["objective"] for r in rows(tmp_path / "c")
    ]
    last, first = (
        float(rows(tmp_path / "a")[-1]["deployed_distance"]) / 0.5**2,
        float(rows(tmp_path / "b")[0]["deployed_distance"]) / 0.8**2,
    )
    # Both have nearly the same minimiser, and the second begins where the first ended.
    assert first < 0.2 * float(rows(tmp_path / "a")[0]["deployed_distance"]) / 0.5**2 + last
    with h5py.File(tmp_path / "a" / "checkpoints" / checkpoints(tmp_path / "a")[-1]) as file:
        optima = file["clients/optima"][()]
    with h5py.File(tmp_path / "b" / "checkpoints" / checkpoints(tmp_path / "b")[-1]) as file:
        assert (file["clients/optima"][()] == optima).all()


@pytest.mark.parametrize(
    "words",
    [
        "",
        "algorithm.start=ones",
        "algorithm.step=line_search algorithm.stuck=redraw",
        "algorithm.stop_at=1e-3",
        "algorithm.flix_alpha=[0,0,0,0,0]",
        "compression=top_k compression.k=2",
        "exchange=gossip algorithm.start=ones",
        "exchange=gossip algorithm.start=ones compression=rand_k compression.k=2",
        "algorithm=dcgd compression=rand_k compression.k=2",
        "algorithm=diana compression=rand_k compression.k=2 algorithm.memory_start=gradients",
    ],
)
def test_purely_local_models_send_nothing(words, tmp_path, capfd):
    both = [*SMALL, "algorithm.flix_alpha=0", *words.split(), "--output", tmp_path / "run"]
    dry = call([*both, "--dry-run"], capfd)
    assert dry.code == 0, dry.err
    assert " 0 bytes" in dry.out
    done = call(both, capfd)
    assert done.code == 0, done.err
    first, *_, last = rows(tmp_path / "run")
    assert {last[key] for key in ("up_bits", "down_bits", "up_floats")} == {"0"}
    assert last["state_digest"] == first["state_digest"]
    assert last["train_loss"] == first["train_loss"]


def test_a_line_search_goes_with_messages_that_lose_nothing(tmp_path, capfd):
    words = [*SMALL, "algorithm.step=line_search"]
    for name in ("none", "identity"):
        done = call([*words, f"compression={name}", "--output", tmp_path / name], capfd)
        assert done.code == 0, done.err
    one, two = (rows(tmp_path / name)[-1] for name in ("none", "identity"))
    assert [one[key] for key in ("state_digest", "up_bits")] == [
        two[key] for key in ("state_digest", "up_bits")
    ]


def test_a_run_goes_on_without_the_runs_that_it_began_from(tmp_path, capfd):
    one, two = tmp_path / "a", tmp_path / "b"
    assert call([*SMALL, "--output", one], capfd).code == 0
    words = [*SMALL, f"algorithm.start_from={one}", f"algorithm.optima_from={one}"]
    assert call([*words, "rounds=3", "--output", two], capfd).code == 0
    shutil.rmtree(one)
    done = call([*words, "rounds=4", "--resume", "--output", two], capfd)
    assert done.code == 0, done.err
    assert rows(two)[-1]["round"] == "4"
    assert call([*words, "--output", tmp_path / "c"], capfd).code == 2


BAD = {
    "algorithm.start=average algorithm.start_from=x": "algorithm.start_from.*'x'",
    "algorithm.step=line_search exchange=gossip": "exchange.*'gossip'",
    "algorithm.setting=strongly_convex algorithm.l2=0": "algorithm.l2.* 0.0",
    "algorithm=dcgd compression=top_k": "compression.*'top_k'",
    "model=mlp algorithm.step=null": "algorithm.step",
}


@pytest.mark.parametrize("mode", [[], ["--dry-run"]], ids=["run", "dry run"])
@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_one_sentence_before_anything_is_computed(words, mode, tmp_path, capfd):
    target = tmp_path / "run"
    kept = [w for w in SMALL if not w.startswith("algorithm") or "algorithm=" not in words]
    done = call([*kept, *words.split(), *mode, "--output", target], capfd)
    assert done.code == 2, done
    (line,) = done.err.splitlines()
    assert re.search(BAD[words], line)
    assert not target.exists()


def test_optima_of_another_problem_are_refused(tmp_path, capfd):
    one = tmp_path / "one"
    assert call([*SMALL, "--output", one], capfd).code == 0
    cap = "algorithm.local_iterations=7"
    for change in ("seed=3", "algorithm.l2=0.2", "data.dimension=7", cap):
        words = [*SMALL, change, f"algorithm.optima_from={one}", "--output", tmp_path / "two"]
        done = call(words, capfd)
        assert done.code == 2
        assert str(one) in done.err
    wide = [*SMALL, "data.dimension=7", f"algorithm.start_from={one}", "--output", tmp_path / "two"]
    for mode in ([], ["--dry-run"]):
        done = call([*wide, *mode], capfd)
        assert done.code == 2
        assert str(one) in done.err


@pytest.mark.parametrize(
    ("words", "tolerance"),
    [
        ("algorithm.l2=0.1", 1e-6),
        ("algorithm.l2=0.1 algorithm.regulariser=nonconvex", 1e-6),
        ("algorithm.l2=0", 1e-3),
        ("algorithm.l2=0 algorithm=diana", 1e-3),
        ("algorithm.l2=0 algorithm.local_tolerance=1e-2", 1e-2),
    ],
)
def test_the_tolerance_is_the_papers_or_without_a_regulariser_the_published_codes(
    words, tolerance, tmp_path, capfd
):
    one, two = tmp_path / "one", tmp_path / "two"
    longer = ["algorithm.local_iterations=100000", "rounds=1"]
    own = [*SMALL, *longer, *words.split()]
    done = call([*own, "--output", one], capfd)
    assert done.code == 0, done.err
    stored = yaml.safe_load((one / "config.yaml").read_text())
    assert stored["algorithm"]["local_tolerance"] == tolerance
    assert "was not reached" not in (one / "log.txt").read_text()
    with h5py.File(one / "clients.h5") as file:
        assert 0 < file["local_gradient_norm"][()].max() < tolerance
    # Left out or said, it is the same problem.
    more = [f"algorithm.local_tolerance={tolerance}", f"algorithm.optima_from={one}"]
    assert call([*own, *more, "--output", two], capfd).code == 0


def test_a_run_under_gossip_has_no_x_to_start_from_but_optima(tmp_path, capfd):
    one, two = tmp_path / "one", tmp_path / "two"
    assert call([*SMALL, "exchange=gossip", "--output", one], capfd).code == 0
    done = call([*SMALL, f"algorithm.start_from={one}", "--output", two], capfd)
    assert done.code == 2
    assert "gossip" in done.err and str(one) in done.err
    assert len(done.err.splitlines()) == 1
    assert call([*SMALL, f"algorithm.optima_from={one}", "--output", two], capfd).code == 0


EXACT = ("algorithm.local_solver=newton", "algorithm.flix_alpha=0.3")


def test_the_log_and_the_checkpoint_of_a_run_agree_on_the_theorems(tmp_path, capfd):
    target = tmp_path / "run"
    assert call([*SMALL, *EXACT, "--output", target], capfd).code == 0
    with h5py.File(target / "checkpoints" / checkpoints(target)[-1]) as file:
        optima, smooth = file["clients/optima"][:], file["clients/smoothness"][:]
        x = file["server/model"][0]
    local, deployed = variance(optima), variance(0.3 * x + 0.7 * optima)
    assert deployed == pytest.approx(0.49 * local, rel=1e-10)  # Proposition 3
    first = Constants(0.3, smooth, 0.1).l_alpha * spread(optima, smooth) / 2
    rate = 1 - 0.1 / smooth.mean()
    rounds = 1 + math.ceil(math.log(first / 1e-10) / -math.log(rate))
    assert re.search(rf"Theorem 2: .* {rounds} rounds", (target / "log.txt").read_text())


def test_the_log_has_no_theorem_for_constants_that_are_too_small(tmp_path, capfd):
    target = tmp_path / "run"
    words = [*SMALL, *EXACT, "algorithm.smoothness=published_code", "--output", target]
    assert call(words, capfd).code == 0
    assert "Theorem" not in (target / "log.txt").read_text()
