"""A user's own samples: arrays and torch data sets from Python, CSV and .npz files."""

from __future__ import annotations

import gc
import json
import lzma
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as generated
from loading import all_rows, dataset_of, holds, labels_by_client, sorted_rows
from torch.utils.data import Dataset, TensorDataset

import mpifed
from mpifed.dataset import Dataset as FederatedDataset
from mpifed.errors import InputError
from mpifed.testing import load_dataset, run_command

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(90, 4))
Y = RANDOM.integers(0, 3, 90)
WHOSE = np.repeat(["ann", "bob", "cleo"], [20, 40, 30])


def of_arrays(data: dict, n_clients: int = 3, **options) -> FederatedDataset:
    return load_dataset({**data, **options}, n_clients)


def test_one_line_runs_own_arrays(tmp_path: Path):
    result = mpifed.run(
        "digits-fedem",
        data=mpifed.arrays(X, Y, clients=WHOSE),
        clients=3,
        rounds=2,
        output=tmp_path / "run",
    )
    assert result.clients["n_train"].tolist() == [12, 24, 18]
    stored = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["data"]
    assert stored["digest"] == mpifed.arrays(X, Y, clients=WHOSE)["digest"]
    assert stored["partition"] == "natural"


def test_a_run_is_resumed_with_the_same_arrays_only(tmp_path: Path):
    options = {"clients": 3, "checkpoint.every": 1, "output": tmp_path / "cut"}
    mpifed.run("digits-fedem", data=mpifed.arrays(X, Y), rounds=1, **options)
    with pytest.raises(InputError, match=r"data\.digest.*'\w{64}'.*'\w{64}'"):
        mpifed.run("digits-fedem", data=mpifed.arrays(X + 1, Y), rounds=3, resume=True, **options)
    gc.collect()
    with pytest.raises(InputError, match=r"data\.name.*'arrays'.*mpifed\.arrays\(\.\.\.\)"):
        mpifed.run(rounds=3, resume=True, **options)
    resumed = mpifed.run("digits-fedem", data=mpifed.arrays(X, Y), rounds=3, resume=True, **options)
    whole = mpifed.run(
        "digits-fedem",
        data=mpifed.arrays(X, Y),
        rounds=3,
        **{**options, "output": tmp_path / "whole"},
    )
    assert resumed.summary["state_digest"] == whole.summary["state_digest"]


def test_clients_are_sources_in_their_order():
    dataset = of_arrays(mpifed.arrays(X, Y, clients=WHOSE))
    assert [len(labels) for labels in labels_by_client(dataset)] == [20, 40, 30]
    x, y = all_rows(dataset)
    assert np.array_equal(sorted_rows(x, y), sorted_rows(X, Y))
    dealt = of_arrays(mpifed.arrays(X, Y, clients=WHOSE, partition="dirichlet"), 5)
    assert holds(dealt, np.round(X), Y, 1) and dealt.description.n_clients == 5
    assert of_arrays(mpifed.arrays(X, Y), 9).description.n_train.tolist() == [6] * 9


class Pairs(Dataset):
    """Pictures as tensors and labels as numbers, as torchvision's data sets."""

    def __len__(self) -> int:
        return len(Y)

    def __getitem__(self, number: int):
        return torch.from_numpy(X[number]).reshape(1, 2, 2), int(Y[number])


@pytest.mark.parametrize(
    "dataset", [Pairs(), TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))]
)
def test_torch_data_sets(dataset):
    found = of_arrays(mpifed.arrays(dataset))
    assert holds(found, np.round(X), Y, 1)
    subset = of_arrays(mpifed.arrays(torch.utils.data.Subset(dataset, range(10, 60))))
    assert holds(subset, np.round(X[10:60]), Y[10:60], 1)


@pytest.mark.parametrize(
    ("y", "task", "shape", "n_classes"),
    [
        (Y, "classification", (), 3),
        (Y.astype(float), "classification", (), 3),
        (Y + 0.5, "regression", (1,), 1),
        (Y[:, None] > 0, "classification", (), 2),
        (np.array(["b", "a", "c"])[Y], "classification", (), 3),
        (Y - 1, "classification", (), 3),
        (1 - np.eye(3, dtype=int)[Y], "multi_label", (3,), 3),
        (X[:, :2], "regression", (2,), 2),
        (None, "unlabelled", (0,), 0),
    ],
)
def test_the_task_follows_from_the_targets(y, task, shape, n_classes):
    dataset = of_arrays(mpifed.arrays(X, y))
    about = dataset.description
    assert (about.task, about.target_shape, about.n_classes) == (task, shape, n_classes)
    x, found = all_rows(dataset)
    order, given = np.argsort(x[:, 0]), np.argsort(X[:, 0])
    if y is not None and y.dtype.kind == "U":
        assert np.array_equal(np.array(about.class_names)[found[order]], y[given])
    elif y is not None:
        offset = min(0, y.min()) if task == "classification" else 0
        assert np.array_equal(found[order].reshape(-1), (y[given] - offset * 1.0).reshape(-1))


def test_labels_at_positions_are_a_sequence():
    labels = RANDOM.integers(0, 5, X.shape)
    dataset = of_arrays(mpifed.arrays(X, labels, task="sequence"))
    assert (dataset.description.task, dataset.description.n_classes) == ("sequence", 5)
    x, y = all_rows(dataset)
    order, given = np.argsort(x[:, 0]), np.argsort(X[:, 0])
    assert np.array_equal(y[order], labels[given])
    refused(r"\(90,\).*data\.task.*'sequence'.*\(90, 4\)", X, Y, task="sequence")


def test_bytes_stay_bytes_and_are_divided():
    pictures = RANDOM.integers(0, 256, (60, 1, 5, 5), np.uint8)
    dataset = of_arrays(mpifed.arrays(pictures, Y[:60], divisor=255, rotations=[90]))
    assert dataset.is_uint8 and dataset.divisor == 255
    assert holds(dataset, np.rot90(pictures, 1, (2, 3)), Y[:60], 255)
    for kind in (np.float32, ">f8"):
        x, _ = all_rows(of_arrays(mpifed.arrays(X.astype(kind), Y)))
        assert np.array_equal(sorted_rows(x, 0 * Y), sorted_rows(X.astype(kind), 0 * Y))


def test_marked_samples_test():
    marks = np.arange(90) % 3 == 0
    dataset = of_arrays(mpifed.arrays(X, Y, clients=WHOSE, is_test=marks, split="published"))
    test = dataset.load(np.arange(3), torch.float64).test
    assert np.array_equal(test.x.numpy(), X[marks]) and len(test.y) == 30


def refused(message: str, *arguments, n_clients: int = 3, **options):
    with pytest.raises(InputError, match=message):
        of_arrays(mpifed.arrays(*arguments, **options), n_clients)


@pytest.mark.parametrize("what", ["clients", "y"])
def test_half_of_a_surrogate_pair_is_no_name(what):
    whose = np.where(np.arange(90) < 40, "a\ud800", "b")
    refused(r"'a\\ud800'.*UTF-8", X, **{"y": Y, what: whose}, n_clients=2)


def test_arrays_changed_in_between_are_refused():
    own = X + 17
    data = mpifed.arrays(own, Y)
    own[3] += 1
    with pytest.raises(InputError, match=r"changed.*mpifed\.arrays"):
        of_arrays(data)


def test_equal_arrays_replace_those_that_were_changed():
    own = X + 18
    first = mpifed.arrays(own, Y)
    own[0] += 1
    again = mpifed.arrays(X + 18, Y)
    assert again["digest"] == first["digest"]
    assert holds(of_arrays(again), np.round(X + 18), Y)


kinds = st.sampled_from(["u1", "<i4", ">i4", "<f4", "<f8", ">f8"]).map(np.dtype)
shapes = generated.array_shapes(min_dims=1, max_dims=3, max_side=4)


@given(st.data(), kinds, shapes, st.integers(0, 10**6))
def test_digests_are_of_values_whatever_their_layout(data, kind, shape, at):
    x = data.draw(
        generated.arrays(kind, shape, elements={"allow_nan": False} if kind.kind == "f" else None)
    )

    def digest_of(*samples):
        return mpifed.arrays(*samples)["digest"]

    digest = digest_of(x)
    assert digest_of(np.asfortranarray(x)) == digest
    assert digest_of(np.repeat(x, 2, axis=0)[::2]) == digest
    assert digest_of(x.astype(x.dtype.newbyteorder("S"))) == digest
    changed = x.copy()
    changed.reshape(-1)[at % x.size] = 7 if changed.reshape(-1)[at % x.size] != 7 else 8
    assert digest_of(changed) != digest
    assert digest_of(x, x) != digest != digest_of(x[None])


def npz(path: Path, n_clients: int = 3, **options) -> FederatedDataset:
    return dataset_of("npz", n_clients, path=str(path), **options)


def test_npz_files(tmp_path: Path):
    path = tmp_path / "own.npz"
    np.savez_compressed(path, x=X, y=Y, whose=WHOSE, marks=Y == 1, other=X * 2)
    assert holds(npz(path), np.round(X), Y, 1)
    dataset = npz(path, client="whose")
    assert [len(labels) for labels in labels_by_client(dataset)] == [20, 40, 30]
    assert dataset.description.source == "own"
    assert holds(npz(path, features="other"), np.round(X * 2), Y, 1)
    dataset = npz(path, label=None, test="marks", split="published", partition="iid")
    assert dataset.description.task == "unlabelled"
    assert dataset.description.n_test.sum() == (Y == 1).sum()


CSV = "age,whose,risk,dose\n" + "".join(
    f"{20 + i},{WHOSE[i]},{['low', 'high'][i % 2]},{0.5 * i!r}\n" for i in range(90)
)


def table(path: Path, n_clients: int = 3, **options) -> FederatedDataset:
    options = {"label": "risk", "standardise": False, **options}
    return dataset_of("csv", n_clients, path=str(path), **options)


def test_csv_files(tmp_path: Path):
    path = tmp_path / "own.csv.xz"
    path.write_bytes(lzma.compress(CSV.encode("utf-8-sig")))
    dataset = table(path, client="whose")
    about = dataset.description
    assert (about.source, about.input_shape, about.class_names) == ("own", (2,), ("high", "low"))
    x, y = all_rows(dataset)
    order = np.argsort(x[:, 0])
    assert np.array_equal(x[order], np.stack([20 + np.arange(90), 0.5 * np.arange(90)], 1))
    assert np.array_equal(y[order], 1 - np.arange(90) % 2)
    assert [len(labels) for labels in labels_by_client(dataset)] == [20, 40, 30]
    regression = table(path, client="whose", label="dose", features=["age"])
    assert regression.description.task == "regression"
    tabs = tmp_path / "tabs.csv"
    tabs.write_text(CSV.replace(",", "\t").replace("\n", "\r\n"))
    assert holds(table(tabs, features=["age"], delimiter="tab"), x[:, :1], y, 1)
    quoted = tmp_path / "quoted.csv"
    quoted.write_text('"a","la,bel"\n1,"x ""y"""\n\n2,z\n' * 1 + "3,z\n4,z\n")
    assert table(quoted, 1, label="la,bel", min_samples=2).description.class_names == ('x "y"', "z")


@given(
    generated.arrays(
        np.float64,
        st.tuples(st.integers(5, 12), st.integers(1, 4)),
        elements=st.floats(allow_nan=False, allow_infinity=False),
    )
)
def test_numbers_come_back_bit_for_bit(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("csv") / "own.csv"
    rows = [",".join(map(repr, row)) for row in values.tolist()]
    path.write_text("\n".join([",".join(f"c{i}" for i in range(values.shape[1])), *rows]))
    dataset = table(path, 1, label=None, partition="contiguous", split="in_order")
    assert np.array_equal(all_rows(dataset)[0], values)


BAD_CSV = {
    "twice": ("a,a\n1,2\n", {}, "first line.*column"),
    "all faults": ("age,dose,risk\n1,?,low\n\nold,1,low\n3,4,low,5\n6\n", {}, r"line 5\b.*\b4\b.*"
                   r"\b3\b.*'age'.*'old'.*line 4\b.*data.categories.*'dose'.*line 2\b.*\b1\b"
                   r".*data.missing.*mean.*drop.*'risk'.*line 6\b"),
    "more than the first": ("age,risk\n1,low,3\n2,low,3\n", {}, r"line 2\b.*columns"),
    "decimals": ("a;risk\n1,5;low\n0,25;low\n", {}, r"'a'.*data.decimal=comma.*'1,5'.*line 2\b"),
    "prose": ("a,risk\n" + "".join(f"t{i},low\n" for i in range(1001)), {},
              "'a'.* 1001 .* 1000 .*data.drop"),
    "no rows": ("a,risk\n", {}, "no line.*values"),
    "empty": ("a,b,risk\n1,,low\n2,,low\n", {"missing": "mean"}, "'b'.*empty.*data.drop"),
    "label": (CSV, {"label": "rosk", "client": "who"},
              "data.label.*'rosk'.*'risk'.*data.client.*'who'.*'whose'"),
    "nothing": ("", {}, "first line.*column.*empty"),
    "no names": ("\n1,2\n", {}, "first line.*column"),
    "a decimal comma beside a whole number": ("a;risk\n2;low\n1,5;low\n", {},
        "'a'.*data.decimal=comma.*'1,5'.*line 3$"),
    "a bad cell among decimal commas": (
        "a;risk\n" + "".join(f"{i},5;low\n" for i in range(9)) + "1,x;low\n",
        {"decimal": "comma"}, r"'a'.*'1,x'.*line 11\b.*data.categories"),
    "points among commas": ("a;risk\n1.500;low\n1.250;low\n", {"decimal": "comma"},
        r"'a'.*data.decimal=point.*'1.500'.*line 2\b"),
    "infinite": ("a,b,risk\n1,1,low\n,1,low\n1,1,low\n2,-inf,low\n3,1e999,low\n",
        {"missing": "drop"}, r"'b'.*finite.*line 5\b.*\b1\b"),
    "infinite targets": ("a,risk\n1,0.5\n2,inf\n3,1\n", {}, r"'risk'.*finite.*line 3\b"),
    "spelt by Python alone": ("a,risk\n1_1,low\n3,low\n", {}, r"'a'.*'1_1'.*line 2\b"),
    "blanks": ("a,risk\n1,low\n  ,low\n", {}, r"'a'.*line 3\b.*data.missing"),
    "UTF-16": ("a,risk\n1,l\u00f8w\n".encode("utf-16"), {}, "line 1.*encoding=utf-16"),
    "UTF-16 without mark": ("a,risk\n1,low\n".encode("utf-16-le"), {}, "line 1.*encoding=utf-16"),
    "CP1252": ("a,risk\n1,low\n1,l\u00f8w\n".encode("cp1252"), {}, "line 3.*encoding=cp1252"),
    "nothing complete": ("a,b,risk\n,1,low\n1,,low\n", {"missing": "drop"},
                         "2 of 2 .*data.missing=drop"),
    "no labels to deal by": (CSV, {"label": "dose", "features": ["age"], "partition": "dirichlet"},
                             "data.partition.*'dirichlet'.*'own'.*data.partition=iid"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_CSV)
def test_bad_csv_files_are_refused(tmp_path: Path, case: str):
    text, options, message = BAD_CSV[case]
    path = tmp_path / "own.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=message):
        table(path, **options)


def lines_of(*rows: str) -> str:
    """A file with each of the rows, behind a number, twenty times."""
    return "a,whose,risk\n" + "".join(f"{i},{row}\n" for i in range(20) for row in rows)


@pytest.mark.parametrize(
    ("ids", "names"),
    [
        (("1_11", "11_1"), ("11_1", "1_11")),
        (("007", "7"), ("007", "7")),
        (("1", "1.0"), ("1", "1.0")),
        (("12345678901234567890123", "12345678901234567890124"),) * 2,
        (("\u0661", "1"), ("1", "\u0661")),
        (("10", "9"), ("9", "10")),  # numbers, in their order
        (("1e1", "nan1"), ("1e1", "nan1")),
    ],
)
def test_clients_keep_the_spelling_of_their_ids(tmp_path: Path, ids, names):
    path = tmp_path / "own.csv"
    path.write_text(lines_of(*(f"{each},{place}" for place, each in enumerate(ids))))
    dataset = table(path, 2, client="whose")
    assert dataset.description.client_names == names
    assert [set(labels) for labels in labels_by_client(dataset)] == [{ids.index(n)} for n in names]


@pytest.mark.parametrize(
    ("labels", "class_names", "task"),
    [
        (("1_11", "11_1"), ("11_1", "1_11"), "classification"),
        (("\u0661", "1"), ("1", "\u0661"), "classification"),
        (("1_0", "2.5"), ("1_0", "2.5"), "classification"),
        (("2", "1"), (), "classification"),
        (("1e1", "2.5"), (), "regression"),
        (("-.5", "+2."), (), "regression"),
    ],
)
def test_labels_are_numbers_only_where_all_are(tmp_path: Path, labels, class_names, task):
    path = tmp_path / "own.csv"
    path.write_text(lines_of(*(f"x,{each}" for each in labels)))
    about = table(path, 2, drop=["whose"]).description
    assert (about.class_names, about.task) == (class_names, task)


def test_targets_have_the_decimals_of_inputs(tmp_path: Path):
    path = tmp_path / "own.csv"
    path.write_text("a;risk\n" + "1,5;2,25\n0,1;-1\n" * 10)
    x, y = all_rows(table(path, 1, decimal="comma"))
    assert sorted(set(map(tuple, np.column_stack([x, y])))) == [(0.1, -1), (1.5, 2.25)]
    remarks = table(path, 1, features=["a"], categories=["a"]).remarks
    assert any("'risk'" in remark and "decimal" in remark for remark in remarks)


def test_rows_and_clients_that_are_left_out_are_named(tmp_path: Path):
    path = tmp_path / "own.csv"
    path.write_text(lines_of("NA,0", "Oslo,1", "Oslo,0") + "?,Oslo,1\n")
    dataset = table(path, 1, client="whose", missing="drop")
    assert dataset.description.client_names == ("Oslo",)
    assert any("21 of 61" in remark and "'NA'" in remark for remark in dataset.remarks)
    with pytest.raises(InputError, match=r"'whose'.*line 2\b.*\b19\b"):
        table(path, 1, client="whose")


@pytest.mark.parametrize(
    ("values", "columns"),
    [
        ([f"2026-{1 + i % 12:02}-{1 + i % 28:02}" for i in range(90)], 84),
        ([f"{1 + i % 9}.{1 + i % 12}.2026 08:30" for i in range(90)], 36),
        ([f"drug {i % 60}" for i in range(90)], 60),
    ],
)
def test_dates_and_many_texts_are_told_with_what_leaves_them_out(tmp_path: Path, values, columns):
    path = tmp_path / "own.csv"
    rows = "".join(f"{i},{value},{i % 2}\n" for i, value in enumerate(values))
    path.write_text("age,admitted,risk\n" + rows)
    dataset = table(path)
    (remark,) = [each for each in dataset.remarks if "data.drop=[admitted]" in each]
    assert f" {columns} " in remark and dataset.description.input_shape == (1 + columns,)
    dropped = table(path, drop=["admitted"])
    assert dropped.description.input_shape == (1,)
    assert not any("admitted" in remark for remark in dropped.remarks)


def test_few_texts_are_not_remarked_upon(tmp_path: Path):
    path = tmp_path / "own.csv"
    path.write_text("age,ward,risk\n" + "".join(f"{i % 40},w{i % 9},{i % 2}\n" for i in range(90)))
    assert not any("data.drop" in remark for remark in table(path).remarks)


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "latin-1"])
def test_other_encodings_are_read_where_they_are_named(tmp_path: Path, encoding: str):
    path = tmp_path / "own.csv"
    path.write_bytes(lines_of("Troms\u00f8,h\u00f8y", "Oslo,lav").encode(encoding))
    about = table(path, 2, client="whose", encoding=encoding).description
    assert about.client_names == ("Oslo", "Troms\u00f8")
    assert about.class_names == ("h\u00f8y", "lav")
    with pytest.raises(InputError, match=r"data\.encoding"):
        table(path, encoding="utf-8")
    with pytest.raises(InputError, match=r"data\.encoding.*'utf8x'.*cp1252"):
        table(path, encoding="utf8x")


def test_a_client_that_is_called_na_can_be_kept(tmp_path: Path):
    path = tmp_path / "own.csv"
    path.write_text(lines_of("NA,0", "Oslo,1"))
    with pytest.raises(InputError, match=r"'whose'.*'NA'.*data\.missing_values=\[\]"):
        table(path, 2, client="whose")
    dataset = table(path, 2, client="whose", missing_values=[])
    assert dataset.description.client_names == ("NA", "Oslo")
    remarks = table(path, 1, client="whose", missing="drop").remarks
    assert any("'NA'" in each and "data.missing_values=[]" in each for each in remarks)
    path.write_text(lines_of("-9,0", "5,1", ",1"))
    x, _ = all_rows(table(path, 1, missing="drop", missing_values=["-9"]))
    assert len(x) == 20 and set(x[:, 1]) == {5.0}


def test_the_case_of_an_ending_does_not_matter(life: Path):
    (life / "life.csv").rename(life / "V.CSV")
    (life / "W.CSV.XZ").write_bytes(lzma.compress((life / "V.CSV").read_bytes()))
    for name, experiment in (("V.CSV", "V"), ("W.CSV.XZ", "W")):
        run = mpifed.run(output=experiment, **{**WORDS, "data": name, "rounds": 1})
        assert run.summary["experiment"] == experiment
        about = mpifed.read(experiment)
        assert about.class_names == ("high", "low")


# As a hospital keeps them: a column of ids, texts, codes, gaps, and semicolons.
WARDS = np.array(["north", "south", "west"])[RANDOM.integers(0, 3, 60)]
DOSE = np.where(np.arange(60) % 7 == 3, np.nan, RANDOM.normal(5, 30, 60))
LIFE = "id;ward; dose;code;risk;whose\n" + "".join(
    f"{900 - i};{ward};{'NA' if np.isnan(dose) else str(dose).replace('.', ',')};{i % 2};"
    f"{'low' if i % 5 else 'high'};{['Oslo', 'Bergen'][i % 2]}\n"
    for i, (ward, dose) in enumerate(zip(WARDS, DOSE, strict=True))
)
OF_LIFE = {"decimal": "comma", "drop": ["id"], "categories": ["code"], "client": "whose"}


def test_texts_are_one_hot_and_gaps_the_mean_of_training_samples(tmp_path: Path):
    path = tmp_path / "life.csv"
    path.write_text(LIFE)
    dataset = table(path, 2, missing="mean", standardise=True, **OF_LIFE)
    about = dataset.description
    assert about.client_names == ("Bergen", "Oslo") and about.class_names == ("high", "low")
    # The same by hand: the rows that train are known by their number among those of a client.
    numbers = table(path, 2, features=["id"], **{**OF_LIFE, "drop": None, "categories": None})
    train = 900 - numbers.load(np.arange(2), torch.float64).train.x[:, 0].long().numpy()
    filled = np.where(np.isnan(DOSE), np.nanmean(DOSE[train]), DOSE)
    scaled = (filled - filled[train].mean()) / filled[train].std()
    codes = (np.arange(60) % 2)[:, None] == [0, 1]
    x = np.column_stack([scaled, WARDS[:, None] == ["north", "south", "west"], codes])
    shards = dataset.load(np.arange(2), torch.float64)
    assert torch.allclose(shards.train.x, torch.from_numpy(x[train]), atol=1e-12)
    assert np.isnan(DOSE[train]).any()
    assert dataset.remarks[0].endswith("ward, code")
    dropped = table(path, 2, missing="drop", **{**OF_LIFE, "drop": None})
    assert sum(map(len, labels_by_client(dropped))) == np.isfinite(DOSE).sum()
    assert "'id'" in dropped.remarks[0]


@pytest.fixture
def life(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "life.csv").write_text(LIFE)
    return tmp_path


WORDS = {"data": "life.csv", "data.label": "risk", "data.missing": "mean", "rounds": 2}
WORDS |= {f"data.{name}": value for name, value in OF_LIFE.items()}


def test_whether_inputs_are_standardised_depends_on_the_data_alone(life: Path):
    alone = mpifed.run(output="alone", **WORDS)
    named = mpifed.run(output="named", **WORDS, model="linear")
    assert named.summary["state_digest"] == alone.summary["state_digest"]
    mpifed.run("digits-fedem", output="over", **WORDS, clients=2)
    for run in ("alone", "over"):
        assert "inputs that are numbers are standardised" in (life / run / "log.txt").read_text()
    assert abs(mpifed.load("over").samples("Oslo").train.x[:, 0].mean()) < 0.5
    mpifed.run(output="raw", **WORDS, **{"data.standardise": False})
    assert "inputs are not standardised" in (life / "raw" / "log.txt").read_text()


FAR = X + np.array([0, 300, 0, 0])


@pytest.mark.parametrize(
    ("x", "options", "words"),
    [
        (FAR, {}, "column 1 of x has values from 29"),
        (np.abs(X) * [[1, 400, 90, 900]], {}, "column 3 of x has values .* 2 more"),
        (FAR, {"standardise": True}, None),
        (FAR, {"divisor": 1}, None),
        (10 * X, {}, None),
        ((20 * X).astype(np.uint8), {}, "data.divisor=255"),
    ],
)
def test_wide_columns_are_warned_of(x, options, words):
    remarks = of_arrays(mpifed.arrays(x, Y), **options).remarks
    warned = [line for line in remarks if "may diverge" in line or "data.divisor" in line]
    assert len(warned) == (words is not None) and all(re.search(words, line) for line in warned)


def test_a_loss_that_leaps_is_warned_of_once(tmp_path: Path):
    data = mpifed.arrays(X * [[1, 900, 1, 1]], Y)
    options = {"data": data, "clients": 2, "rounds": 3, "evaluation.every": 1, "local.lr": 30}
    run = mpifed.run(output=tmp_path / "run", **options)
    first, *others = run.metrics["train_loss"]
    assert max(others) > 10 * first
    log = (tmp_path / "run" / "log.txt").read_text()
    assert log.count("the training loss is") == 1 and "local.lr is too large" in log
    calm = mpifed.run(output=tmp_path / "calm", **{**options, "local.lr": 1e-9})
    assert "training loss" not in (calm.directory / "log.txt").read_text()


def test_clients_and_classes_keep_their_names(life: Path, capsys):
    run = mpifed.run(output="named", **WORDS)
    stored = yaml.safe_load((life / "named" / "config.yaml").read_text())
    assert (stored["experiment"], stored["clients"]) == ("life", 2)
    assert (stored["algorithm"]["name"], stored["data"]["standardise"]) == ("fedavg", True)
    assert run.clients["client_name"].tolist() == ["Bergen", "Oslo"]
    assert mpifed.read("named").class_names == ("high", "low")
    trained = mpifed.load("named")
    assert (trained.client_names, trained.class_names) == (("Bergen", "Oslo"), ("high", "low"))
    oslo = trained.samples("Oslo").test
    assert torch.equal(oslo.x, trained.samples(1).test.x)
    right = (trained.client("Oslo")(oslo.x).squeeze(1) > 0) == oslo.y
    assert right.double().mean().item() == run.clients["test_accuracy"][1]
    with pytest.raises(InputError, match=r"client\b.*'Osl'.*'Oslo'.*Bergen"):
        trained.client("Osl")
    assert run_command(["verify", "named"]) == 0
    capsys.readouterr()
    assert run_command(["report", "named", "--clients", "--output", "tables"]) == 0
    accuracy = f"{100 * run.clients['test_accuracy'][1]:.1f}"
    n_train, n_test = (run.clients[name][1] for name in ("n_train", "n_test"))
    row = f"| life | Oslo | {n_train} | {n_test} | {accuracy} |\n"
    assert row in (life / "tables" / "clients.md").read_text()
    page = (life / "tables" / "report.html").read_text()
    assert "Classes of life: high, low." in page and f">{accuracy}</td>" in page
    # A federated file keeps them, and they reach a run on it.
    flags = {f"--{key.replace('_', '-')}": value for key, value in OF_LIFE.items()}
    words = [f"{key}={value}" for key, value in flags.items()]
    words += ["--path=life.csv", "--label=risk", "--missing=mean", "--clients=2", "--output=own.h5"]
    assert run_command(["data", "csv", *words]) == 0
    again = mpifed.run(data="own.h5", rounds=1, output="again")
    assert again.clients["client_name"].tolist() == ["Bergen", "Oslo"]
    assert again.summary["experiment"] == "own"


def plan(words: list[str], capsys) -> dict[str, Any]:
    """The configuration that a command would run."""
    assert run_command(["run", *words, "--dry-run", "--json"]) == 0
    return json.loads(capsys.readouterr().out)["configuration"]


def refusal(words: list[str], capsys) -> str:
    assert run_command(["run", *words, "--dry-run"]) == 2
    return capsys.readouterr().err


def test_a_run_without_an_experiment_is_of_its_data(life: Path, capsys):
    (life / "nets.py").write_text("def small(data): ...\nclass Net: ...\ndef _own(): ...\n")
    words = [f"{key}={value}" for key, value in WORDS.items() if key != "data.client"]
    dealt = plan(words, capsys)
    assert (dealt["experiment"], dealt["clients"]) == ("life", 10)
    assert dealt["algorithm"]["name"] == "fedavg"
    held = mpifed.arrays(X, Y, clients=np.repeat([3, 5, 7, 9], [40, 4, 40, 6]))
    found = mpifed.run(data=held, rounds=1, output=life / "held").summary
    assert (found["experiment"], found["clients"]) == ("arrays", 3)
    told = of_arrays(held).remarks[-1]
    assert re.search(r"\b1 sources.*\b5 samples.*: 5$", told)
    for words in ([], ["model=mlp"]):
        assert (
            plan(["clients=3", "data.n_test=2", *words], capsys)["experiment"] == "synthetic-fedem"
        )
    (life / "pytorch.py").write_text(
        "import torch\ndef small(data): return torch.nn.Linear(data.input_shape[0], 1)\n"
    )
    own = plan(["model=pytorch:small", "clients=3", "data.n_test=2"], capsys)
    assert (own["experiment"], own["algorithm"]["name"]) == ("synthetic-small", "fedavg")
    sentence = refusal(["model=nets.py"], capsys)
    assert "'nets:small'" in sentence and "'nets:Net'" in sentence
    assert "clients=N" in refusal(["data=digits", "clients=data"], capsys)
    # The path of another file keeps the options that an experiment sets.
    stored = {"name": "csv", "path": "life.csv", "label": "risk", "missing": "mean", **OF_LIFE}
    (life / "own.yaml").write_text(yaml.safe_dump({"clients": 2, "data": stored}))
    (life / "life.csv").rename(life / "other.csv")
    other = plan(["own.yaml", "data=other.csv"], capsys)["data"]
    assert (other["name"], other["path"], other["label"]) == ("csv", "other.csv", "risk")


def test_a_sweep_of_own_data_needs_no_experiment(life: Path, capsys):
    once = {key: [value] if isinstance(value, list) else value for key, value in WORDS.items()}
    words = [f"{key}={value}" for key, value in once.items()]
    assert run_command(["sweep", *words, "local.lr=[0.1,0.2]", "--dry-run"]) == 0
    first = capsys.readouterr().out.splitlines()[0].split()
    assert first[first.index("mpifed") + 2] == "data=life.csv" and "life-sweep" in first[-3]
