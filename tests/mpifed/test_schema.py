"""Options read off signatures: what annotations admit, and what messages say of the rest."""

from __future__ import annotations

import dataclasses
import json
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pytest
import yaml
from annotated_types import Ge, Gt, Interval, Le, Lt, MultipleOf
from hypothesis import given, settings
from hypothesis import strategies as st

from mpifed.components.registry import Section, checked_section, named, plain
from mpifed.config.configuration import Configuration, apply_overrides, resolve, to_mapping, to_yaml
from mpifed.config.experiments import experiment_names, read_experiment
from mpifed.errors import InputError
from mpifed.federation.participation import Dropout
from topologies.parameters import allowed_values
from topologies.schema import check_options, check_value

BOUNDS = {
    Ge: ("ge", "at least"),
    Gt: ("gt", "above"),
    Le: ("le", "at most"),
    Lt: ("lt", "below"),
}
# Annotated keeps equal annotations once, so that -0.0 would be shown as the 0 before it.
NUMBERS = st.floats(-1e6, 1e6).map(lambda number: number + 0.0) | st.integers(-1000, 1000)


@given(st.sampled_from(list(BOUNDS)), NUMBERS, NUMBERS)
def test_a_bound_admits_what_its_operator_does(bound, limit, value):
    name, words = BOUNDS[bound]
    annotation = Annotated[float, bound(limit)]
    if getattr(operator, name)(value, limit):
        assert check_value(value, annotation, "x") == value
        return
    with pytest.raises(InputError) as refused:
        check_value(value, annotation, "x")
    said = limit if isinstance(limit, int) else f"{limit:g}"
    assert re.fullmatch(
        f"x .*{re.escape(repr(value))}.*{words} {re.escape(str(said))}", str(refused.value)
    )


@pytest.mark.parametrize("bound", [MultipleOf(2), Interval(ge=1, le=2), "words"])
def test_a_bound_that_would_not_be_checked_fails(bound):
    for annotation in (Annotated[int, bound], Annotated[int, Ge(1), bound] | None):
        with pytest.raises(NotImplementedError, match="Ge, Gt, Le and Lt"):
            check_value(2, annotation, "x")
        with pytest.raises(NotImplementedError):
            allowed_values(annotation)


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: Annotated[int, Ge(1)] = 3
    kind: Literal["a", "b"] = "a"


def outer(*, inner: Inner = Inner(), factor: Annotated[float, Gt(0), Le(1)] | None = None):
    pass


def test_a_dataclass_is_read_from_a_mapping_of_its_fields():
    assert check_options(outer, {"inner": {"size": 5}}, "")["inner"] == Inner(size=5)
    for given_, message in (
        ({"inner": {"size": 0}}, "o.inner.size.* 0.*whole number.* 1"),
        ({"inner": {"sise": 2}}, "'o.inner.sise'.*'size'"),
        ({"inner": {"kind": "c"}}, "o.inner.kind.*'c'.* a, b"),
        ({"inner": 3}, "o.inner .*3.*mapping"),
        ({"factor": 2}, "o.factor.* 2.*number.* 0.* 1.*null"),
    ):
        with pytest.raises(InputError) as refused:
            check_options(outer, given_, "o")
        assert re.search(message, str(refused.value))


@pytest.mark.parametrize("section", ["rand_k", {"name": "rand_k"}, {"name": "rand_k", "k": None}])
def test_a_name_and_a_mapping_with_a_name_are_the_same_section(section):
    made = checked_section("compression", section, "compression")
    assert made == Section("rand_k", {"k": None, "fraction": 0.1, "indices": "seed"})
    # What is complete stays as it is, and is written as a mapping that reads back.
    assert checked_section("compression", made, "compression") is made
    assert checked_section("compression", plain(made), "compression") == made


def test_a_default_stands_in_for_a_name():
    assert named(None, "here", "fmmc") == ("fmmc", {})
    assert named({"k": 3}, "here", "fmmc") == ("fmmc", {"k": 3})
    made = checked_section(
        "compression", {"name": "bernoulli", "inner": {"name": "rand_k", "k": 3}}, "c"
    )
    assert made.options["inner"].options["k"] == 3


def test_a_configuration_has_types_and_is_plain_again():
    configuration = resolve({"evaluation": {"every": 7}, "participation": 0.5})
    assert configuration.evaluation.every == 7
    assert configuration.participation == 0.5 and configuration.n_training == 100
    assert configuration.algorithm.name == "fedem"
    assert configuration.algorithm.options["n_components"] == 3
    assert resolve(to_mapping(configuration)) == configuration
    dropped = resolve({"participation": {"name": "dropout", "rate": 0.1, "recovery": 0.2}})
    assert dropped.participation == Dropout(rate=0.1, recovery=0.2)
    assert to_mapping(dropped)["participation"] == {"name": "dropout", "rate": 0.1, "recovery": 0.2}


def annotated(
    *,
    sizes: tuple[int, ...] = (3, 4),
    pair: tuple[int, float] = (1, 2.0),
    widths: Sequence[Annotated[int, Ge(1)]] = (5,),
    place: Path = Path("a/b"),
    table: dict[str, int] | None = None,
) -> None:
    """Has options of the annotations that are usual in Python."""


def test_usual_annotations_are_understood():
    given = {"sizes": [5], "pair": [1, 3], "widths": [6, 7], "place": "x/y", "table": {"a": 3.0}}
    found = check_options(annotated, given, "model")
    assert found == {**given, "sizes": (5,), "pair": (1, 3.0), "place": Path("x/y")}
    assert plain(found) == given
    defaults = check_options(annotated, {}, "model")
    assert defaults["sizes"] == (3, 4) and defaults["widths"] == [5]
    assert plain(defaults)["place"] == "a/b"


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("sizes", 3, r"model\.sizes.* 3.*list \[A,B,\.\.\.\].*whole number"),
        ("widths", [0], "model.widths.*whole number.* 1"),
        ("place", 3, "model.place.* 3.*path"),
        ("table", 3, "model.table.* 3.*mapping"),
    ],
)
def test_wrong_values_of_usual_annotations_are_refused(option, value, said):
    with pytest.raises(InputError) as refused:
        check_options(annotated, {option: value}, "model")
    assert re.search(said, str(refused.value))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (np.ndarray, "ndarray"),
        (set[int], "set"),
        (bytes, "bytes"),
        (Callable[[int], int], "Callable"),
        (dict[int, str], "mapping"),
    ],
)
def test_no_value_of_a_file_fits_another_annotation(kind, name):
    for value in (3, "a", [1], {"a": "b"}):
        with pytest.raises(InputError, match=rf"x .*{re.escape(repr(value))}.*{name}"):
            check_value(value, kind, "x")


# Any words: complete, or refused in a sentence.

SECTIONS = [field.name for field in dataclasses.fields(Configuration)]
KEYS = [*SECTIONS, *(f"{section}.name" for section in SECTIONS), "x", "local.lr", "data.n_test"]
WORDS = ["fedavg", "gossip", "ring", "fmmc", "mlp", "digits", "bernoulli", "ranks", "x.h5", ":", ""]
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(WORDS))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(st.sampled_from(["name", "p", "hidden", 3]), inner, max_size=2),
    ),
    max_leaves=4,
)


@settings(deadline=None, derandomize=True)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=3))
def test_any_value_is_refused_in_a_sentence_or_complete(overrides):
    try:
        mapping = apply_overrides(read_experiment("synthetic-fedem"), overrides)
        configuration = resolve(mapping, ranks=3)
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert resolve(yaml.safe_load(to_yaml(configuration))) == configuration
        assert resolve(json.loads(json.dumps(to_mapping(configuration)))) == configuration


@pytest.mark.parametrize("name", experiment_names())
def test_the_resolved_configuration_resolves_to_itself(name):
    configuration = resolve(read_experiment(name))
    assert resolve(yaml.safe_load(to_yaml(configuration))) == configuration
    assert resolve(json.loads(json.dumps(to_mapping(configuration)))) == configuration
