"""Options of jobs: where they come from, what they mean together, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mpifed.errors import InputError
from mpifed.jobs.options import (
    FILES,
    check,
    layout,
    read_section,
    read_site,
    read_words,
    seconds,
)


def test_every_shipped_site_is_valid() -> None:
    names = [path.stem for path in (FILES / "sites").glob("*.yaml")]
    assert {"generic", "example-cluster"} <= set(names)
    for name in names:
        check({"ranks": 2, **read_site(name)})


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
    with pytest.raises(InputError, match=f"{nodes} x {each} = {nodes * each}, but"):
        check({"nodes": nodes, "ranks_per_node": each, "ranks": ranks})


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90", 5400), (90, 5400), ("1:30", 90), ("2:00:00", 7200), ("1-12", 129600),
     ("1-0:30", 88200), ("2-01:02:03", 176523)],
)  # fmt: skip
def test_time_limits_are_read_as_slurm_reads_them(text: int | str, expected: int) -> None:
    assert seconds(text) == expected


def test_texts_stay_texts_that_yaml_would_take_for_numbers(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("job: {time: 2:00:00, account: 0815, qos: 1e3, mem: 4G, ranks: 8}\n")
    expected = {"time": "2:00:00", "account": "0815", "qos": "1e3", "mem": "4G", "ranks": 8}
    assert read_section(path) == expected
    words = [f"job.{key}={value}" for key, value in expected.items()]
    assert read_words(words) == expected


def test_variables_of_the_environment_keep_their_letters(tmp_path: Path) -> None:
    words = ["job.environment.A=FALSE", "job.environment.B=1e3", "job.environment.C=a, b: 007"]
    found = read_words(words)
    assert found == {"environment": {"A": "FALSE", "B": "1e3", "C": "a, b: 007"}}
    check({"ranks": 1, **found})
    path = tmp_path / "own.yaml"
    path.write_text("environment: {A: 'FALSE', B: 7, C: x y}\n")
    assert check({"ranks": 1, **read_site(str(path))}).environment["B"] == 7
    for value in ("FALSE", "1.5", "[1]", "null"):
        path.write_text(f"environment: {{A: {value}}}\n")
        with pytest.raises(InputError, match="in quotes"):
            check({"ranks": 1, **read_site(str(path))})


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({}, "job.ranks is missing"),
        ({"ranks": 5, "nodes": 2}, "job.nodes, 2, does not divide"),
        ({"nodes": "2-4"}, "needs job.ranks_per_node"),
        ({"ranks": 2, "time": "0:00:30"}, "job.warn_seconds is 60; it must be below"),
        ({"ranks": 2, "mem": "4G", "mem_per_cpu": "1G"}, "a job takes one of them"),
        ({"ranks": 2, "partition": "a\n#SBATCH --account=other"}, "one line of text"),
        ({"ranks": 2, "environment": {"A-B": "1"}}, "a variable has a name of letters"),
        ({"ranks": 2, "gpu_mode": "per_task"}, "needs job.launcher=srun"),
        ({"ranks": 2, "gpu_type": "a100"}, "needs job.gpus_per_node"),
    ],
)
def test_bad_options_are_one_sentence(given: dict, part: str) -> None:
    with pytest.raises(InputError) as caught:
        check(given)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_right_alone_is_taken() -> None:
    check({"ranks": 1, "launcher": "srun", "mpi": "none"})
    check({"ranks": 2, "launcher": "srun", "container": "pyxis", "image": "docker://a#b:1"})


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("!!python/object/apply:os.system ['touch pwned']", "is not valid YAML"),
        ("partition: a\npartition: b", "twice"),
        ("[1, 2]", "does not hold a mapping"),
        ("a: [", "is not valid YAML"),
        ("acount: x", "site.yaml: Unknown option 'job.acount'"),
    ],
)
def test_bad_site_files_are_refused(text: str, part: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site.yaml").write_text(text)
    with pytest.raises(InputError, match=part):
        read_site("site.yaml")
    assert not (tmp_path / "pwned").exists()


def test_an_unknown_site_is_answered_with_the_closest() -> None:
    with pytest.raises(InputError, match="did you mean 'generic'"):
        read_site("genric")
    with pytest.raises(InputError, match=r"no-such\.yaml"):
        read_site("no-such.yaml")
