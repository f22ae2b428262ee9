"""The cost of importing, and environments that are copied only where that takes less time."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest
from fake_slurm import FakeSlurm, fake_slurm
from hypothesis import given
from hypothesis import strategies as st
from test_jobs_script import ended, script

from mpifed.errors import InputError, RunError
from mpifed.jobs import importing
from mpifed.jobs.importing import Cost, complete, cost, main, seconds_to_unpack


def test_an_import_is_measured_in_a_process_of_its_own():
    found = cost()
    # A module that is imported from a file is looked up at least once; torch alone has as many.
    assert found.paths > 1000
    assert found.user + found.system > 0
    assert found.seconds > 0


@given(paths=st.integers(0, 10**6), ranks=st.integers(1, 10**5))
def test_ranks_look_up_as_many_paths_each(paths, ranks):
    said = Cost(1.0, 0.5, 0.5, paths).of_ranks(ranks)
    assert f"looks up {paths:,} paths" in said
    assert (f"{ranks} ranks look up {paths * ranks:,}" in said) == (ranks > 1)


@pytest.mark.parametrize("python", ["/no/python", "false"])
def test_a_python_that_cannot_import_is_named(python):
    with pytest.raises(RunError, match=f"{python} cannot import mpifed"):
        cost(python)


def packed(folder: Path, sizes: list[int], name: str = "archive.tar", mode: str = "-cf") -> Path:
    files = folder / "files"
    files.mkdir()
    for k, size in enumerate(sizes):
        (files / f"{k:05d}").write_bytes(bytes(size))
    subprocess.run(["tar", "-C", files, mode, folder / name, "."], check=True, timeout=30)
    return folder / name


@pytest.fixture
def unpacked(monkeypatch) -> list[dict[str, int]]:
    """Sizes of the files that were unpacked, by name, in what is taken for a second."""
    seen: list[dict[str, int]] = []
    unpack = importing._unpacked

    def counted(archive: bytes, place: str) -> float:
        unpack(archive, place)
        files = [path for path in Path(place, "files").rglob("*") if path.is_file()]
        seen.append({path.name: path.stat().st_size for path in files})
        return 1.0

    monkeypatch.setattr(importing, "_unpacked", counted)
    monkeypatch.setattr("time.perf_counter", lambda: 0.0)
    return seen


def test_unpacking_is_estimated_from_parts_of_the_archive(tmp_path, unpacked):
    archive, place = packed(tmp_path, [1000] * 2000), tmp_path / "place"
    place.mkdir()
    probe = 1 << 18
    found = seconds_to_unpack(archive, place, probe)
    assert found == pytest.approx(archive.stat().st_size / probe)
    assert list(place.iterdir()) == []
    whole = {name: size for name, size in unpacked[0].items() if not name.startswith("part")}
    assert len(whole) > 100 and {*whole.values()} == {1000}
    # From all over the archive: not the first files alone.
    with tarfile.open(archive) as opened:
        order = opened.getnames()
    at = [order.index(f"./{name}") for name in whole]
    assert min(at) < 50 and max(at) > 1900
    assert sum(850 < place < 1450 for place in at) > 10


@given(pieces=st.lists(st.tuples(st.integers(0, 19), st.integers(1, 20)), min_size=1, max_size=3))
def test_pieces_of_an_archive_make_one(pieces):
    content = bytes(range(256)) * 5
    info = tarfile.TarInfo("name")
    info.size = len(content)
    one = info.tobuf() + content + bytes(-len(content) % 512)  # four blocks
    whole = [(one * 10)[512 * start : 512 * (start + count)] for start, count in pieces]
    made = b"".join(complete(piece, f"part-{k}") for k, piece in enumerate(whole))
    with tarfile.open(fileobj=io.BytesIO(made + bytes(1024))) as opened:
        files = opened.getmembers()
        contents = [opened.extractfile(file).read() for file in files]
    names = [file.name for file in files]
    assert all(
        text == content for name, text in zip(names, contents, strict=True) if name == "name"
    )
    inside = [max(0, (start + count) // 4 - -(-start // 4)) for start, count in pieces]
    assert names.count("name") == sum(inside)


def test_what_cannot_be_unpacked_is_refused(tmp_path, capfd):
    with pytest.raises(InputError, match="cannot be unpacked"):
        seconds_to_unpack(tmp_path / "none", tmp_path)
    for content in ("no archive\n" * 1000, ""):
        (tmp_path / "text").write_text(content)
        with pytest.raises(InputError, match=r"text cannot be unpacked in .*: "):
            seconds_to_unpack(tmp_path / "text", tmp_path)
    assert main([str(tmp_path / "none"), str(tmp_path)]) == 2
    assert main([]) == 2
    assert capfd.readouterr().err.count("\n") == 2


@pytest.fixture
def slurm(tmp_path: Path) -> FakeSlurm:
    found = fake_slurm(tmp_path / "slurm")
    found.answer("queue", "RUNNING\n")
    return found


@pytest.mark.parametrize(("status", "staged"), [(0, True), (1, False), (2, True)])
def test_a_job_stages_where_that_is_faster(status, staged, slurm: FakeSlurm, tmp_path: Path):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f"#!/bin/bash\necho measured by $2\nexit {status}\n")
    python.chmod(0o700)
    archive, scratch = tmp_path / "env.tar", tmp_path / "scratch"
    scratch.mkdir()
    subprocess.run(["tar", "-C", tmp_path, "-cf", archive, "bin"], check=True, timeout=30)
    words = [f"job.stage={archive}", f"job.scratch={scratch}", "job.stage_when=faster"]
    code, said = ended(slurm, script(tmp_path, "touch DONE", *words, f"job.python={python}"))
    assert code == 0, said
    assert "measured by mpifed.jobs.importing" in said
    assert (f"unpacked {archive}" in said) == staged
    used = (tmp_path / "launched").read_text()
    assert (f"{scratch}/mpifed-7-" in used) == staged
    assert list(scratch.iterdir()) == []
