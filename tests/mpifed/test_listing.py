"""What ``--list`` says: names of every kind, their options, and what is refused."""

from __future__ import annotations

import inspect
import json
import re

import pytest
from commands import call, checked_refusal

from mpifed.testing import find_item, names
from topologies import FAMILIES, SCHEDULES, WEIGHTS

LISTS = {
    "algorithm": "algorithms",
    "data": "datasets",
    "model": "models",
    "correction": "corrections",
    "compression": "compressors",
    "aggregator": "aggregators",
    "pre_aggregator": "pre_aggregators",
    "server_optimizer": "server_optimizers",
    "attack": "attacks",
    "surrogate": "surrogates",
}
"""Kinds of components that a configuration finds by name, and the words that list them."""

SECTIONS = ("local", "privacy", "network", "compute", "evaluation", "checkpoint", "storage")
PROBLEMS = {
    "sa_ssmm": {"clients": 1},
    "fedmm_ot": {
        "data": {"name": "transport", "dimension": 2, "samples": 16},
        "model": {"name": "icnn", "hidden": [3, 3]},
    },
    "fedspd": {"local": {}},
}


def listed(word: str, capture) -> tuple[list[dict], list[str]]:
    """What ``--list`` says of a word: records, and sheets of lines."""
    records = json.loads(call(["--list", word, "--json"], capture).out)
    return records, call(["--list", word], capture).out.rstrip("\n").split("\n\n")


@pytest.mark.parametrize("name", names("algorithms"))
def test_what_the_table_of_algorithms_says_is_what_is_refused(name, tmp_path, capfd):
    def allowed(**sections) -> bool:
        words = {"clients": 4, "algorithm": name, **PROBLEMS.get(name, {}), **sections}
        experiment = tmp_path / "experiment.yaml"
        experiment.write_text(json.dumps(words))
        outcome = call([experiment, "--dry-run"], capfd)
        assert outcome.code in (0, 2)
        return not re.search(": (exchange|compression)[. ]", outcome.err)

    records, _ = listed(name, capfd)
    (record,) = [record for record in records if record["kind"] == "algorithm"]
    assert allowed() == ("server" in record["exchanges"])
    assert allowed(exchange="gossip") == ("gossip" in record["exchanges"])
    if not find_item("algorithm", name).communicates:
        return
    assert allowed(compression="rand_k") == (record["compressors"] != "none")
    assert allowed(compression="top_k") == (record["compressors"] == "any")


COMPONENTS = [
    *((kind, name) for kind, word in LISTS.items() for name in names(word)),
    *(("participation", name) for name in names("participation")),
    *(("section", name) for name in SECTIONS),
]


@pytest.mark.parametrize(("kind", "name"), COMPONENTS, ids=lambda word: word)
def test_the_options_of_a_component_are_listed_and_explained(kind, name, capfd):
    records, sheets = listed(name, capfd)
    (record,) = [record for record in records if record["kind"] == kind]
    (sheet,) = [sheet for sheet in sheets if sheet.startswith(f"{kind} {name}: ")]
    lines = sheet.splitlines()[1:]
    options = record["options"]
    if not options:
        assert lines[-1] == "  no options"
        return
    lines = lines[-2 * len(options) :]
    for option, line, explained in zip(options, lines[::2], lines[1::2], strict=True):
        assert line.startswith(f"  {option['name']}: {option['allowed']} (")
        assert line.endswith(")" if "default" in option else "(required)")
        assert explained == f"      {option['summary']}" and len(option["summary"].split()) > 1


@pytest.mark.parametrize(("kind", "name"), [case for case in COMPONENTS if case[0] in LISTS])
def test_nothing_is_explained_that_a_component_does_not_take(kind, name):
    component = find_item(kind, name)
    parts = inspect.getmro(component)[:-1] if inspect.isclass(component) else [component]
    taken = {parameter for part in parts for parameter in inspect.signature(part).parameters}
    text = inspect.getdoc(component) or ""
    section = re.search(r"^Parameters\n-+\n(.*?)(?=\n\n\w+\n-+\n|\Z)", text, re.DOTALL | re.M)
    explained = re.findall(r"^(\*{0,2}\w[\w, *]*?)(?: : .*)?$", section[1], re.M) if section else []
    assert {word for names in explained for word in names.split(", ")} <= {*taken, "**options"}


@pytest.mark.parametrize("table", [FAMILIES, WEIGHTS, SCHEDULES])
def test_the_parameters_of_graphs_are_listed(table, capfd):
    for name, entry in table.items():
        _, sheets = listed(name, capfd)
        (sheet,) = [sheet for sheet in sheets if entry.summary in sheet.splitlines()[0]]
        for key, parameter in (entry.parameters or {}).items():
            assert f"\n  {key}: {parameter.allowed} (" in sheet
            assert parameter.summary in sheet


def test_names_of_several_kinds_and_of_users_are_listed(capfd):
    assert [record["kind"] for record in listed("poisson", capfd)[0]] == ["data", "surrogate"]
    assert [record["kind"] for record in listed("local", capfd)[0]] == ["algorithm", "section"]
    (own,) = listed("user_components:Fails", capfd)[1]
    assert own.startswith("component user_components:Fails: FedAvg that fails as")
    assert "  model_init: one of shared, per_client (default shared)" in own


def test_first_sentences_are_listed_to_their_ends(tmp_path, monkeypatch, capfd):
    text = 'class Net:\n    """A network of a user\'s own\n    on two lines. It learns."""\n'
    (tmp_path / "two_lines.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    (own,) = listed("two_lines:Net", capfd)[1]
    assert own.splitlines()[0].endswith("A network of a user's own on two lines.")
    records = json.loads(call(["--list", "all", "--json"], capfd).out)
    assert all(len(each.get("summary", "")) <= 100 for each in records if each["kind"] != "key")
    last = {each["summary"].rstrip(".").split()[-1] for each in records if each.get("summary")}
    assert not last & {"a", "the", "in", "et", "as", "of", "App"}


@pytest.mark.parametrize(
    ("word", "offer"), [("partitions", "'data.partition'"), ("lr", "'local.lr'"),
     ("data.alpha", "'data.dirichlet_alpha'"), ("algoritms", "'algorithms'"),
     ("erdos_reny", "'erdos_renyi'"),
     ("local.lr_schedul", "'local.lr_schedule'"), ("data.n_tst", "'data.n_test'")],
)  # fmt: skip
def test_what_cannot_be_listed_is_refused(word, offer, capfd):
    outcome = call(["--list", word], capfd)
    checked_refusal(outcome, f"--list.*'{word}'.*{offer}.*experiments, algorithms")


@pytest.mark.parametrize(
    ("key", "kind", "component"),
    [
        ("evaluation.central", "section", "evaluation"),
        ("local.lr_schedule", "section", "local"),
        ("algorithm.mu", "algorithm", "fedprox"),
        ("exchange.topology.p", "topology", "erdos_renyi"),
        ("participation.p", "participation", "bernoulli"),
    ],
)
def test_a_dotted_key_is_listed_as_its_component_has_it(key, kind, component, capfd):
    records, sheets = listed(key, capfd)
    (sheet,) = [sheet for sheet in sheets if kind == "section" or f" of {component}" in sheet]
    (record,) = [each for each in listed(component, capfd)[0] if each["kind"] == kind]
    (option,) = [each for each in record["options"] if key.endswith(f".{each['name']}")]
    assert option in [each for record in records for each in record["options"]]
    assert sheet.startswith(f"key {key}") and f": {option['summary']}\n" in sheet
    default = f"default {option['default']}" if "default" in option else "required"
    assert f"  {option['allowed']} ({default.replace('None', 'null')})" in sheet


@pytest.mark.parametrize(
    ("key", "word"), [("algorithm.name", "algorithm"), ("exchange.topology", "topology")]
)
def test_a_key_that_names_a_component_lists_their_names(key, word, capfd):
    assert listed(key, capfd) == listed(word, capfd)


def test_a_bound_that_nobody_reaches_is_told_where_it_is_passed(capfd):
    bound = str(2**63 - 1)
    assert bound not in call(["--list", "keys"], capfd).out
    for word in ("seed", "rounds", "evaluation.every"):
        assert bound not in call(["--list", word], capfd).out
    assert bound not in call(["digits-fedem", "seed=-1"], capfd).err
    assert f"at most {bound}" in call(["digits-fedem", f"seed={2**63}"], capfd).err
