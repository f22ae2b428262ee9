"""Whatever a file holds: what its reader promises comes out, or one sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path

import h5py
import numpy as np
import pytest
from commands import STORED
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpifed.checkpoint import files as checkpoint
from mpifed.checkpoint import integrity
from mpifed.checkpoint.integrity import Damaged
from mpifed.config.experiments import read_experiment
from mpifed.data.federated_file import read_contents
from mpifed.errors import InputError
from mpifed.io.text import read_json
from mpifed.io.yaml_files import as_text, parse_value, read_yaml
from mpifed.results.configurations import read_stored
from mpifed.results.results import ROUND, read_clients, read_metrics

EXAMPLES = settings(
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def a_sentence(error: InputError) -> None:
    text = str(error)
    assert text.isprintable()


# YAML and JSON.


@EXAMPLES
@given(text=st.text(alphabet="{}[]:,&*!<>-#|'\" \n\tab1\u0661\x1b", max_size=30))
def test_any_yaml_text_is_a_value_or_a_sentence(text):
    try:
        json.dumps(parse_value(text, "rounds"), default=str)
    except InputError as error:
        a_sentence(error)


@pytest.mark.parametrize("text", ["1e-3", "1.5e3", ".5E+2", "-2e0"])
def test_numbers_with_an_exponent_are_numbers_and_their_texts_stay_texts(text):
    assert parse_value(text, "local.lr") == float(text)
    assert parse_value(f"'{text}'", "x") == text == parse_value(as_text(text), "x")
    assert parse_value(as_text(float(text)), "x") == float(text)


def nested_aliases(depth: int) -> str:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]" for k in range(1, depth)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (nested_aliases(9), "line 6.*aliases.*1,000,000"),
        ("a: &a [*a]", "line 1.*itself"),
        ("[" * 1000, "line 1.*nested"),
        ("[" * 1_000_000, "line 1.*nested"),
    ],
)
def test_yaml_that_would_grow_or_be_no_value_is_refused(text, reason, tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=reason):
        read_yaml(path)


def test_pipes_and_devices_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    for read in (
        read_yaml,
        read_stored,
        read_json,
        read_metrics,
        read_clients,
        integrity.verify_seal,
    ):
        for name in ("pipe.yaml", "zero.yaml"):
            with pytest.raises(InputError, match="regular file"):
                read(tmp_path / name)
    with pytest.raises(InputError, match="regular file"):
        read_experiment(str(tmp_path / "pipe.yaml"))
    with pytest.raises(InputError, match="regular file"):
        read_contents(tmp_path / "pipe.yaml")


# Results.

CELLS = st.sampled_from(
    ["0", "1", "2", "-1", "nan", "inf", "1.5", "", "١", "1_0", "x", "9" * 5000, '"', "\x00", "a,b"]
)


@EXAMPLES
@given(
    rows=st.lists(st.lists(CELLS, max_size=4), max_size=4),
    header=st.sampled_from(["round,loss", "round", "loss", "round,round", "round,", ""]),
    growing=st.booleans(),
)
def test_any_metrics_have_rising_rounds_and_numbers_or_are_refused(rows, header, growing, tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("\n".join([header, *map(",".join, rows)]) + "\n")
    try:
        found = read_metrics(path, growing)
    except InputError as error:
        a_sentence(error)
        return
    if growing and not found.columns:
        assert found.rows == []
        return
    rounds = found.texts("round")
    assert all(ROUND.fullmatch(text) for text in rounds)
    assert (np.diff(found.numbers("round")) > 0).all()
    assert all(found.numbers(name).shape == (len(rows),) for name in found.columns)


def test_a_row_in_the_making_is_left_out_of_growing_metrics(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("round,loss\n0,1.5\n1,0.")
    assert read_metrics(path, growing=True).rows == [["0", "1.5"]]
    with pytest.raises(InputError, match=r"metrics\.csv.*last line"):
        read_metrics(path)


# Parts that lie in other files.


def external_link(file: h5py.File, name: str, other: Path) -> None:
    file[name] = h5py.ExternalLink(str(other), "/x")


def external_storage(file: h5py.File, name: str, other: Path) -> None:
    file.create_dataset(name, (8,), "u1", external=[(str(other), 0, 8)])


def virtual(file: h5py.File, name: str, other: Path) -> None:
    layout = h5py.VirtualLayout((8,), "u1")
    layout[:] = h5py.VirtualSource(str(other), "x", (8,))
    file.create_virtual_dataset(name, layout)


@pytest.mark.parametrize("place", [external_link, external_storage, virtual])
@pytest.mark.parametrize("name", ["train/x"])
def test_no_reader_follows_an_hdf5_file_to_another_file(place, name, tmp_path):
    secret = tmp_path / "secret"
    with h5py.File(secret, "w") as file:
        file["x"] = np.frombuffer(b"passwd!!", np.uint8)
    path = tmp_path / "found.h5"
    with h5py.File(path, "w", userblock_size=integrity.BLOCK) as file:
        place(file, name, secret)
    integrity.seal(path)
    with pytest.raises(InputError, match=r"found\.h5.*/train/x.*another file"):
        read_contents(path)
    with pytest.raises(InputError, match=r"found\.h5.*/train/x.*another file"):
        read_clients(path)
    with pytest.raises(Damaged, match=r"found\.h5.*/train/x.*another file"):
        checkpoint.read_meta(path)
    with pytest.raises(Damaged, match=r"found\.h5.*/train/x.*another file"):
        checkpoint.read_arrays(path)


# Checkpoints that somebody has sealed again.

META = {
    "format": 1,
    "round": 4,
    "seed": 0,
    "horizon": 9,
    "configuration": json.dumps(STORED),
    "ledger": '{"up_bits": 5}',
    "seconds": '{"total": 0.5}',
}


def sealed(path: Path, attributes: dict, columns=("round",), rows=(("0",), ("4",))) -> Path:
    with h5py.File(path, "w", userblock_size=integrity.BLOCK) as file:
        about = file.create_group("meta")
        for name, value in attributes.items():
            about.attrs[name] = value
        text = h5py.string_dtype()
        table = np.array(rows, dtype=object)
        file["metrics/columns"] = np.array(columns, dtype=object).astype(text)
        file.create_dataset("metrics/rows", table.shape, text, table)
        file.create_group("server")
        file.create_group("clients")
    integrity.seal(path)
    return path


@pytest.mark.parametrize("name", ["metrics/rows"])
def test_values_that_are_declared_but_not_stored_are_not_read(name, tmp_path):
    path = sealed(tmp_path / "c.h5", META)
    with h5py.File(path, "r+") as file:
        kind = float if name == "meta/simulated" else h5py.string_dtype()
        if name in file:
            del file[name]
        file.create_dataset(name, (10**7, 1) if name == "metrics/rows" else (10**7,), kind)
    integrity.seal(path)
    with pytest.raises(Damaged, match=r"c\.h5.*/metrics/rows.*\b10000000\b"):
        checkpoint.read_meta(path)


def test_a_sealed_description_is_read(tmp_path):
    meta = checkpoint.read_meta(sealed(tmp_path / "c.h5", META))
    assert (meta.round, meta.configuration, meta.metrics) == (4, STORED, "round\n0\n4\n")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"format": 2}, "/meta.*format 2.*1"),
        ({"configuration": "[" * 100_000}, "recursion"),
        ({"configuration": json.dumps({**STORED, "rounds": 0})}, "rounds.*whole number.*1"),
    ],
)
def test_a_sealed_description_is_not_believed(changes, reason, tmp_path):
    path = sealed(tmp_path / "c.h5", {**META, **changes})
    with pytest.raises(Damaged, match=reason) as refused:
        checkpoint.read_meta(path)
    a_sentence(refused.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"round\n4\n2\n", "rounds.*row 2"),
        (b"round\n\xff\n", "utf-8.*0xff"),
        (b'round\n"0\n', "unexpected end"),
        (b"\0" * 9, "column round"),
    ],
)
def test_recorded_rounds_in_a_checkpoint_are_not_believed(content, reason, tmp_path):
    path = sealed(tmp_path / "c.h5", META)
    with h5py.File(path, "r+") as file:
        del file["metrics"]
        file["metrics/csv"] = np.frombuffer(content, np.uint8)
    integrity.seal(path)
    with pytest.raises(Damaged, match=reason) as refused:
        checkpoint.read_meta(path)
    a_sentence(refused.value)


def test_the_newest_intact_checkpoint_is_found_in_one_way(tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    sealed(folder / "round-000004.h5", META)
    (folder / "round-000006.h5").write_bytes(b"cut")
    os.mkfifo(folder / "round-000008.h5")
    (folder / "round-٠٠٠٠٠٩.h5").write_bytes(b"")
    found, passed_over = checkpoint.newest(tmp_path)
    assert found is not None and found[0].name == "round-000004.h5"
    assert [reason.split(" ")[0].rsplit("/")[-1] for reason in passed_over] == [
        "round-000008.h5",
        "round-000006.h5",
    ]
    assert checkpoint.newest(tmp_path / "nowhere") == (None, [])
