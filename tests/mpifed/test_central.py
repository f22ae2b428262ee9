"""``evaluation.central``: the shared model on one test set, which no client has."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from commands import call
from PIL import Image

import mpifed
from mpifed.data.central import central_of
from mpifed.data.federated_file import Contents, write
from mpifed.dataset import Description, Shards, Split
from mpifed.errors import InputError
from mpifed.models.loss import probabilities
from mpifed.testing import find_item, load_dataset, run_rounds

HOLDOUT = {"evaluation.central": "holdout"}
SMALL = {"clients": 5, "rounds": 2, "evaluation.every": 1, "evaluation.metrics": ["auc", "f1"]}
EXACT = {**SMALL, "dtype": "float64"}


def samples_of(central):
    everyone = np.arange(central.description.n_clients)
    return central.load(everyone, torch.float64).test


def scores_of(module, x, y):
    with torch.no_grad():
        outputs = module(x)
    loss = torch.nn.functional.cross_entropy(outputs, y).item()
    auc = find_item("metric", "auc")(y.numpy(), probabilities(outputs[None], None).numpy())
    return [loss, (outputs.argmax(1) == y).double().mean().item(), auc]


def last_of(result):
    return [result.metrics[f"central_test_{name}"][-1] for name in ("loss", "accuracy", "auc")]


def digits(n_clients, **evaluation):
    options = {"evaluation": evaluation} if evaluation else {}
    return load_dataset("digits", clients=n_clients, **options)


@pytest.mark.parametrize("exchange", ["server", "gossip"])
def test_the_shared_model_is_scored_on_what_no_client_has(exchange, tmp_path):
    options = {**EXACT, "algorithm": "fedavg", "exchange": exchange}
    result = mpifed.run("digits-fedem", output=tmp_path / "run", **options, **HOLDOUT)
    trained = mpifed.load(result)
    held = samples_of(central_of(digits(5, central="holdout")))
    (model,) = trained.components  # the average of the clients' under gossip
    assert last_of(result) == pytest.approx(scores_of(model, held.x, held.y))
    plain = mpifed.run("digits-fedem", output=tmp_path / "plain", **options)
    assert np.array_equal(result.metrics["state_digest"], plain.metrics["state_digest"])
    before = digits(5).load(np.arange(5), torch.float64).test
    for client in range(5):
        ours, theirs = trained.samples(client).test, held.of_client(client)
        both = np.concatenate([ours.x.flatten(1), theirs.x.flatten(1)])
        every = before.of_client(client).x.flatten(1).numpy()
        assert len(theirs.y) == len(every) // 2
        assert np.array_equal(both[np.lexsort(both.T)], every[np.lexsort(every.T)])


def test_models_are_mixed_with_the_weights_of_one_client_with_all_samples(tmp_path):
    result = mpifed.run("digits-fedem", output=tmp_path / "run", **EXACT, **HOLDOUT)
    held = samples_of(central_of(digits(5, central="holdout")))
    pi = np.average(result.clients["mixture"], axis=0, weights=result.clients["n_train"])
    components = mpifed.load(result).components

    def mixture(x):
        outputs = torch.stack([torch.softmax(model(x), 1) for model in components])
        return torch.einsum("m,mbc->bc", torch.from_numpy(pi), outputs).log()

    assert last_of(result) == pytest.approx(scores_of(mixture, held.x, held.y))


def table(path):
    """A CSV of 60 samples of two classes, of which every third is marked."""
    random = np.random.default_rng(0)
    x = random.normal(size=(60, 3))
    y, tested = (x.sum(1) + random.normal(size=60) > 0).astype(int), np.arange(60) % 3 == 0
    columns = np.column_stack([x, y, tested])
    np.savetxt(path, columns, delimiter=",", header="a,b,c,label,tested", comments="")
    return y, tested


def test_what_was_published_for_testing_belongs_to_nobody(tmp_path):
    y, tested = table(tmp_path / "table.csv")
    data = {"name": "csv", "path": str(tmp_path / "table.csv"), "test": "tested"}
    some = {"clients": 4, "rounds": 3, "model": "linear", "algorithm": "fedavg", **HOLDOUT}
    result = mpifed.run("digits-fedem", data=data, output=tmp_path / "run", dtype="float64", **some)
    assert result.clients["n_train"].sum() == (~tested).sum() and not result.clients["n_test"].any()
    assert np.isnan(result.metrics["test_accuracy"]).all()
    assert "no test samples of their own" in (tmp_path / "run" / "log.txt").read_text()
    trained = mpifed.load(result)
    dataset = load_dataset(
        {**data, "split": "published"}, clients=4, evaluation={"central": "holdout"}
    )
    held = samples_of(central_of(dataset))
    assert np.array_equal(held.y, y[tested])
    right = (trained.components[0](held.x)[:, 0] > 0) == held.y.bool()
    found = result.metrics["central_test_accuracy"][-1]
    assert found == pytest.approx(right.double().mean().item())
    mixed = mpifed.run(
        "digits-fedem", data={**data, "split": "60_20_20"}, output=tmp_path / "x", **some
    )
    assert mixed.clients["n_test"].all() and np.isfinite(mixed.metrics["test_accuracy"]).all()
    assert np.isfinite(mixed.metrics["central_test_accuracy"]).all()


def stored(path, n_classes=10, shape=(8, 8)):
    """A federated file of three clients with 2, 1 and 3 samples for training, tests apart."""
    random = np.random.default_rng(1)
    counts = np.array([[2, 1, 3], [0, 1, 0], [1, 1, 2]])
    description = Description("stored", shape, n_classes, *counts)
    offsets = [np.concatenate([[0], np.cumsum(n)]) for n in counts]
    splits = [
        Split(
            torch.from_numpy(random.random((ends[-1], *shape)).astype(np.float32)),
            torch.from_numpy(random.integers(n_classes, size=ends[-1])),
            ends,
        )
        for ends in offsets
    ]
    write(path, Contents(description, "natural", 0), [Shards(np.arange(3), *splits)], {})
    return torch.cat([s.x for s in splits]).double(), torch.cat([s.y for s in splits])


def test_all_samples_of_a_file_are_a_test_set(tmp_path):
    x, y = stored(tmp_path / "central.h5")
    words = {"evaluation.central": str(tmp_path / "central.h5"), "algorithm": "fedavg"}
    result = mpifed.run("digits-fedem", output=tmp_path / "run", **EXACT, **words)
    (model,) = mpifed.load(result).components
    assert last_of(result) == pytest.approx(scores_of(model, x, y))


def patients(path, seed, n, sexes=("f", "m")):
    """A CSV of ages, sexes and hospitals; the ill ones are old."""
    random = np.random.default_rng(seed)
    age, sex = random.integers(20, 90, n), random.choice(sexes, n)
    ill = np.where(age + 20 * (sex == "m") > random.integers(40, 80, n), "yes", "no")
    rows = zip(age, sex, np.array(["Oslo", "Bergen"])[np.arange(n) % 2], ill, strict=True)
    lines = ["age,sex,hospital,ill", *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return (age, sex == "f", sex == "m"), ill == "yes"


LABELLED = {"data.label": "ill", "data.client": "hospital", "rounds": 4, "dtype": "float64"}


@pytest.fixture
def clinics(tmp_path):
    """Tables of patients for training, and of others for testing whose clinics are no clients."""
    patients(tmp_path / "train.csv", 0, 80)
    patients(tmp_path / "test.csv", 1, 31)
    train, test = (pd.read_csv(tmp_path / f"{name}.csv") for name in ("train", "test"))
    train.to_parquet(tmp_path / "train.parquet")
    return train, test


def central_of_run(data, central, folder, **more):
    options = {**LABELLED, **more, "evaluation.central": central}
    result = mpifed.run(data=data, output=folder, **options)
    return [result.metrics[f"central_test_{name}"][-1] for name in ("loss", "accuracy")]


@pytest.mark.parametrize("kind", ["csv", "parquet", "directory", "marked"])
def test_a_test_set_needs_features_and_label_alone(kind, clinics, tmp_path):
    train, test = clinics
    before = central_of_run(str(tmp_path / "train.csv"), str(tmp_path / "test.csv"), tmp_path / "a")
    test = test[["ill", "sex", "age"]]
    ending = "parquet" if kind == "parquet" else "csv"
    data, path, more = str(tmp_path / f"train.{ending}"), tmp_path / f"new.{ending}", {}
    if kind == "parquet":
        test.to_parquet(path)
    elif kind == "directory":
        path = tmp_path / "new"
        path.mkdir()
        for name, part in test.groupby("sex"):
            part.to_csv(path / f"{name}.csv", index=False)
    else:
        test.to_csv(path, index=False)
    if kind == "marked":  # which the clients test on
        train.assign(old=train["age"] > 60).to_csv(data, index=False)
        more = {"data.test": "old"}
    after = central_of_run(data, str(path), tmp_path / "b", **more)
    assert (after == pytest.approx(before)) == (kind != "marked") and 0 < after[1] <= 1


@pytest.mark.parametrize("kind", ["table", "frame", "x and y", "arrays", "of a file", "both"])
def test_a_program_passes_a_test_set(kind, clinics, tmp_path):
    train, test = clinics
    path = str(tmp_path / "train.csv")
    before = central_of_run(path, str(tmp_path / "test.csv"), tmp_path / "a")
    data, central = path, test.drop(columns="hospital")
    if kind == "frame":
        central = mpifed.frame(test.rename(columns={"ill": "sick"}), label="sick")
    elif kind == "x and y":
        central = test[["sex", "age"]], test["ill"]
    elif kind == "arrays":  # in the order of the columns
        central = test[["age", "sex"]].to_numpy(object), test["ill"].to_numpy()
    elif kind == "of a file":
        data, central = train, str(tmp_path / "test.csv")
    elif kind == "both":
        data = train
    assert central_of_run(data, central, tmp_path / "b") == pytest.approx(before)
    if kind == "table":  # resumed with the same samples alone, and loaded without them
        with pytest.raises(InputError, match="pass them again"):
            mpifed.run(output=tmp_path / "b", resume=True, rounds=5)
        again = {"rounds": 5, "evaluation": {"central": central}}
        assert mpifed.run(output=tmp_path / "b", resume=True, **again).summary["rounds"] == 5
        assert len(mpifed.load(tmp_path / "b").samples("Oslo").train.y)


def test_folders_of_pictures_and_texts_have_test_sets_of_their_form(tmp_path):
    random = np.random.default_rng(0)
    for name in (f"{part}/{kind}" for part in ("train", "new") for kind in ("cat", "dog")):
        (tmp_path / name).mkdir(parents=True)
        for number in range(10):
            picture = random.integers(0, 100, (8, 8), np.uint8) + 150 * name.endswith("dog")
            Image.fromarray(picture.astype(np.uint8)).save(tmp_path / name / f"{number}.png")
    options = {"clients": 2, "rounds": 30, "local.lr": 0.1}
    pictures = {"evaluation.central": str(tmp_path / "new")}
    result = mpifed.run(data=str(tmp_path / "train"), output=tmp_path / "a", **options, **pictures)
    assert result.metrics["central_test_accuracy"][-1] == 1
    words = np.array([["bad", "awful"], ["good", "fine"]])
    texts = pd.DataFrame({"label": np.tile(["down", "up"], 30)})
    texts["text"] = [" ".join(random.choice(words[k % 2], 3)) for k in range(60)]
    texts.to_csv(tmp_path / "texts.csv", index=False)
    data = {"name": "labelled_texts", "path": str(tmp_path / "texts.csv")}
    for number, central in enumerate((texts, (["good", "awful bad"], ["up", "down"]))):
        options["evaluation.central"] = central
        result = mpifed.run(data=data, output=tmp_path / f"texts{number}", **options)
        assert result.metrics["central_test_accuracy"][-1] == 1


def test_arrays_score_data_of_arrays(tmp_path):
    random = np.random.default_rng(0)
    x, y = random.normal(7, 3, (90, 2)), random.choice(["a", "b"], 90)
    np.savez(tmp_path / "train.npz", x=x, y=y)
    np.savez(tmp_path / "test.npz", x=x[:20], y=y[:20])
    options = {"clients": 3, "rounds": 1, "data.standardise": True, "dtype": "float64"}
    data = str(tmp_path / "train.npz")
    for name, central in (("a", (x[:20], y[:20])), ("b", str(tmp_path / "test.npz"))):
        options |= {"evaluation.central": central}
        result = mpifed.run(data=data, output=tmp_path / name, **options)
        (model,) = mpifed.load(result).components
        new = torch.from_numpy(mpifed.load(result).encode(x[:20]))
        with torch.no_grad():
            right = (model(new)[:, 0] > 0).numpy() == (y[:20] == "b")
        assert result.metrics["central_test_accuracy"][-1] == pytest.approx(right.mean())
    with pytest.raises(InputError, match=r"evaluation\.central: .*'c'; the data have a, b"):
        mpifed.run(data=data, **{**options, "evaluation.central": (x[:1], ["c"])})


@pytest.mark.parametrize("kind", ["table", "arrays"])
def test_tests_of_the_clients_own_stay_theirs_by_half(kind, clinics, tmp_path):
    train, test = clinics
    options = {"rounds": 2, **HOLDOUT}
    data = mpifed.frame(train, label="ill", client="hospital", test=test)
    if kind == "arrays":
        x, y = np.random.default_rng(0).normal(size=(80, 3)), np.arange(80) % 2
        of_each = {name: (x[k::2], y[k::2]) for k, name in enumerate(("Bergen", "Oslo"))}
        data = mpifed.arrays(of_each, test=dict.fromkeys(of_each, (x[:15], y[:15])))
    result = mpifed.run(data=data, output=tmp_path / "run", **options)
    for column in ("test_accuracy", "central_test_accuracy"):
        assert np.isfinite(result.metrics[column]).all()
    assert result.clients["n_test"].tolist() == [8, 8]


def test_a_csv_file_is_read_as_the_data_and_scaled_by_their_training_samples(tmp_path):
    patients(tmp_path / "train.csv", 0, 80)
    (age, *sexes), ill = patients(tmp_path / "test.csv", 1, 31)
    options = {"data.label": "ill", "data.client": "hospital", "rounds": 4, "dtype": "float64"}
    data, central = str(tmp_path / "train.csv"), str(tmp_path / "test.csv")
    plain = mpifed.run(data=data, output=tmp_path / "plain", **options)
    options |= {"evaluation.central": central, "evaluation.metrics": "auc"}
    result = mpifed.run(data=data, output=tmp_path / "run", **options)
    assert np.array_equal(plain.metrics["state_digest"], result.metrics["state_digest"])
    trained = mpifed.load(plain)
    raw = load_dataset({"name": "csv", "path": data, "label": "ill", "client": "hospital",
                        "standardise": False}, clients=2)  # fmt: skip
    ages = raw.load(np.arange(2), torch.float64).train.x[:, 0]
    scaled = (torch.from_numpy(age) - ages.mean()) / ages.std(correction=0)
    x = torch.stack([scaled, *map(torch.from_numpy, sexes)], 1)
    (model,) = trained.components
    with torch.no_grad():
        right = (model(x)[:, 0] > 0).numpy() == ill
    assert result.metrics["central_test_accuracy"][-1] == pytest.approx(right.mean())


@pytest.mark.parametrize("exchange", ["server", "gossip"])
@pytest.mark.parametrize("kind", ["holdout", "published", "file", "table"])
def test_any_number_of_ranks_has_the_same_bits(kind, exchange, tmp_path):
    stored(tmp_path / "central.h5")
    table(tmp_path / "table.csv")
    files = {"file": "central.h5", "table": "table.csv"}
    name = str(tmp_path / files[kind]) if kind in files else "holdout"
    data = {"name": "csv", "path": str(tmp_path / "table.csv"), "test": "tested"}
    options = {
        "data": data if kind in ("published", "table") else "digits",
        "exchange": exchange,
        "evaluation": {"central": name, "metrics": ["auc", "f1"]},
        "dtype": "float32",
    }
    one, *others = (
        run_rounds("fedem", ranks=ranks, rounds=2, **options).metrics for ranks in (1, 2, 3)
    )
    assert one["central_test_loss"] > 0 and 0 <= one["central_test_auc"] <= 1
    for other in others:
        assert {**other, "seconds": 0} == {**one, "seconds": 0}


PATIENTS = ("data=train.csv", "data.label=ill", "data.client=hospital", "model=linear")


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["evaluation.central=holdout", "algorithm=local"], "'local' has no model"),
        (["evaluation.central=holdout", "algorithm=mocha"], "'mocha' has no model"),
        (["evaluation.central=nothing.h5"], "no such file"),
        (["evaluation.central=hold_out"], "holdout"),
        (["evaluation.central=other.h5"], "input_shape"),
        (["evaluation.central=test.csv"], "federated"),
        (["evaluation.central=test.csv", *PATIENTS], "'x' in column 'sex' on line 3 "),
        (["evaluation.central=lacks.csv", *PATIENTS], "sex"),
        (["evaluation.central=empty.csv", *PATIENTS], "no sample"),
        (["evaluation.central=empty", *PATIENTS], "no file that ends in .csv"),
    ],
)
def test_what_cannot_be_scored_is_refused(words, answer, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stored(tmp_path / "other.h5", shape=(3,))
    patients(tmp_path / "train.csv", 0, 80)
    patients(tmp_path / "test.csv", 1, 31, ("f", "m", "x"))
    (tmp_path / "lacks.csv").write_text("age,hospital,ill\n7,Oslo,no\n")
    (tmp_path / "empty.csv").write_text("age,sex,ill\n")
    (tmp_path / "empty").mkdir()
    done = call(["digits-fedem", "clients=2", *words, "--output", "run"], capfd)
    assert done.code == 2 and answer in done.messages[0]
    assert "evaluation.central" in done.messages[0] and not (tmp_path / "run").exists()
