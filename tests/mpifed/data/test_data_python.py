"""Data as Python has them: tables, data sets, and clients' samples in mappings and lists."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from loading import all_rows, dataset_of, sorted_rows
from torch.utils.data import TensorDataset, random_split

import mpifed
from mpifed.dataset import Dataset
from mpifed.errors import InputError
from mpifed.testing import load_dataset

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(90, 4)), np.arange(90) % 3
WHOSE = np.repeat(["ann", "bob", "cleo"], [20, 40, 30])
TABLE = pd.DataFrame(
    {
        "age": RANDOM.normal(50, 9, 90),
        "sex": pd.Categorical(np.array(["f", "m"])[np.arange(90) % 2]),
        "code": RANDOM.integers(0, 3, 90),
        "dose": np.where(Y == 1, np.nan, RANDOM.normal(size=90)),
        "clinic": np.array(["NA", "Oslo"])[np.arange(90) // 45],
        "ill": np.array(["no", "yes"])[RANDOM.integers(0, 2, 90)],
    }
)
READING = {"label": "ill", "client": "clinic", "categories": ["code"], "missing": "mean"}
SETTINGS = {"clients": 3, "rounds": 2, "algorithm": "fedavg"}


class Hub:
    """Rows with names, as a data set of Hugging Face."""

    def __init__(self, **columns) -> None:
        self.columns, self.column_names = columns, list(columns)
        self.features = {"label": type("ClassLabel", (), {"names": ["a", "b", "c"]})}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, number: int) -> dict:
        return {name: column[number] for name, column in self.columns.items()}

    def to_pandas(self) -> pd.DataFrame:
        return pd.DataFrame(self.columns)


def loaded(data: dict, n_clients: int) -> Dataset:
    return load_dataset(data, n_clients)


def alike(one: Dataset, other: Dataset) -> bool:
    """Whether two data sets give the same samples to the same clients."""
    clients = np.arange(one.description.n_clients)
    first, second = (each.load(clients, torch.float64) for each in (one, other))
    return all(
        torch.equal(a, b)
        for name in ("train", "val", "test")
        for a, b in (
            (getattr(first, name).x, getattr(second, name).x),
            (getattr(first, name).y, getattr(second, name).y),
        )
    )


@pytest.mark.parametrize("missing", ["mean", "drop"])
def test_a_table_is_read_as_its_csv_file_and_its_parquet_file(tmp_path: Path, missing: str):
    reading = {**READING, "missing": missing}
    table = loaded(mpifed.frame(TABLE, **reading), 2)
    TABLE.to_csv(tmp_path / "own.csv", index=False)
    TABLE.to_parquet(tmp_path / "own.parquet")
    common = {**reading, "standardise": True}
    csv = dataset_of("csv", 2, path=str(tmp_path / "own.csv"), missing_values=[], **common)
    parquet = dataset_of("parquet", 2, raw=str(tmp_path / "own.parquet"), **common)
    assert alike(table, csv) and alike(table, parquet)
    for each in (table, csv, parquet):
        about = each.description
        assert about.client_names == ("NA", "Oslo") and about.class_names == ("no", "yes")
        assert about.input_shape == (2 + 2 + 3,)


def test_columns_of_a_table_are_what_their_types_say():
    columns = {
        "a": pd.array([1, None, 3] * 10, dtype="Int64"),
        "b": np.array([True, False, True] * 10),
        "c": ["1", "2", "07"] * 10,
        "d": pd.to_datetime(["2026-01-01", "2026-01-02", "2026-01-03"] * 10),
        "label": [0.5, 1.5, 2.5] * 10,
    }
    data = mpifed.frame(pd.DataFrame(columns), missing="mean", standardise=False)
    dataset = loaded({**data, "partition": "contiguous", "split": "in_order"}, 1)
    x, y = all_rows(dataset)
    expected = [[1, 1, 0, 1, 0, 1, 0, 0], [2, 0, 0, 0, 1, 0, 1, 0], [3, 1, 1, 0, 0, 0, 0, 1]]
    assert np.array_equal(x[:3], expected) and y[:3, 0].tolist() == [0.5, 1.5, 2.5]
    assert any("'d'" in remark and " drop=[d]" in remark for remark in dataset.remarks)


WRONG_TABLES = {
    "no such column": (lambda: mpifed.frame(TABLE, label="il"), r"label is 'il'.*'ill'"),
    "a gap": (lambda: mpifed.frame(TABLE, "ill"), r"'dose' has no value on row 1\b.*\(missing may"),
    "an array": (lambda: mpifed.frame(X), "ndarray.*DataFrame"),
    "lists": (
        lambda: mpifed.frame(pd.DataFrame({"a": [[1]] * 9, "label": range(9)})),
        r"'a' holds lists.*\(drop=\[a\]",
    ),
    "a column twice": (lambda: mpifed.frame(pd.DataFrame([[1, 2]], columns=["a", "a"])), "'a'"),
    "other columns": (
        lambda: mpifed.frame({"ann": TABLE, "bob": TABLE.drop(columns="age")}, "ill"),
        "'bob'.*'ann'.*'age'",
    ),
    "a word": (lambda: mpifed.frame(NUMBERS, clients="clinic"), "clients is no.*'client'"),
}


@pytest.mark.parametrize("case", WRONG_TABLES)
def test_wrong_tables_are_refused_in_one_sentence(case: str):
    make, message = WRONG_TABLES[case]
    with pytest.raises(InputError, match=message) as refused:
        make()
    assert "\n" not in str(refused.value) and "data.missing" not in str(refused.value)


BY_NAME = {name: (X[name == WHOSE], Y[name == WHOSE]) for name in ("bob", "ann", "cleo")}
NUMBERS = pd.DataFrame(X).assign(label=Y)
TENSORS = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
SAMPLES_OF_CLIENTS = {
    "pairs by name": BY_NAME,
    "lists by name": {name: list(pair) for name, pair in BY_NAME.items()},
    "data sets by name": {
        name: TensorDataset(*map(torch.from_numpy, pair)) for name, pair in BY_NAME.items()
    },
    "rows by name": {name: Hub(image=list(x), label=y) for name, (x, y) in BY_NAME.items()},
}


@pytest.mark.parametrize("case", SAMPLES_OF_CLIENTS)
def test_samples_of_clients_by_name(case: str):
    dataset = loaded(mpifed.arrays(SAMPLES_OF_CLIENTS[case]), 3)
    assert dataset.description.client_names == ("ann", "bob", "cleo")
    assert dataset.description.n_samples.tolist() == [20, 40, 30]
    shards = dataset.load(np.arange(3), torch.float64)
    of_bob = np.concatenate([getattr(shards, s).of_client(1).x for s in ("train", "val", "test")])
    assert np.array_equal(
        sorted_rows(of_bob, np.zeros(40)), sorted_rows(BY_NAME["bob"][0], np.zeros(40))
    )


@pytest.mark.parametrize(
    "of_each",
    [
        random_split(TENSORS, [20, 40, 30]),
        [(X[:20], Y[:20]), (X[20:60], Y[20:60]), (X[60:], Y[60:])],
    ],
)
def test_samples_of_clients_in_a_list_are_numbered(of_each):
    about = loaded(mpifed.arrays(of_each), 3).description
    assert about.client_names == ("0", "1", "2") and about.n_samples.tolist() == [20, 40, 30]


def test_tables_of_clients_keep_their_names():
    of_each = {name: NUMBERS[name == WHOSE] for name in ("bob", "ann", "cleo")}
    whole = mpifed.frame(NUMBERS.assign(whose=WHOSE), client="whose")
    assert alike(loaded(mpifed.frame(of_each), 3), loaded(whole, 3))
    names = [f"{number}" for number in range(3)]
    listed = loaded(mpifed.frame(list(of_each.values())), 3)
    assert list(listed.description.client_names) == names


def test_samples_for_tests_may_be_passed_beside_the_others():
    marks = np.arange(90) >= 60
    expected = loaded(mpifed.arrays(X, Y, is_test=marks), 3)
    train, test = TensorDataset(*TENSORS[:60]), TensorDataset(*TENSORS[60:])
    ways = [
        mpifed.arrays(X[:60], Y[:60], test=(X[60:], Y[60:])),
        mpifed.arrays(train, test=test),
        mpifed.arrays({"train": train, "test": test}),
        mpifed.frame(NUMBERS[:60], test=NUMBERS[60:], standardise=False),
        mpifed.frame({"train": NUMBERS[:60], "test": NUMBERS[60:]}, standardise=False),
        mpifed.frame(NUMBERS.assign(held_out=marks), test="held_out", standardise=False),
    ]
    assert all(alike(loaded(each, 3), expected) for each in ways)
    of_each = {name: {"train": pair, "test": (X[:9], Y[:9])} for name, pair in BY_NAME.items()}
    tables = {name: {"train": NUMBERS[name == WHOSE], "test": NUMBERS[:9]} for name in of_each}
    for data in (mpifed.arrays(of_each), mpifed.frame(tables)):
        about = loaded(data, 3).description
        assert about.n_train.tolist() == [20, 40, 30] and about.n_test.tolist() == [9, 9, 9]


WRONG_SAMPLES = {
    "an unknown word": (lambda: mpifed.arrays(X, Y, client_names=1), "client_names is no option"),
    "a likely word": (lambda: mpifed.arrays(X, Y, divisr=1), "divisr is no.*'divisor'"),
    "marks": (lambda: mpifed.arrays(X, Y, test=Y > 1), "test is a ndarray.*is_test="),
    "tests twice": (
        lambda: mpifed.arrays(X, Y, test=(X, Y), is_test=Y > 1),
        "test is given beside is_test",
    ),
    "tests of no client": (lambda: mpifed.arrays(BY_NAME, test=(X, Y)), "clients.*test, none"),
    "other shapes": (
        lambda: mpifed.arrays({"ann": (X, Y), "bob": (X[:, :3], Y)}),
        r"'bob'.*\(3,\).*'ann'.*\(4,\)",
    ),
    "no targets": (lambda: mpifed.arrays({"ann": (X, Y), "bob": X}), "targets.*'bob', none"),
    "clients twice": (lambda: mpifed.arrays(BY_NAME, clients=Y), "clients is given"),
    "another split": (lambda: mpifed.arrays({"train": TENSORS, "dev": TENSORS}), "train and dev"),
    "a column": (lambda: mpifed.arrays(Hub(image=X, label=Y), label="lab"), "'lab'.*'label'"),
}


@pytest.mark.parametrize("case", WRONG_SAMPLES)
def test_wrong_arguments_are_refused_in_one_sentence(case: str):
    make, message = WRONG_SAMPLES[case]
    with pytest.raises(InputError, match=message) as refused:
        make()
    assert "\n" not in str(refused.value)


def test_rows_with_names_have_usual_columns_and_class_names():
    pictures = RANDOM.integers(0, 256, (90, 5, 4), np.uint8)
    data = mpifed.arrays(Hub(img=pictures, label=Y, writer=WHOSE), client="writer", divisor=255)
    about = loaded(data, 3).description
    assert about.class_names == ("a", "b", "c") and about.input_shape == (5, 4)
    assert about.client_names == ("ann", "bob", "cleo")
    other = mpifed.arrays(Hub(img=pictures, z=X, kind=Y), features="z", label="kind")
    assert loaded(other, 3).description.input_shape == (4,)


PASSED = {
    "a torch data set": TENSORS,
    "a pair": (X, Y),
    "arrays by name": {"x": X, "y": Y},
    "rows with names": Hub(image=X, label=Y),
    "a table": NUMBERS,
    "a table of the hub": Hub(a=X[:, 0], b=X[:, 1], label=Y),
    "samples by client": BY_NAME,
    "tables by client": {name: NUMBERS[name == WHOSE] for name in BY_NAME},
}


@pytest.mark.parametrize("case", PASSED)
def test_samples_are_passed_as_data_themselves(case: str, tmp_path: Path):
    by_client = "client" in case
    options = {"data.partition": "natural" if by_client else "dirichlet", **SETTINGS}
    result = mpifed.run(data=PASSED[case], output=tmp_path / "run", **options)
    sizes = (result.clients["n_train"] + result.clients["n_test"]).tolist()
    assert (sum(sizes) >= 60) and (sizes == [16, 32, 24]) == by_client
    if by_client:
        assert result.clients["client_name"].tolist() == ["ann", "bob", "cleo"]


@pytest.mark.parametrize("prefix", ["data.", ""])
def test_columns_of_a_table_are_named_as_those_of_a_file(prefix: str, tmp_path: Path):
    options = {f"{prefix}{name}": value for name, value in READING.items()}
    named = mpifed.run(data=TABLE, output=tmp_path / "named", rounds=2, **options)
    framed = mpifed.run(data=mpifed.frame(TABLE, **READING), output=tmp_path / "framed", rounds=2)
    assert named.summary["state_digest"] == framed.summary["state_digest"]
    assert named.clients["client_name"].tolist() == ["NA", "Oslo"]


@pytest.mark.parametrize("data", [mpifed.frame(TABLE, **READING), (X, Y)])
def test_samples_that_name_their_columns_refuse_other_names(data, tmp_path: Path):
    with pytest.raises(InputError, match=r"label.*"):
        mpifed.run(data=data, output=tmp_path / "run", **{"data.label": "sex"})
    assert not (tmp_path / "run").exists()


def test_a_table_without_a_known_label_asks_for_it(tmp_path: Path):
    with pytest.raises(InputError, match=r"mpifed\.frame\(table, label=NAME\)"):
        mpifed.run(data=TABLE, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("keyword", ["features", "label", "client"])
def test_names_of_columns_are_refused_where_samples_have_none(keyword):
    x, y = np.zeros((4, 2)), np.arange(4) % 2
    with pytest.raises(mpifed.InputError, match=f"{keyword} .*clients="):
        mpifed.arrays(x, y, **{keyword: "hospital"})


@pytest.mark.parametrize("keyword", ["drop", "categories", "features", "missing_values"])
def test_one_name_is_a_list_of_one(keyword: str, tmp_path: Path):
    table = TABLE.drop(columns=["dose", "clinic"])
    name = "?" if keyword == "missing_values" else "code"
    reading = {"label": "ill"}
    one, listed = (mpifed.frame(table, **reading, **{keyword: each}) for each in (name, [name]))
    assert one["digest"] == listed["digest"]
    table.to_csv(tmp_path / "table.csv", index=False)
    options = {f"data.{key}": value for key, value in {**reading, keyword: name}.items()}
    run = mpifed.run(data=tmp_path / "table.csv", rounds=1, output=tmp_path / "run", **options)
    stored = yaml.safe_load((run.directory / "config.yaml").read_text(encoding="utf-8"))
    assert stored["data"][keyword] == [name]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"ann": (X[:40], Y[:30]), "bob": (X[40:], Y[40:])}, "client ann has 40 samples and 30"),
        ((X, Y[:80]), "data has 90 samples and 80 labels"),
    ],
)
def test_samples_without_labels_are_counted(data, message: str, tmp_path: Path):
    with pytest.raises(InputError, match=message):
        mpifed.run(data=data, rounds=2, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("keyword", ["label", "client"])
def test_a_column_is_named_and_not_passed(keyword):
    table = pd.DataFrame({"age": [1.0, 2.0], "hospital": ["a", "b"], "label": [0, 1]})
    with pytest.raises(mpifed.InputError, match=f"{keyword} is a Series.* name of a column"):
        mpifed.frame(table, **{keyword: table["hospital"]})
    with pytest.raises(mpifed.InputError, match="labels is no option; did you mean 'label'"):
        mpifed.frame(table, labels="hospital")


def test_labels_that_are_all_alike_are_remarked_upon():
    run = load_dataset(mpifed.arrays(np.zeros((20, 2)), np.ones(20, int)), 2)
    assert any("same label" in line for line in run.remarks)
