"""FedMM's methods and transport as commands: what runs, what is refused, what a resume repeats."""

from __future__ import annotations

import re

import pytest
import yaml
from commands import call, checked_refusal, rows, summary_of

TRANSPORT = (
    "transport-fedmm-ot",
    "clients=3",
    "rounds=4",
    "data.dimension=2",
    "data.samples=40",
    "model.hidden=[8,8]",
    "local.batch_size=32",
    "algorithm.pretraining=20",
    "evaluation.every=2",
    "checkpoint.every=2",
)


def test_what_auto_means_is_settled_by_the_first_start(tmp_path, capfd, monkeypatch):
    monkeypatch.delenv("MPIFED_DATA", raising=False)
    said = call([*TRANSPORT, "--dry-run"], capfd).out
    assert "benchmark: random_icnn" in said
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert call([*TRANSPORT, "--output", whole], capfd).code == 0
    assert call([*TRANSPORT, "rounds=2", "--output", cut], capfd).code == 0
    stored = yaml.safe_load((cut / "config.yaml").read_text())
    assert stored["data"]["benchmark"] == "random_icnn"
    # Another environment, in which auto would be another problem.
    (tmp_path / "w2-benchmark").mkdir()
    monkeypatch.setenv("MPIFED_DATA", str(tmp_path))
    refused = call([*TRANSPORT, "--output", cut, "--resume"], capfd)
    assert refused.code == 2
    assert re.search("data.benchmark.*'random_icnn'.*'mix3tomix10'", refused.err)
    assert call(["rounds=4", "--output", cut, "--resume"], capfd).code == 0
    assert rows(cut) == rows(whole)


def test_a_run_on_published_potentials_does_not_go_on_without_them(tmp_path, capfd, monkeypatch):
    (tmp_path / "w2-benchmark").mkdir()
    monkeypatch.setenv("MPIFED_DATA", str(tmp_path))
    run, other = tmp_path / "run", tmp_path / "other"
    gaussian = [*TRANSPORT, "rounds=1", "data.benchmark=gaussian", "--output", other]
    assert call(gaussian, capfd).code == 0
    stored = yaml.safe_load((other / "config.yaml").read_text())
    stored["data"]["benchmark"] = "mix3tomix10"
    run.mkdir()
    (run / "config.yaml").write_text(yaml.safe_dump(stored))
    monkeypatch.delenv("MPIFED_DATA")
    refused = call(["--output", run, "--resume"], capfd)
    assert refused.code == 2 and "MPIFED_DATA" in refused.err


FRESH = "algorithm.online.* True.*dictionary, poisson, gaussian_mix"
ONLINE = ["algorithm.online=true", "algorithm.batch=5", "clients=4"]
LABELLED = ("data=digits", "clients=4", "rounds=2", "participation=1.0", "compression=none")
REFUSED = {
    "fedadam on a dictionary": (
        ["synthetic-fedem", "algorithm=fedadam", "data=dictionary", "clients=4"],
        "unlabelled.*'fedadam'.*classification",
    ),
    "fresh digits": (["fedmm-heterogeneous", "data=digits", *ONLINE], FRESH),
    "ten labels for a logistic loss": (
        ["fedmm-homogeneous", *LABELLED, "algorithm.surrogate={name: quadratic, loss: logistic}"],
        "algorithm.surrogate.loss.*'logistic'.*'digits'.* 10 classes.* 2",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_data_that_do_not_fit_the_algorithm_are_refused(case, tmp_path, capfd):
    words, pattern = REFUSED[case]
    checked_refusal(call([*words, "--output", tmp_path / "run"], capfd), pattern)
    assert not (tmp_path / "run").exists()


def test_who_can_draw_samples_runs_online(tmp_path, capfd):
    words = ["fedmm-homogeneous", "rounds=2", "data.samples=20", "data.dim=4", "data.atoms=3"]
    assert call([*words, *ONLINE, "--output", tmp_path / "run"], capfd).code == 0


def test_one_client_alone_sends_nothing(tmp_path, capfd):
    words = ["fedmm-homogeneous", "rounds=3", "data.samples=20", "data.dim=4", "data.atoms=3"]
    words += ["algorithm=sa_ssmm", "clients=1", "participation=1.0", "compression=none"]
    words += ["evaluation.every=1", "algorithm.control_variate_rate=0.3", "exchange=gossip"]
    outcome = call([*words, "--output", tmp_path / "run"], capfd)
    assert outcome.code == 0, outcome.err
    found = rows(tmp_path / "run")
    assert {row["up_bits"] for row in found} == {row["down_bits"] for row in found} == {"0"}
    assert float(found[-1]["objective"]) < float(found[0]["objective"])
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "Theorem 1" not in log and "omega" not in log
    assert "algorithm.control_variate_rate=0.3" in log
    planned = call([*words, "--dry-run"], capfd).out
    assert re.search("exchange +none", planned) and " 0 bytes" in planned


SIGNED = (
    "fedmm-homogeneous",
    "clients=4",
    "rounds=3",
    "participation=1.0",
    "compression=none",
    "data={name: gaussian_mixture, dimension: 1, sharding: sorted, n_train: 10}",
    "algorithm={name: fedmm_theta, surrogate: remark_one}",
)


def test_a_client_that_diverges_is_named_with_the_step_that_the_method_has(tmp_path, capfd):
    """Negative means have no T; a client that has one is left out on request."""
    outcome = call([*SIGNED, "--quiet", "--output", tmp_path / "run"], capfd)
    (line,) = outcome.messages
    assert outcome.code == 1 and re.search("round 1: client 0 .*finite.*algorithm.step", line)
    assert summary_of(tmp_path / "run")["status"] == "diverged"
    dropped = [*SIGNED, "on_divergence=drop", "--quiet", "--output", tmp_path / "dropped"]
    assert call(dropped, capfd).code == 0
    assert float(rows(tmp_path / "dropped")[-1]["active_clients"]) < 4


@pytest.mark.parametrize(
    ("surrogate", "numbers", "says"),
    [
        ("{name: dictionary, n_atoms: 3}", 3 * (3 + 64), True),
        ("{name: gaussian_mixture, components: 2}", 2 * (64 + 1), True),
        ("{name: quadratic, rho: 0.01}", 64, False),
    ],
)
def test_labels_are_learnt_by_who_takes_a_target_and_by_nobody_else(
    surrogate, numbers, says, tmp_path, capfd
):
    words = ["fedmm-homogeneous", *LABELLED, f"algorithm={{name: fedmm, surrogate: {surrogate}}}"]
    assert call([*words, "--output", tmp_path / "run"], capfd).code == 0
    assert rows(tmp_path / "run")[-1]["up_bits"] == str(2 * 4 * 64 * numbers)
    said = "inputs alone.*targets.*'digits'"
    assert len(re.findall(said, (tmp_path / "run" / "log.txt").read_text())) == says


def test_a_rho_far_too_large_ends_in_a_run_that_diverged(tmp_path, capfd):
    words = ["fedmm-homogeneous", *LABELLED, "rounds=60", "evaluation.every=5", "--quiet"]
    words.append("algorithm={name: fedmm, surrogate: {name: quadratic, rho: 5000}}")
    outcome = call([*words, "--output", tmp_path / "run"], capfd)
    assert outcome.code == 1 and re.search("objective .*algorithm.step", outcome.messages[0])
    assert summary_of(tmp_path / "run")["status"] == "diverged"
    log = (tmp_path / "run" / "log.txt").read_text()
    assert re.search("warning: algorithm.surrogate.rho.* 5000", log)


def test_a_run_goes_on_to_more_rounds_more_than_once(tmp_path, capfd):
    """The horizon, which a longer run keeps, is nothing that these methods refuse."""
    words = ["transport-fedmm-ot", "data.dimension=2", "data.benchmark=gaussian", "clients=2"]
    small = ["data.samples=64", "local.batch_size=32", "algorithm.pretraining=5", "rounds=1"]
    more = ["--quiet", "--output", tmp_path / "run"]
    assert call([*words, *small, *more], capfd).code == 0
    for rounds in (2, 3):
        outcome = call([f"rounds={rounds}", "--resume", *more], capfd)
        assert outcome.code == 0, outcome
    assert len(rows(tmp_path / "run")) > 1


# What FedMM's methods refuse, in one sentence that names the field and what is allowed.


DICTIONARY, MAP, ADAM = "fedmm-heterogeneous", "transport-fedmm-ot", "transport-fedadam"


@pytest.mark.parametrize(
    ("experiment", "words", "message"),
    [
        (DICTIONARY, ["compression={name: top_k, k: 3}"], "compression.*'top_k'"),
        (DICTIONARY, ["exchange=gossip"], "participation.* 0.5"),
        (
            DICTIONARY,
            ["algorithm=sa_ssmm"],
            "clients.* 20",
        ),
        (
            DICTIONARY,
            ["algorithm=fedmgs"],
            "compression.*'quantise'",
        ),
        (DICTIONARY, ["algorithm.surrogate.n_atoms=0"], "surrogate.n_atoms.* 0"),
        (MAP, ["compression={name: top_k, k: 3}"], "compression.*'top_k'"),
        (MAP, ["local.momentum=0.9"], "local.momentum.* 0.9"),
        (ADAM, ["data=digits"], "data.*'digits'"),
    ],
)
def test_what_does_not_go_together_is_refused(experiment, words, message, capfd):
    refused = call([experiment, *words, "--dry-run"], capfd)
    assert refused.code == 2 and re.search(message, refused.err)
