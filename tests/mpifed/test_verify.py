"""Repeating a finished run: an honest one agrees, and any change is found."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import h5py
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from on_ranks import SMALL, folder_of, run

import mpifed
from mpifed.api import Request, execute
from mpifed.checkpoint.integrity import seal
from mpifed.mpi.communicator import Alone, world
from mpifed.training.verification import verify
from mpifed.verify import verified as main

RUN = {**SMALL, "clients": 5, "rounds": 6, "participation": 0.6, "data.n_test": 10}
CASES = {
    "gossip": {"exchange": "gossip"},
    "sampled": {"evaluation.sample": 0.5},
    "unseen": {"evaluation.unseen_fraction": 0.3, "algorithm": "fedavg"},
    "compressed": {"algorithm": "fedavg", "compression": {"name": "top_k", "k": 5}},
    "prepared": {"algorithm": "flix", "algorithm.l2": 0.1, "participation": 1.0},
    "validated": {"evaluation.validation_fraction": 0.3},
    "timed": {"network.latency": 0.5},
    "measured": {"compute": {"name": "measured"}},
    "private": {
        "algorithm": "fedavg",
        "participation": {"name": "bernoulli", "p": 0.5},
        "privacy": {"noise_multiplier": 4.0, "clip_norm": 2.0, "delta": 0.01},
    },
    "asynchronous": {
        "exchange": {"name": "gossip", "topology": "ring", "asynchrony": "wait_free"},
        "compute": {"name": "lognormal", "seconds": 0.1, "client_sigma": 0.8},
        "participation": 1.0,
    },
}


@pytest.fixture(scope="module")
def honest(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("verify") / "run"
    run("synthetic-fedem", RUN, folder)
    return folder


@pytest.fixture
def tampered(honest, tmp_path) -> Path:
    return Path(shutil.copytree(honest, tmp_path / "run"))


def found(folder: Path, rounds=None) -> list[str]:
    return verify(folder, rounds, Alone(), lambda line: None).differences


def test_a_run_from_before_the_column_of_the_worst_tenth_is_verified(tampered):
    path = tampered / "metrics.csv"
    table = [line.split(",") for line in path.read_text().splitlines()]
    which = table[0].index("test_accuracy_worst10")
    path.write_text("".join(",".join(r[:which] + r[which + 1 :]) + "\n" for r in table))
    assert found(tampered) == []


@pytest.mark.parametrize("case", CASES)
def test_an_honest_run_is_verified(case, tmp_path):
    run("synthetic-fedem", {**RUN, **CASES[case]}, tmp_path / "run")
    assert found(tmp_path / "run") == []
    assert found(tmp_path / "run", 2) == []


@settings(max_examples=6)
@given(data=st.data())
def test_any_rounds_can_be_repeated(data, honest):
    first = data.draw(st.integers(1, 6))
    last = data.draw(st.integers(first, 6))
    verdict = verify(honest, (first, last), Alone(), lambda line: None)
    assert verdict.differences == []
    assert verdict.first <= first <= last <= verdict.last


def test_a_resumed_run_is_verified_as_a_whole(tmp_path):
    run("synthetic-fedem", {**RUN, "rounds": 3}, tmp_path / "run")
    run("synthetic-fedem", RUN, tmp_path / "run", resume=True)
    assert found(tmp_path / "run") == []


def changed_field(folder: Path, round: int, column: str, change) -> None:
    path = folder / "metrics.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if int(row["round"]) == round:
            row[column] = change(row[column])
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def other(text: str) -> str:
    """The text with one bit of its last digit changed."""
    return text[:-1] + chr(ord(text[-1]) ^ 1)


@pytest.mark.parametrize("round", [0, 2, 6])
@pytest.mark.parametrize("column", ["train_loss", "test_accuracy", "up_bits", "state_digest"])
def test_a_changed_metric_is_found(round, column, tampered):
    changed_field(tampered, round, column, other)
    lines = found(tampered)
    assert lines
    assert re.match(f"round {round}: metrics.csv .*{column}", lines[0])


def flip(folder: Path, round: int, name: str, sealed: bool) -> None:
    """One bit of a tensor in a checkpoint."""
    path = folder / "checkpoints" / f"round-{round:06d}.h5"
    with h5py.File(path, "r+") as file:
        flat = file[name][()]
        flat.reshape(-1).view("u1")[0] ^= 1
        file[name][...] = flat
    if sealed:
        seal(path)


@pytest.mark.parametrize("name", ["server/components", "clients/mixture"])
@pytest.mark.parametrize("round", [4, 6])
@pytest.mark.parametrize("rounds", [None, 2])
def test_one_bit_of_a_state_is_found(name, round, rounds, tampered):
    flip(tampered, round, name, sealed=True)
    assert any(line.startswith(f"round {round}: ") for line in found(tampered, rounds))


def test_a_damaged_checkpoint_is_named(tampered):
    flip(tampered, 4, "server/components", sealed=False)
    (line,) = found(tampered)
    assert line.startswith("round 4: ")
    assert "damaged" in line


def test_changed_results_are_found(tampered):
    with h5py.File(tampered / "clients.h5", "r+") as file:
        values = file["test_loss"][()]
        values.view("u1")[0] ^= 1
        file["test_loss"][...] = values
    (line,) = found(tampered)
    assert re.match("round 6: clients.h5 .*test_loss", line)


def change_summary(folder: Path, **changes) -> None:
    path = folder / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rounds", 7),
        ("test_accuracy", 0.999),
        ("state_digest", "00"),
        ("predicted_contraction", {"p": 1.0, "per_round": 0.0, "tau": 1}),
    ],
)
def test_a_changed_summary_is_found(name, value, tampered):
    change_summary(tampered, **{name: value})
    (line,) = found(tampered, 1)
    assert re.match(f"round 6: summary.json .*{name} {re.escape(json.dumps(value))}", line)


def test_a_summary_with_other_keys_is_found(tampered):
    summary = json.loads((tampered / "summary.json").read_text()) | {"epsilon": 0.1}
    del summary["up_bits"]
    (tampered / "summary.json").write_text(json.dumps(summary))
    one, other = found(tampered, 1)
    assert re.match("round 6: summary.json .*epsilon 0.1", one)
    assert re.match("round 6: summary.json .*up_bits null", other)


def test_what_tells_of_the_computer_is_not_compared(tampered):
    measured = {"ranks": 5, "seconds": {"total": 0.5}, "versions": {"torch": "1"}}
    change_summary(tampered, **measured, peak_memory_bytes=1, imbalance=2.0, mpi_bytes_sent=3)
    assert found(tampered, 1) == []


def without_rows(folder: Path, *rounds: int) -> None:
    path = folder / "metrics.csv"
    lines = path.read_text().splitlines(keepends=True)
    gone = tuple(f"{number}," for number in rounds)
    path.write_text("".join(line for line in lines if not line.startswith(gone)))


@pytest.mark.parametrize("rounds", [None, 1])
@pytest.mark.parametrize("round", [0, 2, 4, 6])
def test_a_missing_row_is_found(round, rounds, tampered):
    without_rows(tampered, round)
    (line,) = found(tampered, rounds)
    assert line.startswith(f"round {round}: metrics.csv ")


def test_another_configuration_is_found(tampered):
    path = tampered / "config.yaml"
    path.write_text(path.read_text().replace("seed: 0", "seed: 1", 1))
    assert found(tampered)[0].startswith("round 0: ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rounds", "3"], "--rounds .*3.*A:B"),
        (["--rounds", "5:9"], "--rounds .*5:9.* 1 <= A <= B <= 6"),
        (["--last", "1", "--rounds", "1:2"], "--last"),
    ],
)
def test_wrong_words_are_refused(words, said, honest, capfd):
    assert main([*([str(honest)] if words else []), *words]) == 2
    heard = capfd.readouterr()
    assert re.search(said, heard.err)
    assert heard.err.count("\n") == 1


def made_before(folder: Path) -> None:
    """Take a run back to the time when sums were integers: no version, options that have ended."""
    path = folder / "config.yaml"
    mapping = yaml.safe_load(path.read_text())
    assert mapping.pop("arithmetic") == 3
    mapping["exchange"] |= {"reduction": "hierarchical", "transport": "auto"}
    mapping["storage"] |= {"state": "disk", "directory": None}
    path.write_text(yaml.safe_dump(mapping))
    for checkpoint in (folder / "checkpoints").glob("*.h5"):
        with h5py.File(checkpoint, "r+") as file:
            file["meta"].attrs["configuration"] = json.dumps(mapping)
        seal(checkpoint)


def test_a_run_of_another_arithmetic_is_refused_with_the_reason(tampered, capfd):
    made_before(tampered)
    assert main([str(tampered)]) == 2
    said = capfd.readouterr().err
    assert re.search("arithmetic 1.* 3", said)


def test_a_run_of_another_arithmetic_is_read_and_goes_on(tampered, capfd):
    made_before(tampered)
    assert mpifed.load(tampered).components
    more = Request(None, {"rounds": 7}, tampered, resume=True, quiet=True)
    assert execute(more, Alone(), lambda: False).status == "finished"
    log = (tampered / "log.txt").read_text()
    assert re.search("arithmetic 1.* 3", log)
    assert "exchange.reduction" in log
    assert "exchange.transport" in log
    assert "storage.state" in log and "storage.directory" not in log
    stored = yaml.safe_load((tampered / "config.yaml").read_text())
    assert stored["arithmetic"] == [[1, 1], [7, 3]]
    assert not {"reduction", "transport"} & set(stored["exchange"])
    assert stored["storage"] == {"samples": None}
    assert main([str(tampered)]) == 0
    said = capfd.readouterr().out
    assert "rounds 1 to 6" in said and "rounds 7 to 7" in said
    assert main([str(tampered), "--rounds", "2:5"]) == 2
    assert re.search("arithmetic 1.* 3", capfd.readouterr().err)


def test_kernels_that_depend_on_addresses_are_not_verified(capfd, monkeypatch):
    assert main(["--kernels"]) == 0
    exact = torch.mm
    monkeypatch.setattr(torch, "mm", lambda a, b: exact(a, b) * (1 + a.data_ptr() % 64))
    assert main(["--kernels"]) == 1
    told = "MKL_CBWR" if torch.backends.mkl.is_available() else "built without MKL"
    assert told in capfd.readouterr().out


@pytest.mark.mpi
def test_ranks_verify_what_one_rank_ran(tmp_path):
    communicator, folder = world(), folder_of(tmp_path)
    if communicator.rank == 0:
        run("synthetic-fedem", RUN, folder / "run")
        shutil.copytree(folder / "run", folder / "changed")
        flip(folder / "changed", 6, "clients/mixture", sealed=True)
    communicator.barrier()
    verdict = verify(folder / "run", None, communicator, lambda line: None)
    assert verdict.differences == []
    changed = verify(folder / "changed", 1, communicator, lambda line: None).differences
    assert changed
    assert all(line.startswith("round 6: ") for line in changed)


# What a finished run must have recorded, also where parts of it had other intervals or ends.


RUN_DUE = {**SMALL, "clients": 4, "data.n_test": 10, "checkpoint.keep": 10}


def trained(folder: Path, **options) -> Path:
    run("synthetic-fedem", {**RUN_DUE, **options}, folder, resume=folder.exists())
    return folder


def found_of_due(folder: Path) -> list[str]:
    return verify(folder, None, Alone(), lambda line: None).differences


def evaluated(folder: Path) -> list[int]:
    with (folder / "metrics.csv").open(newline="") as file:
        return [int(row["round"]) for row in csv.DictReader(file)]


def test_rounds_before_a_resume_may_have_another_interval(tmp_path):
    folder = trained(tmp_path / "run", **{"rounds": 4, "evaluation.every": 2})
    trained(folder, **{"rounds": 9, "evaluation.every": 3})
    assert evaluated(folder) == [0, 2, 4, 6, 9]
    assert found_of_due(folder) == []
    lines = (folder / "metrics.csv").read_text().splitlines(keepends=True)
    for round in (2, 4, 6):
        kept = [line for line in lines if not line.startswith(f"{round},")]
        (folder / "metrics.csv").write_text("".join(kept))
        (line,) = found_of_due(folder)
        assert line.startswith(f"round {round}: metrics.csv ")


def test_the_row_of_an_earlier_end_stays(tmp_path):
    folder = trained(tmp_path / "run", rounds=3)
    trained(folder, rounds=6)
    assert evaluated(folder) == [0, 2, 3, 4, 6]
    assert found_of_due(folder) == []


def test_a_run_that_was_stopped_and_resumed_is_verified(tmp_path):
    folder, asked = tmp_path / "run", iter([False, False, True])
    request = Request("synthetic-fedem", {**RUN_DUE, "rounds": 6}, folder, quiet=True)
    assert execute(request, Alone(), lambda: next(asked)).status == "stopped"
    assert evaluated(folder) == [0, 2]
    trained(folder, rounds=6)
    assert found_of_due(folder) == []


def test_a_run_that_is_resumed_at_its_end_elsewhere_needs_no_checkpoint(tmp_path):
    first = trained(tmp_path / "first", rounds=4)
    point = first / "checkpoints" / "round-000004.h5"
    other = tmp_path / "other"
    request = Request("synthetic-fedem", {**RUN_DUE, "rounds": 4}, other, resume=point, quiet=True)
    execute(request, Alone(), lambda: False)
    assert not (other / "checkpoints").exists()
    assert found_of_due(other) == []
