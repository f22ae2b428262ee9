"""What a program reads: names, options and plans as JSON, as AGENTS.md says."""

from __future__ import annotations

import json

import pytest
from commands import call

from mpifed.components.tables import ALGORITHMS, LISTS, TABLES
from mpifed.config.configuration import resolve
from mpifed.config.experiments import experiment_names


def told(capfd, *words: str):
    outcome = call([*words, "--json"], capfd)
    assert (outcome.code, outcome.err) == (0, "")
    (line,) = outcome.out.splitlines()
    return json.loads(line)


def test_every_name_is_listed_with_its_kind(capfd):
    found = {(one["kind"], one["name"]) for one in told(capfd, "--list")}
    assert {kind for kind, _ in found} == {"experiment", *LISTS}
    assert {("experiment", name) for name in experiment_names()} <= found
    assert {(kind, name) for kind in LISTS if kind in TABLES for name in TABLES[kind]} <= found
    of_kind = told(capfd, "--list", "algorithms")
    assert [one["name"] for one in of_kind] == list(ALGORITHMS)
    assert next(one for one in of_kind if one["name"] == "scaffold")["exchanges"] == ["server"]


def test_a_configuration_of_listed_defaults_is_that_of_none(capfd):
    (sheet,) = told(capfd, "--list", "fedem")
    defaults = {one["name"]: one["default"] for one in sheet["options"]}
    assert len(defaults) > 3
    assert resolve({"algorithm": {"name": "fedem", **defaults}}) == resolve({"algorithm": "fedem"})
    (key,) = told(capfd, "--list", "rounds")
    assert key["options"][0]["default"] == resolve({}).rounds


def test_a_plan_as_json_repeats_its_run_and_writes_nothing(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = told(capfd, "digits-fedem", "clients=4", "--dry-run", "--output", "run")
    assert resolve(found["configuration"]).clients == 4 and found["output"] == "run"
    plan = found["plan"]
    assert (plan["ranks"], plan["clients_by_rank"]) == (1, [4])
    # Three linear models of 64 inputs and 10 classes.
    assert plan["message_bytes"] == 3 * 650 * 4
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["--list", "fedme"], ["nonsense", "--dry-run"], ["clients=4"]])
def test_wrong_words_leave_standard_output_empty(words, capfd):
    outcome = call([*words, "--json"], capfd)
    assert outcome.code == 2 and outcome.out == "" and len(outcome.err.splitlines()) == 1
