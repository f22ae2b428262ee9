"""Options of jobs: where they come from, what they mean together, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from rendering import TEMPLATES, directives, refusal, rendered, site

PLACE = ["clients=100", "--output", "/nowhere/run"]


def test_every_shipped_site_is_valid() -> None:
    names = [path.stem for path in (TEMPLATES / "sites").glob("*.yaml")]
    assert {"generic", "example-cluster"} <= set(names)
    for name in names:
        options = yaml.safe_load((TEMPLATES / "sites" / f"{name}.yaml").read_text())
        size = "nodes" if "ranks_per_node" in options else "ranks"
        assert rendered(*PLACE, f"job.{size}=2", "--site", name)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"ranks": 6}, ("6", None, None)),
        ({"ranks": 6, "nodes": 2}, ("6", "2", "3")),
        ({"ranks": 6, "ranks_per_node": 2}, ("6", "3", "2")),
        ({"nodes": 3, "ranks_per_node": 2}, ("6", "3", "2")),
        ({"nodes": 3, "ranks_per_node": 2, "ranks": 6}, ("6", "3", "2")),
        ({"nodes": "2-5", "ranks_per_node": 3}, ("6", "2-5", "3")),
    ],
)
def test_ranks_and_nodes_follow_from_each_other(given: dict, expected: tuple) -> None:
    asked = directives(rendered(*PLACE, *(f"job.{key}={value}" for key, value in given.items())))
    assert tuple(map(asked.get, ("ntasks", "nodes", "ntasks-per-node"))) == expected


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 2500))
@settings(deadline=None)
def test_a_layout_never_differs_from_what_was_asked(nodes: int, each: int, ranks: int) -> None:
    assume(ranks != nodes * each)
    words = [f"job.nodes={nodes}", f"job.ranks_per_node={each}", f"job.ranks={ranks}"]
    assert f"{nodes} x {each}" in refusal(*PLACE, *words)


def test_texts_stay_texts_that_yaml_would_take_for_numbers(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("{time: 2:00:00, account: 0815, mem: 4G, ranks: 8}\n")
    words = ["job.time=2:00:00", "job.account=0815", "job.mem=4G", "job.ranks=8"]
    for asked in (rendered(*PLACE, "--site", path), rendered(*PLACE, *words)):
        found = directives(asked)
        assert (found["time"], found["account"], found["mem"]) == ("2:00:00", "0815", "4G")


def test_variables_of_the_environment_keep_their_letters(tmp_path: Path) -> None:
    words = ["job.environment.A=FALSE", "job.environment.B=1e3", "job.environment.C=a, b: 007"]
    lines = rendered(*PLACE, "job.ranks=1", *words).splitlines()
    assert {"export A=FALSE", "export B=1e3", "export C='a, b: 007'"} <= set(lines)
    for value in (False, 1.5, [1], None):
        options = {"ranks": 1, "environment": {"A": value}}
        assert "job.environment" in refusal(*site(tmp_path, options))


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({}, r"job\.ranks\b.*job\.nodes"),
        ({"ranks": 5, "nodes": 2}, "job.nodes x job.ranks_per_node, 2 x 2"),
        ({"nodes": "2-4"}, "job.ranks_per_node"),
        (
            {"ranks": 2, "partition": "a\n#SBATCH --account=other"},
            "job.partition.*--account=other",
        ),
        ({"ranks": 2, "partition": "a b"}, "job.partition.*'a b'"),
        ({"ranks": 2, "container": "docker"}, "job.image.*job.container"),
        ({"ranks": 2, "launcher": "flux"}, "job.launcher.*'flux'"),
        ({"ranks": 2, "acount": "x"}, "'job.acount'"),
        ({"ranks": 2, "time": "abc"}, "job.time.*'abc'.*04:00:00"),
        ({"ranks": 2, "time": "1:99:99"}, "job.time.*'1:99:99'"),
        ({"ranks": 2, "time": "00:01:00", "warn_seconds": 60}, "job.time.*60 seconds.*warn"),
        ({"ranks": 2, "mem": "12QB"}, "job.mem.*'12QB'.*16G"),
    ],
)
def test_bad_options_are_one_sentence(given: dict, part: str, tmp_path: Path) -> None:
    assert re.search(part, refusal(*site(tmp_path, given)))


@pytest.mark.parametrize(
    "time",
    ["90", "2:30", "04:00:00", "1-0", "1-12:30", "1-12:30:15", "infinite", "UNLIMITED", "0"],
)
def test_times_are_those_of_slurm(time: str) -> None:
    assert directives(rendered(*PLACE, "job.ranks=2", f"job.time={time}"))["time"] == time


@pytest.mark.parametrize("text", ["!!python/object/apply:os.system ['touch pwned']", "[1, 2]"])
def test_bad_site_files_are_refused(text: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site.yaml").write_text(text)
    assert "site.yaml" in refusal(*PLACE, "job.ranks=2", "--site", "site.yaml")
    assert not (tmp_path / "pwned").exists()
    assert "'generic'" in refusal(*PLACE, "job.ranks=2", "--site", "genric")
