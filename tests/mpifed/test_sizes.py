"""Sizes that cannot be, files that grow, and what somebody has planted: refused before the work."""

from __future__ import annotations

import bz2
import gzip
import lzma

import numpy as np
import pytest
import torch
from commands import TINY, call
from test_bad_input import refused

from mpifed.data.archives import opened
from mpifed.errors import InputError
from mpifed.io.atomic import replace_bytes, replacing
from mpifed.io.memory import check_memory, enough_memory
from topologies.memory_limits import left_of_groups

TRILLION = "1000000000000"

SIZES = {
    "clients": (["clients=1000000000000"], "clients.* 1000000000000.* 200 TB"),
    "clients of no int64": (["clients=100000000000000000000"], "clients.* 100000000000000000000"),
    "widths": (["model=mlp", f"model.hidden=[{TRILLION}]"], "mlp.* 22000000000001 "),
    "edges": (
        ["clients=2000000", "exchange=gossip", "exchange.topology=complete"],
        "complete.* 2000000 nodes.* memory",
    ),
}


@pytest.mark.parametrize("case", SIZES)
def test_sizes_that_cannot_be_are_refused_with_their_field(case, tmp_path, capfd):
    words, expected = SIZES[case]
    outcome = call([*TINY, *words, "--output", tmp_path / "run"], capfd)
    refused(outcome, expected, tmp_path / "run")
    assert outcome.err.strip().isprintable()


def test_memory_that_cannot_be_had_names_what_asked_for_it():
    check_memory(0, "nothing")
    with pytest.raises(InputError, match=r"^rows is 9, which.* 1 EB of memory"):
        check_memory(1e18, "rows is 9, which")
    for make, size in ((np.empty, 1 << 60), (np.empty, 1 << 50), (torch.empty, 1 << 55)):
        lacking = pytest.raises(InputError, match=r"memory.*the state")
        with lacking, enough_memory("the state"):
            make(size)
    with pytest.raises(RuntimeError, match="of another kind"), enough_memory("the state"):
        raise RuntimeError("of another kind")


def test_control_groups_limit_the_memory_that_there_is(tmp_path):
    for folder, limit, used in (("a", "900", "500"), ("a/b", "max", "500"), ("", "2000", "600")):
        (tmp_path / folder).mkdir(exist_ok=True)
        for name, text in {"max": limit, "current": used, "stat": "inactive_file 70\n"}.items():
            (tmp_path / folder / f"memory.{name}").write_text(text)
    (tmp_path / "groups").write_text("1:cpu:/x\n0::/a/b\n")
    assert left_of_groups(tmp_path / "groups", tmp_path) == [470, 1470]


# Files that grow.


@pytest.mark.parametrize(
    ("ending", "compress"),
    [(".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)],
)
def test_a_file_that_grows_beyond_memory_is_refused_on_the_way(
    ending, compress, tmp_path, monkeypatch
):
    monkeypatch.setattr("topologies.memory_limits.available_memory", lambda: 1 << 24)
    path = tmp_path / f"bomb{ending}"
    path.write_bytes(compress(bytes(72 << 20)))
    with pytest.raises(InputError, match=r"bomb.* memory"), opened(path, 1) as stream:
        while stream.read(1 << 22):
            pass
    path.write_bytes(compress(b"plain text"))
    with opened(path) as stream:
        assert stream.read() == b"plain text"


# What is planted.


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
