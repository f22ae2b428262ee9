from __future__ import annotations

import inspect

import pytest

from mpifed.components.registry import find, find_algorithm, source, summaries
from mpifed.components.tables import ALGORITHMS, TABLES
from mpifed.config.configuration import SECTIONS, resolve
from mpifed.config.listing import listing
from mpifed.errors import InputError
from mpifed.federation.participation import KINDS
from topologies import FAMILIES, SCHEDULES, WEIGHTS
from topologies.schema import allowed_values, options_of

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
    assert allowed(name) == (algorithm.exchanges != ("gossip",))
    assert allowed(name, exchange="gossip") == (algorithm.exchanges != ("server",))
    if not algorithm.communicates:
        return
    assert allowed(name, compression="rand_k") == (algorithm.compressors != "none")
    assert allowed(name, compression="top_k") == (algorithm.compressors == "any")


COMPONENTS = {
    **{f"{kind} {name}": (kind, name) for kind, table in TABLES.items() for name in table},
    **{f"participation {name}": ("participation", name) for name in KINDS},
    **{f"section {name}": ("section", name) for name in SECTIONS},
}


def component_of(kind, name):
    return {"participation": KINDS, "section": SECTIONS}.get(kind, {}).get(name) or find(kind, name)


@pytest.mark.parametrize("case", COMPONENTS)
def test_the_options_of_a_component_are_listed_and_explained(case):
    kind, name = COMPONENTS[case]
    component = component_of(kind, name)
    sheets = listing(name).split("\n\n")
    (sheet,) = [sheet for sheet in sheets if sheet.startswith(f"{kind} {name}: ")]
    lines = sheet.splitlines()[1:]
    if paper := source(component):
        assert lines.pop(0) == f"  {paper}"
    # The name of a section is an option of it; that of a component is how it is asked for.
    every = options_of(component).values()
    options = [option for option in every if option.name != "name" or kind == "section"]
    if not options:
        assert lines == ["  no options"]
        return
    for option, line, about in zip(options, lines[::2], lines[1::2], strict=True):
        assert line.startswith(f"  {option.name}: {allowed_values(option.annotation)} (")
        assert line.endswith("(required)" if option.required else ")")
        assert about.startswith("      ") and len(about.split()) > 1
    # Nothing is explained that the component does not take.
    parts = inspect.getmro(component)[:-1] if inspect.isclass(component) else [component]
    taken = {name for part in parts for name in inspect.signature(part).parameters}
    assert set(summaries(component)) <= {*taken, "**options"}


@pytest.mark.parametrize("table", [FAMILIES, WEIGHTS, SCHEDULES])
def test_the_parameters_of_graphs_are_listed(table):
    for name, entry in table.items():
        (sheet,) = [s for s in listing(name).split("\n\n") if entry.summary in s.splitlines()[0]]
        for key, parameter in (entry.parameters or {}).items():
            assert f"\n  {key}: {parameter.allowed} (" in sheet
            assert parameter.summary in sheet


def test_names_of_several_kinds_and_of_users_are_listed():
    parts = listing("poisson").split("\n\n")
    assert [part.split()[0] for part in parts] == ["data", "surrogate"]
    assert [part.split()[0] for part in listing("local").split("\n\n")] == ["algorithm", "section"]
    own = listing("user_components:Fails")
    assert own.startswith("component user_components:Fails: FedAvg that fails as")
    assert "  model_init: one of shared, per_client (default shared)" in own


@pytest.mark.parametrize(
    ("word", "offer"),
    [
        ("algoritms", r"did you mean 'algorithms'\? "),
        ("erdos_reny", r"did you mean 'erdos_renyi'\? "),
    ],
)
def test_what_cannot_be_listed_is_refused(word, offer):
    with pytest.raises(InputError, match=f"--list is '{word}'; {offer}allowed: experiments, alg"):
        listing(word)
