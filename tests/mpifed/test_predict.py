"""What a trained run says of new samples, and the numbers that its models see of them.

The export to ONNX is as docs/how_do_i.md shows it.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import mpifed
from mpifed.errors import InputError
from mpifed.testing import run_command

DRAWS = np.random.default_rng(7)
N = 60
PATIENTS = pd.DataFrame(
    {
        "id": np.arange(N),
        "ward": DRAWS.choice(["north", "south", "west"], N),
        "dose": DRAWS.normal(220, 50, N).round(2),
        "code": DRAWS.integers(1, 4, N),
        "age": DRAWS.integers(20, 80, N),
        "whose": np.array(["Oslo", "Bergen"])[np.arange(N) % 2],
    }
)
PATIENTS["risk"] = np.where(PATIENTS.dose + PATIENTS.age > 270, "high", "low")
INPUTS = ["ward", "dose", "code", "age"]
WITH_GAPS = PATIENTS.assign(dose=PATIENTS.dose.where(PATIENTS.id % 7 != 3))
OPTIONS = {
    **{"data.label": "risk", "data.client": "whose", "data.drop": ["id"]},
    **{"data.categories": ["code"], "rounds": 3},
}


def trained_on(folder: Path, frame: pd.DataFrame, **options) -> mpifed.Trained:
    frame.to_csv(folder / "life.csv", index=False, sep=";", decimal=",")
    options = {**OPTIONS, "data.decimal": "comma", **options}
    return mpifed.load(mpifed.run(data=str(folder / "life.csv"), **options, output=folder / "run"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> mpifed.Trained:
    return trained_on(tmp_path_factory.mktemp("life"), PATIENTS)


@pytest.fixture(scope="module")
def filled(tmp_path_factory) -> mpifed.Trained:
    return trained_on(tmp_path_factory.mktemp("gaps"), WITH_GAPS, **{"data.missing": "mean"})


def rows_of(trained: mpifed.Trained) -> np.ndarray:
    """The inputs of all samples, as the run had them, in an order of their own."""
    clients = map(trained.samples, range(trained.n_clients))
    x = [split.x for each in clients for split in (each.train, each.val, each.test)]
    return np.unique(torch.cat(x).numpy(), axis=0)


def test_encoded_columns_have_names(trained):
    encoded = pd.DataFrame(trained.encode(PATIENTS), columns=trained.feature_names)
    assert list(encoded) == ["dose", "age", *(f"ward_{w}" for w in ("north", "south", "west")),
                             "code_1", "code_2", "code_3"]  # fmt: skip
    assert np.array_equal(encoded.ward_south, PATIENTS.ward == "south")
    assert np.array_equal(encoded.code_2, PATIENTS.code == 2)
    assert np.corrcoef(encoded.age, PATIENTS.age)[0, 1] == pytest.approx(1)


@pytest.mark.parametrize("name", ["trained", "filled"])
def test_old_samples_are_encoded_to_the_last_bit_as_in_training(name, request):
    trained = request.getfixturevalue(name)
    source = PATIENTS if name == "trained" else WITH_GAPS
    mixed = source.sample(frac=1, axis="columns", random_state=1)
    x = trained.encode(mixed)
    assert x.dtype == np.float32 and x.shape == (N, 2 + 3 + 3)
    assert np.array_equal(np.unique(x, axis=0), rows_of(trained))
    assert np.array_equal(x, trained.encode(trained.directory.parent / "life.csv"))
    assert np.array_equal(x, trained.encode(source[INPUTS].to_numpy()))
    assert np.array_equal(x[5:6], trained.encode(source.iloc[5]))
    assert np.array_equal(x[5:6], trained.encode(source.iloc[5].to_dict()))
    assert np.array_equal(x[5:7], trained.encode(source.iloc[5:7].astype(object)))


def test_a_missing_value_is_the_mean_of_training_samples(filled):
    new = PATIENTS.iloc[0].to_dict() | {"dose": np.nan, "ward": ""}
    ((dose, _, *ward_and_code),) = filled.encode(new)
    assert dose == pytest.approx(0, abs=1e-6)  # standardised
    assert ward_and_code[:3] == [0, 0, 0] and sum(ward_and_code) == 1


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (lambda new: new.drop(columns=["ward", "age"]), r"column 'ward', 'age'.*ward, dose, code"),
        (lambda new: new.assign(ward="east"), r"'east'.*'ward'.*row 0 and 59 more.*north, south"),
        (lambda new: new.assign(age="old"), r"'old'.*'age'.*row 0\b"),
        (lambda new: new.assign(age=np.inf), r"'inf'.*'age'"),
        (lambda new: new.assign(dose=new.dose.where(new.index != 4)), r"'dose'.*row 4.*'refuse'"),
        (lambda new: new.assign(ward=new.ward.where(new.index != 4)), r"'ward'.*row 4.*'refuse'"),
        (lambda new: new[["dose", "age"]].to_numpy(), r"\(60, 2\).*\(samples, 4\): ward, dose"),
        (lambda new: "nowhere.csv", r"'nowhere.csv'"),
    ],
)
def test_what_a_run_cannot_use_gets_one_sentence(trained, changed, words):
    with pytest.raises(InputError, match=words):
        trained.predict(changed(PATIENTS[INPUTS]))


def test_lines_of_a_file_are_named_and_empty_ones_skipped(trained, tmp_path):
    path = tmp_path / "new.csv"
    path.write_text("age;dose;code;ward\n30;200,5;1;west\n\n40;1e2;2;north\n\n")
    trained.predict(path)
    path.write_text("age;dose;code;ward\n30;200,5;1;west\n\n40;1e2;9;north\n")
    with pytest.raises(InputError, match=r"'9' in column 'code' on line 4, .*1, 2, 3"):
        trained.predict(path)


def test_predictions_are_names_of_classes_and_those_that_were_scored(trained):
    new = PATIENTS.drop(columns="risk")
    labels, p = trained.predict(new, "Oslo"), trained.predict(new, "Oslo", probabilities=True)
    logits = trained.client("Oslo")(torch.from_numpy(trained.encode(new)))
    assert trained.class_names == ("high", "low")
    assert np.array_equal(labels, np.where(logits[:, 0] > 0, "low", "high"))
    assert np.allclose(p["low"], torch.sigmoid(logits[:, 0]).detach())
    assert np.allclose(p["high"] + p["low"], 1)
    assert p.index.equals(new.index) and np.array_equal(p.idxmax(axis=1), labels)
    assert np.array_equal(trained.predict(new, 1), labels)
    test = trained.samples("Oslo").test
    accuracy = mpifed.read(trained.directory).clients["test_accuracy"][1]
    rows = [np.flatnonzero((trained.encode(new) == x.numpy()).all(1))[0] for x in test.x]
    assert (labels[rows] == PATIENTS.risk.to_numpy()[rows]).mean() == pytest.approx(accuracy)


def test_clients_that_mix_several_models_are_named(tmp_path):
    trained = trained_on(tmp_path, PATIENTS, algorithm="fedem")
    with pytest.raises(InputError, match=r"'fedem'.*3 models.*client='Bergen'"):
        trained.predict(PATIENTS)
    p = trained.predict(PATIENTS, client="Bergen", probabilities=True)
    x = torch.from_numpy(trained.encode(PATIENTS))
    assert np.allclose(p[["low"]], torch.sigmoid(trained.client("Bergen")(x)).detach())


@pytest.mark.parametrize("standardise", [False, True])
def test_arrays_go_through_what_those_of_the_run_went_through(tmp_path, standardise):
    x, y = DRAWS.integers(0, 200, (40, 3, 2)).astype(np.uint8), DRAWS.integers(0, 3, 40)
    data = mpifed.arrays(x, y, divisor=255, standardise=standardise)
    options = {"clients": 2, "rounds": 1, "output": tmp_path / "run"}
    trained = mpifed.load(mpifed.run(data=data, **options))
    assert np.array_equal(np.unique(trained.encode(x), axis=0), rows_of(trained))
    labels = trained.predict(torch.from_numpy(x))
    shared = trained.components[0](torch.from_numpy(trained.encode(x)))
    assert labels.dtype == np.int64 and np.array_equal(labels, shared.argmax(1))
    for bad in (x[:, :2], x[0], "new.csv", [["a"]]):
        with pytest.raises(InputError, match=r"\(samples, 3, 2\)"):
            trained.encode(bad)


def test_numbers_and_tags(tmp_path):
    x, y = DRAWS.normal(size=(40, 3)), DRAWS.normal(size=(40, 2))
    for name, targets, shape in (("one", y[:, 0], (40,)), ("two", y, (40, 2)), ("tags", y > 0, ())):
        options = {"clients": 2, "rounds": 1, "output": tmp_path / name}
        trained = mpifed.load(mpifed.run(data=mpifed.arrays(x, targets), **options))
        outputs = trained.components[0](torch.from_numpy(trained.encode(x))).detach().numpy()
        if shape:
            assert np.array_equal(trained.predict(x), outputs.reshape(shape))
            with pytest.raises(InputError, match="probabilities"):
                trained.predict(x, probabilities=True)
        else:
            assert np.array_equal(trained.predict(x), outputs > 0)
            assert np.allclose(trained.predict(x, probabilities=True), 1 / (1 + np.exp(-outputs)))


def test_a_federated_file_keeps_what_its_samples_went_through(trained, tmp_path):
    words = ["--label=risk", "--client=whose", "--drop=[id]", "--categories=[code]"]
    words += [f"--path={trained.directory.parent / 'life.csv'}", "--decimal=comma", "--clients=2"]
    assert run_command(["data", "csv", *words, f"--output={tmp_path / 'own.h5'}"]) == 0
    again = mpifed.load(mpifed.run(data=f"{tmp_path}/own.h5", rounds=3, output=tmp_path / "run"))
    assert np.array_equal(again.predict(PATIENTS), trained.predict(PATIENTS))
    assert again.client_names == trained.client_names


EARLIER = '''
from dataclasses import replace
from mpifed.dataset import GeneratedDataset, alike

class Earlier(GeneratedDataset):
    """Data whose preprocessing is not recorded, as in checkpoints of earlier versions."""

    def __init__(self, n_clients, run_seed, communicator):
        about = alike("earlier", (2,), 2, n_clients, (9, 0, 9), "classification")
        self.description, self.seed = replace(about, preprocessing=None), run_seed

    def _make(self, client, split, n):
        import numpy as np
        return np.ones((n, 2)), np.arange(n) % 2
'''


def test_a_run_of_an_earlier_version_says_that_it_cannot(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "earlier_data.py").write_text(EARLIER)
    options = {"data": "earlier_data:Earlier", "clients": 2, "rounds": 1, "algorithm": "fedavg"}
    trained = mpifed.load(mpifed.run("digits-fedem", **options, output=tmp_path / "run"))
    with pytest.raises(InputError, match=r"earlier mpifed.*train it again"):
        trained.predict(np.ones((1, 2)))
    assert trained.client(0)(torch.ones(1, 2)).shape == (1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedavg", "fedem"])
def test_a_mixture_is_exported_to_onnx(tmp_path, algorithm):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    from onnx.reference import ReferenceEvaluator

    trained = trained_on(tmp_path, PATIENTS, algorithm=algorithm, model="mlp")
    network, x = trained.client("Oslo"), torch.from_numpy(trained.encode(PATIENTS))
    names = {"input_names": ["x"], "output_names": ["outputs"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about itself
        any_number = {0: "samples"}
        path = tmp_path / "model.onnx"
        torch.onnx.export(network, (x[:2],), path, dynamic_shapes=(any_number,), **names)
    onnx.checker.check_model(path)
    (outputs,) = ReferenceEvaluator(str(path)).run(None, {"x": x.numpy()})
    assert np.allclose(outputs, network(x).detach().numpy(), atol=1e-5)


def test_a_central_test_set_on_another_scale_is_refused(tmp_path):
    PATIENTS.to_csv(tmp_path / "own.csv", index=False)
    path = tmp_path / "central.h5"
    words = ["--path=" + str(tmp_path / "own.csv"), "--label=risk", "--client=whose", "--drop=[id]"]
    words += ["--clients=2", f"--output={path}"]
    options = {"data.label": "risk", "data.client": "whose", "data.drop": ["id"], "rounds": 1}
    options |= {"data": str(tmp_path / "own.csv"), "evaluation.central": str(path)}
    assert run_command(["data", "csv", *words, "--standardise=false"]) == 0
    with pytest.raises(InputError, match=r"evaluation\.central.*data\.standardise=false"):
        mpifed.run(**options, output=tmp_path / "refused")
    run = mpifed.run(**options, **{"data.standardise": False}, output=tmp_path / "run")
    assert np.isfinite(run.metrics["central_test_loss"]).all()


@pytest.mark.parametrize("source", ["frame", "parquet"])
def test_tables_of_a_program_and_parquet_files_are_as_csv_files(source, tmp_path, trained):
    PATIENTS.to_parquet(tmp_path / "own.parquet")
    words = {"label": "risk", "client": "whose", "drop": ["id"], "categories": ["code"]}
    options = {f"data.{name}": value for name, value in words.items()}
    if source == "frame":
        run = mpifed.run(data=mpifed.frame(PATIENTS, **words), rounds=3, output=tmp_path / "run")
    else:
        options["data"] = str(tmp_path / "own.parquet")
        run = mpifed.run(**options, rounds=3, output=tmp_path / "run")
    again = mpifed.load(run)
    assert "are standardised" in (run.directory / "log.txt").read_text()
    assert np.array_equal(again.encode(PATIENTS), trained.encode(PATIENTS))
    assert np.array_equal(again.encode(PATIENTS.iloc[7]), trained.encode(PATIENTS)[7:8])
    assert np.array_equal(again.predict(PATIENTS), trained.predict(PATIENTS))
