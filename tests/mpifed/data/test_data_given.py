"""What users pass to ``mpifed.arrays`` and ``mpifed.run(data=...)``: read, or one sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy import sparse
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import mpifed
from mpifed.components.registry import find
from mpifed.data.from_python import array_of
from mpifed.errors import InputError
from mpifed.launch import main

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(30, 4))
Y = np.arange(30) % 3
TENSORS = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(TENSORS)


class Samples(Dataset):
    def __init__(self, sample) -> None:
        self.sample = sample

    def __len__(self) -> int:
        return 3

    def __getitem__(self, number: int):
        return self.sample(number)


TWO = r"two arrays; pass them as two arguments: mpifed\.arrays\(x, y\)"
REFUSED = {
    "a pair": (lambda: mpifed.arrays((X, Y)), TWO),
    "how many clients": (
        lambda: mpifed.arrays(X, Y, clients=3),
        "clients is 3; it must be an array or a list that says whose each sample is; how many",
    ),
    "a loader": (
        lambda: mpifed.arrays(DataLoader(TENSORS)),
        r"x is a DataLoader; pass its data set, mpifed\.arrays\(loader\.dataset\)",
    ),
    "a name": (lambda: mpifed.arrays("digits", Y), "x is 'digits'; it must be"),
    "sparse rows": (lambda: mpifed.arrays(sparse.csr_matrix(X), Y), r"x is sparse.*x\.toarray\(\)"),
    "mixed": (
        lambda: mpifed.arrays(X, np.array([0, "a", None] * 10, object)),
        "y holds objects of the types NoneType, int, str; it must hold numbers or texts",
    ),
    "a wrong name": (lambda: mpifed.arrays(X, Y, client=Y), "'client'; did you mean 'clients'"),
    "samples that are mappings": (
        lambda: mpifed.arrays(Samples(lambda i: {"x": X[i], "y": 0})),
        "sample 0 is a dict, not a pair",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_samples_is_refused_in_one_sentence(case: str):
    make, message = REFUSED[case]
    with pytest.raises(InputError, match=message) as refused:
        held = make()
        options = {key: value for key, value in held.items() if key != "name"}
        find("data", "arrays").complete_options({"partition": None, **options}, 3)
        from mpifed.mpi.communicator import Alone

        find("data", "arrays")(3, 0, Alone(), **options)
    assert "\n" not in str(refused.value)


WRONG_DATA = {
    "a pair": (X, Y),
    "a tensor": torch.from_numpy(X),
    "a mapping with a name": {"name": "arrays", "x": X, "y": Y},
}


@pytest.mark.parametrize("case", WRONG_DATA)
def test_samples_as_data_name_the_function_that_takes_them(case: str, tmp_path: Path):
    with pytest.raises(InputError, match=r"data=mpifed\.arrays\(x, y\)") as refused:
        mpifed.run("digits-fedem", data=WRONG_DATA[case], output=tmp_path / "run")
    assert len(str(refused.value)) < 200 and not (tmp_path / "run").exists()


def test_arrays_by_name_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["digits-fedem", "data=arrays", "--output", str(tmp_path / "run")]) == 2
    assert "a Python program passes: data=mpifed.arrays(x, y)" in capsys.readouterr().err


@given(st.lists(st.floats(width=16, allow_nan=False), min_size=1))
def test_half_precision_is_read_without_loss(values: list[float]):
    for kind in (torch.bfloat16, torch.float16, torch.float8_e5m2):
        tensor = torch.tensor(values).to(kind)
        found = array_of(tensor, "x")
        assert found.dtype.kind == "f"
        assert np.array_equal(found, tensor.to(torch.float64).numpy(), equal_nan=True)


def test_pairs_in_a_list_and_pictures_are_read():
    expected = mpifed.arrays(X, Y)["digest"]
    assert mpifed.arrays(list(TENSORS))["digest"] == expected
    assert mpifed.arrays([(x, y) for x, y in zip(X, Y, strict=True)])["digest"] == expected
    pictures = RANDOM.integers(0, 256, (30, 5, 4), np.uint8)
    pairs = [(Image.fromarray(each), int(y)) for each, y in zip(pictures, Y, strict=True)]
    assert mpifed.arrays(pairs)["digest"] == mpifed.arrays(pictures, Y)["digest"]


def test_objects_of_one_kind_are_read():
    assert array_of(np.array([1, 2, True], object), "y").dtype == np.int64
    assert array_of(np.array([[1.5], [2]], object), "x").dtype == np.float64
    assert array_of(np.array(["a", "bc"], object), "y").tolist() == ["a", "bc"]
