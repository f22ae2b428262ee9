"""Sizes that cannot be, files that grow, and what somebody has planted: refused before the work."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import TINY, call
from test_bad_input import refused

from mpifed.data.__main__ import main as make_data
from mpifed.data.archives import opened
from mpifed.errors import InputError
from mpifed.io.atomic import partial_of, replace_bytes, replacing
from mpifed.io.memory import check_memory, enough_memory
from mpifed.sweep.plan import MOST_RUNS, plan
from mpifed.training.run_directory import Recorder

TRILLION = "1000000000000"

SIZES = {
    "clients": (["clients=1000000000000"], "clients is 1000000000000, which needs 200 TB"),
    "clients of no int64": (["clients=100000000000000000000"], "clients is 1000000000"),
    "rounds": (["rounds=100000000000000000000"], "rounds is 1000000000"),
    "hexadecimal": ([f"rounds=0x{'f' * 5000}"], "rounds: '0xfff"),
    "samples": ([f"data.n_test={TRILLION}"], "data.n_test is 1000000000000"),
    "inputs": (["data.dimension=10000000000"], "data.dimension is 10000000000"),
    "components": ([f"data.n_components={TRILLION}"], "data.dimension is 20"),
    "layers": (["model=mlp", f"model.hidden=[{','.join(['4'] * 20000)}]"], "has 20000 layers"),
    "widths": (["model=mlp", f"model.hidden=[{TRILLION}]"], "the model mlp has 22000000000001 par"),
    "edges": (
        ["clients=2000000", "exchange=gossip", "exchange.topology=complete"],
        "exchange.topology: complete with 2000000 nodes needs",
    ),
    "Arabic digits": (["local.lr=١٢"], "local.lr is '١٢'"),
    "underscores": (["algorithm.mixture_floor=1_0e-3_"], "algorithm.mixture_floor is '1_0e-3_'"),
    "Arabic ranks": (["--expect-ranks", "١"], "--expect-ranks is '١'; it must be"),
    "a lone surrogate": (['experiment="\\ud800"'], r"experiment is '\ud800'"),
    "a colour": (["rounds=\x1b[31mred"], r"rounds: '\x1b[31mred'"),
    "a long word": ([f"rounds={'x' * 100_000}"], "rounds is 'xxx"),
    "a long key": ([f"{'x' * 100_000}=3"], "Unknown configuration key"),
}


@pytest.mark.parametrize("case", SIZES)
def test_sizes_that_cannot_be_are_refused_with_their_field(case, tmp_path, capfd):
    words, expected = SIZES[case]
    outcome = call([*TINY, *words, "--output", tmp_path / "run"], capfd)
    refused(outcome, expected, tmp_path / "run")
    assert outcome.err.strip().isprintable()


def test_an_output_that_is_not_utf_8_is_refused(tmp_path, capfd):
    target = os.fsdecode(os.fsencode(tmp_path) + b"/run\xff")
    outcome = call([*TINY, "--output", target], capfd)
    refused(outcome, "is not text in UTF-8", Path(target))


def test_memory_that_cannot_be_had_names_what_asked_for_it():
    check_memory(0, "nothing")
    with pytest.raises(InputError, match=r"^rows is 9, which needs 1 EB of memory, and "):
        check_memory(1e18, "rows is 9, which")
    for make, size in ((np.empty, 1 << 60), (np.empty, 1 << 50), (torch.empty, 1 << 55)):
        lacking = pytest.raises(InputError, match="not enough memory for the state")
        with lacking, enough_memory("the state"):
            make(size)
    with pytest.raises(RuntimeError, match="of another kind"), enough_memory("the state"):
        raise RuntimeError("of another kind")


def test_a_sweep_of_too_many_runs_is_refused_at_once():
    thousand = ",".join(map(str, range(1, 1001)))
    words = [f"seed=[{thousand}]", f"rounds=[{thousand}]"]
    with pytest.raises(InputError, match=rf"1000 of seed times 1000 of rounds .* {MOST_RUNS}"):
        plan("synthetic-fedem", words, Path("nowhere"), 1)


# Files that grow.


@pytest.mark.parametrize(
    ("ending", "compress"),
    [(".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)],
)
def test_a_file_that_grows_too_much_is_refused_on_the_way(ending, compress, tmp_path):
    path = tmp_path / f"bomb{ending}"
    path.write_bytes(compress(bytes(72 << 20)))
    with opened(path) as stream, pytest.raises(InputError, match="grows by more than 500 times"):
        while stream.read(1 << 22):
            pass
    path.write_bytes(compress(b"plain text"))
    with opened(path) as stream:
        assert stream.read() == b"plain text"


def test_a_head_that_announces_more_than_memory_is_refused(tmp_path, monkeypatch, capfd):
    raw = tmp_path / "raw"
    raw.mkdir()
    count = 2**32 - 1
    image = struct.pack(">IIII", 0x803, count, 1 << 15, 1 << 15)
    label = struct.pack(">II", 0x801, count)
    for part in ("train", "t10k"):
        (raw / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(image))
        (raw / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(label))
    monkeypatch.setattr("topologies.inputs.available_memory", lambda: 1 << 30)
    words = ["mnist", "--raw", str(raw), "--output", str(tmp_path / "o.h5"), "--clients", "3"]
    assert make_data(words) == 2
    assert f"{count} labels, which needs" in capfd.readouterr().err
    assert not (tmp_path / "o.h5").exists()


def test_numbers_of_data_are_ascii(tmp_path, capfd):
    for text in ("١٢", "1_0", "9" * 5000):
        words = ["digits", "--clients", text, "--output", str(tmp_path / "o.h5")]
        assert make_data(words) == 2
        (line,) = capfd.readouterr().err.splitlines()
        assert "--clients is" in line


# What is planted.


def recorder(directory: Path) -> Recorder:
    return Recorder(directory, ["round"], [], "seed: 0\n", lambda: None, True)


@pytest.mark.parametrize("plant", ["link", "pipe"])
def test_a_planted_log_is_not_written_to(plant, tmp_path):
    precious, directory = tmp_path / "precious", tmp_path / "run"
    precious.write_text("kept")
    directory.mkdir()
    if plant == "link":
        (directory / "log.txt").symlink_to(precious)
    else:
        os.mkfifo(directory / "log.txt")
    with pytest.raises(InputError, match=r"a link or a pipe named log\.txt"):
        recorder(directory)
    assert precious.read_text() == "kept"
    assert [path.name for path in directory.iterdir()] == ["log.txt"]


def test_a_planted_partial_file_is_not_written_to(tmp_path):
    precious, directory = tmp_path / "precious", tmp_path / "run"
    precious.write_text("kept")
    directory.mkdir()
    for name in ("config.yaml", "metrics.csv", "clients.h5"):
        partial_of(directory / name).symlink_to(precious)
    made = recorder(directory)
    made.row({"round": 0})
    made.close()
    assert precious.read_text() == "kept"
    assert (directory / "config.yaml").read_text() == "seed: 0\n"
    assert not (directory / "config.yaml").is_symlink()


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file"
    replace_bytes(path, b"old")
    with pytest.raises(KeyError), replacing(path) as partial:
        partial.write_bytes(b"half of the n")
        raise KeyError
    assert path.read_bytes() == b"old"
    replace_bytes(path, b"new")
    assert path.read_bytes() == b"new"
    assert [found.name for found in tmp_path.iterdir()] == ["file"]
