"""What a program reads: names, options and plans as JSON, as AGENTS.md says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import call

from mpifed.testing import names

ROOT = Path(__file__).parents[2]


def told(capfd, *words: str):
    outcome = call([*words, "--json"], capfd)
    assert (outcome.code, outcome.err) == (0, "")
    (line,) = outcome.out.splitlines()
    return json.loads(line)


def test_every_name_is_listed_with_its_kind(capfd):
    found = {(one["kind"], one["name"]) for one in told(capfd, "--list")}
    experiments = {path.stem for path in (ROOT / "mpifed" / "experiments").glob("*.yaml")}
    assert {("experiment", name) for name in experiments} <= found
    some = {("algorithm", "fedem"), ("data", "digits"), ("weights", "fmmc"), ("attack", "ipm")}
    assert some <= found
    of_kind = told(capfd, "--list", "algorithms")
    assert [one["name"] for one in of_kind] == names("algorithms")
    assert {("algorithm", name) for name in names("algorithms")} <= found
    assert next(one for one in of_kind if one["name"] == "scaffold")["exchanges"] == ["server"]


def test_a_configuration_of_listed_defaults_is_that_of_none(capfd, tmp_path):
    (sheet,) = told(capfd, "--list", "fedem")
    defaults = {one["name"]: one["default"] for one in sheet["options"]}
    assert len(defaults) > 3

    def configuration(algorithm):
        experiment = tmp_path / "plain.yaml"
        experiment.write_text(json.dumps({"clients": 4, "algorithm": algorithm}))
        return told(capfd, str(experiment), "--dry-run")["configuration"]

    plain = configuration("fedem")
    assert configuration({"name": "fedem", **defaults}) == plain
    (key,) = told(capfd, "--list", "rounds")
    assert key["options"][0]["default"] == plain["rounds"]


def test_a_plan_as_json_repeats_its_run_and_writes_nothing(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = told(capfd, "digits-fedem", "clients=4", "--dry-run", "--output", "run")
    assert found["configuration"]["clients"] == 4 and found["output"] == "run"
    plan = found["plan"]
    assert (plan["ranks"], plan["clients_by_rank"]) == (1, [4])
    # Three linear models of 64 inputs and 10 classes.
    assert plan["message_bytes"] == 3 * 650 * 4
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["--list", "fedme"], ["nonsense", "--dry-run"], ["clients=4"]])
def test_wrong_words_leave_standard_output_empty(words, capfd):
    outcome = call([*words, "--json"], capfd)
    assert outcome.code == 2 and outcome.out == "" and len(outcome.err.splitlines()) == 1
