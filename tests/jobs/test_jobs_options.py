"""Options of jobs: where they come from, what they mean together, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mpifed.errors import InputError
from mpifed.jobs.plan import FILES, check, layout, read_site, read_words


def test_every_shipped_site_is_valid() -> None:
    names = [path.stem for path in (FILES / "sites").glob("*.yaml")]
    assert {"generic", "example-cluster"} <= set(names)
    for name in names:
        given = read_site(name)
        check({"nodes" if "ranks_per_node" in given else "ranks": 2, **given})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"ranks": 6}, (6, None, None)),
        ({"ranks": 6, "nodes": 2}, (6, "2", 3)),
        ({"ranks": 6, "ranks_per_node": 2}, (6, "3", 2)),
        ({"nodes": 3, "ranks_per_node": 2}, (6, "3", 2)),
        ({"nodes": 3, "ranks_per_node": 2, "ranks": 6}, (6, "3", 2)),
        ({"nodes": "2-5", "ranks_per_node": 3}, (6, "2-5", 3)),
    ],
)
def test_ranks_and_nodes_follow_from_each_other(given: dict, expected: tuple) -> None:
    found = layout(check(given))
    assert (found.ranks, found.nodes, found.ranks_per_node) == expected


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 2500))
def test_a_layout_never_differs_from_what_was_asked(nodes: int, each: int, ranks: int) -> None:
    assume(ranks != nodes * each)
    with pytest.raises(InputError, match=f"ranks_per_node, {nodes} x {each};"):
        check({"nodes": nodes, "ranks_per_node": each, "ranks": ranks})


def test_texts_stay_texts_that_yaml_would_take_for_numbers(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("{time: 2:00:00, account: 0815, mem: 4G, ranks: 8}\n")
    expected = {"time": "2:00:00", "account": "0815", "mem": "4G", "ranks": 8}
    assert read_site(str(path)) == expected
    assert read_words([f"job.{key}={value}" for key, value in expected.items()]) == expected


def test_variables_of_the_environment_keep_their_letters() -> None:
    words = ["job.environment.A=FALSE", "job.environment.B=1e3", "job.environment.C=a, b: 007"]
    found = read_words(words)
    assert found == {"environment": {"A": "FALSE", "B": "1e3", "C": "a, b: 007"}}
    check({"ranks": 1, **found})
    for value in (False, 1.5, [1], None):
        with pytest.raises(InputError, match=r"job\.environment"):
            check({"ranks": 1, "environment": {"A": value}})


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({}, "job.ranks is missing"),
        ({"ranks": 5, "nodes": 2}, "not job.nodes x job.ranks_per_node, 2 x 2"),
        ({"nodes": "2-4"}, "with job.ranks_per_node and without job.ranks"),
        ({"ranks": 2, "partition": "a\n#SBATCH --account=other"}, "one line of text"),
        ({"ranks": 2, "partition": "a b"}, "job.partition is 'a b'; it must be one word"),
        ({"ranks": 2, "container": "docker"}, "job.image is missing"),
        ({"ranks": 2, "launcher": "flux"}, "job.launcher is 'flux'"),
        ({"ranks": 2, "acount": "x"}, "Unknown option 'job.acount'"),
    ],
)
def test_bad_options_are_one_sentence(given: dict, part: str) -> None:
    with pytest.raises(InputError) as caught:
        check(given)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["!!python/object/apply:os.system ['touch pwned']", "[1, 2]"])
def test_bad_site_files_are_refused(text: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site.yaml").write_text(text)
    with pytest.raises(InputError, match=r"site\.yaml"):
        read_site("site.yaml")
    assert not (tmp_path / "pwned").exists()
    with pytest.raises(InputError, match="did you mean 'generic'"):
        read_site("genric")
