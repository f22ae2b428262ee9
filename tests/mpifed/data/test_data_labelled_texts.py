"""A user's own texts with labels, of unequal length, as tokens of one length."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from loading import all_rows, dataset_of

import mpifed
from mpifed.dataset import tokens
from mpifed.errors import InputError
from mpifed.testing import run_command

DRAWS = np.random.default_rng(5)
SIGNS = {"up": ["good,", "great", "and", "fine"], "down": ["bad,", "awful", "and", "dull"]}
STARS = np.array(["up", "down"])[DRAWS.integers(0, 2, 60)]
REVIEWS = pd.DataFrame(
    {
        "review": [" ".join(DRAWS.choice(SIGNS[star], DRAWS.integers(1, 9))) for star in STARS],
        "stars": STARS,
        "site": np.array(["Oslo", "Bergen"])[np.arange(60) % 2],
        "tested": np.arange(60) % 3 == 0,
    }
)
OPTIONS = {"features": "review", "label": "stars", "client": "site"}


@pytest.fixture
def path(tmp_path: Path) -> str:
    REVIEWS.to_csv(tmp_path / "reviews.csv", index=False)
    return str(tmp_path / "reviews.csv")


def rows_of(texts: list[str], length: int) -> np.ndarray:
    """Bytes, one higher, with zeros behind."""
    rows = [[byte + 1 for byte in text.encode()][:length] for text in texts]
    return np.array([row + [0] * (length - len(row)) for row in rows])


@pytest.mark.parametrize("length", [None, 12])
def test_bytes_are_padded_and_cut(path, length):
    dataset = dataset_of(
        "labelled_texts", 2, path=path, **OPTIONS, tokenizer="bytes", sequence_length=length
    )
    about, longest = dataset.description, REVIEWS.review.map(len).max()
    assert about.input_shape == (length or longest,) and about.n_tokens == 257
    assert (about.class_names, about.client_names) == (("down", "up"), ("Bergen", "Oslo"))
    x, y = all_rows(dataset)
    expected = rows_of([*REVIEWS.review], length or longest)
    by_hand = np.column_stack([expected, REVIEWS.stars == "up"])
    found = np.column_stack([x, y]).astype(int)
    assert np.array_equal(found[np.lexsort(found.T)], by_hand[np.lexsort(by_hand.T)])
    cut = (REVIEWS.review.map(len) > (length or longest)).sum()
    assert any(f"{cut} of 60 are longer" in remark for remark in dataset.remarks)


def test_words_are_the_most_frequent_ones_of_texts_that_are_not_for_tests(tmp_path):
    counts = {f"w{number:03}": 300 - number for number in range(300)}
    rows = [(f"{word} ..." * n, n % 2, 0) for word, n in counts.items() if n]
    rows += [("unheard unheard " * 999, 0, 1), ("", 1, 1), ("W000, w299", 1, 1)]
    pd.DataFrame(rows, columns=["text", "label", "test"]).to_csv(tmp_path / "w.csv", index=False)
    dataset = dataset_of(
        *("labelled_texts", 1),
        **{"path": str(tmp_path / "w.csv"), "test": "test", "vocabulary": 256},
        sequence_length=3,
    )
    test = dataset.load(np.arange(1), torch.float64).test.x.long().tolist()
    # 0 is padding, 1 is any other word, 2 the most frequent: the full stop, then w000, w001, ...
    assert test == [[1, 1, 1], [0, 0, 0], [3, 1, 1]]
    assert dataset.description.n_tokens == 257


def test_byte_pairs_are_learnt_and_kept(path, tmp_path):
    pytest.importorskip("tokenizers")
    words = {"data.tokenizer": "bpe", "data.vocabulary": 300, "rounds": 1}
    options = {f"data.{name}": value for name, value in OPTIONS.items()}
    words |= {"data.path": path, "output": tmp_path / "run"}
    run = mpifed.run(data="labelled_texts", **options, **words)
    trained = mpifed.load(run)
    x = trained.encode(REVIEWS.review)
    assert 256 < x.max() <= 300 and (x != 0).sum() < REVIEWS.review.map(len).sum()


@pytest.mark.parametrize("model", [None, "gru"])
def test_a_run_learns_and_predicts_new_texts(path, tmp_path, model):
    options = {f"data.{name}": value for name, value in OPTIONS.items()} | {"data.path": path}
    options |= {"rounds": 12, "local.lr": 1.0} | ({"model": model} if model else {})
    run = mpifed.run(data="labelled_texts", **options, output=tmp_path / "run")
    assert run.summary["experiment"] == "reviews" and run.summary["test_accuracy"] > 0.9
    trained = mpifed.load(run)
    new = ["Great!", "awful and dull, unheard-of", "good good fine"]
    assert trained.predict(new).tolist() == ["up", "down", "up"]
    assert np.array_equal(trained.predict(path, "Oslo"), trained.predict(REVIEWS, "Oslo"))
    assert np.array_equal(trained.predict(REVIEWS), trained.predict(REVIEWS.review))
    scored = np.unique(torch.cat([trained.samples(i).train.x for i in (0, 1)]).numpy(), axis=0)
    encoded = {tuple(row) for row in trained.encode(path).tolist()}
    assert {tuple(row) for row in scored.tolist()} <= encoded
    with pytest.raises(InputError, match=r"'Great!'.*list"):
        trained.predict("Great!")
    with pytest.raises(InputError, match="'review'"):
        trained.predict(REVIEWS[["stars"]])


def test_parquet_and_federated_files_hold_the_same(path, tmp_path):
    REVIEWS.to_parquet(tmp_path / "reviews.parquet")
    words = [f"--{name}={value}" for name, value in OPTIONS.items()] + ["--clients=2"]
    output = f"--output={tmp_path / 'own.h5'}"
    assert run_command(["data", "labelled_texts", f"--path={path}", *words, output]) == 0
    options = {f"data.{name}": value for name, value in OPTIONS.items()}
    texts = {"data": "labelled_texts", **options}
    sources = [{**texts, "data.path": f"{tmp_path}/reviews.{kind}"} for kind in ("csv", "parquet")]
    sources.append({"data": f"{tmp_path}/own.h5", "model": "bag_of_words"})
    runs = [
        mpifed.run(**source, rounds=1, output=tmp_path / f"{number}")
        for number, source in enumerate(sources)
    ]
    assert len({run.summary["state_digest"] for run in runs}) == 1
    assert mpifed.load(runs[2]).predict(["good"]) == mpifed.load(runs[0]).predict(["good"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"features": "text"}, r"data\.features is 'text'.*review"),
        ({"label": "client"}, r"data\.label is 'client'.*stars"),
        ({"path": "nowhere.csv"}, r"nowhere\.csv"),
        ({"tokenizer": "nowhere.json"}, r"nowhere\.json"),
    ],
)
def test_wrong_words_get_one_sentence(path, options, words):
    if "tokenizer" in options:
        pytest.importorskip("tokenizers")
    with pytest.raises(InputError, match=words):
        dataset_of("labelled_texts", 2, **{"path": path, **OPTIONS, **options})


def test_a_row_without_a_label_is_named(tmp_path):
    stars = REVIEWS.stars.where(REVIEWS.index != 4)
    REVIEWS.assign(stars=stars).to_csv(tmp_path / "reviews.csv", index=False)
    with pytest.raises(InputError, match=r"'stars' has no value in row 5"):
        dataset_of("labelled_texts", 2, path=str(tmp_path / "reviews.csv"), **OPTIONS)


def test_padding_begins_behind_the_last_token():
    rows = tokens.padded([np.array([], np.uint8), np.arange(5)], 3)
    assert rows.tolist() == [[0, 0, 0], [1, 2, 3]]
