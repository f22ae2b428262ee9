"""A wheel in a bare environment, used outside the checkout, as docs/install.md says."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from distributions import ROOT, built, copied

import mpifed

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment ``env`` with the wheel of a source distribution; the rest is borrowed."""
    place = tmp_path_factory.mktemp("installed")
    checkout = copied(place / "checkout")
    source = built("sdist", checkout, place)
    subprocess.run(["tar", "-xzf", str(source)], cwd=place, check=True, timeout=60)
    (unpacked,) = place.glob("mpifed-*/")
    wheel = built("wheel", unpacked, place)
    assert wheel.name == f"mpifed-{mpifed.__version__}-py3-none-any.whl"
    venv.create(place / "env", with_pip=False)
    python = place / "env" / "bin" / "python"
    install = ("install", "--quiet", "--no-deps", "--no-index", str(wheel))
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), *install], check=True, timeout=120
    )
    # The packages that mpifed needs, but nothing that is installed for development: the .pth file
    # of an editable mpifed in that folder is not read.
    (folder,) = (place / "env" / "lib").glob("python*/site-packages")
    (folder / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (place / "elsewhere").mkdir()
    return place


def call(place: Path, *words: str, code: int = 0) -> str:
    """What an installed command prints."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "MPIFED_", "PMI", "OMPI_"))
    }
    done = subprocess.run(
        [str(place / "env" / "bin" / words[0]), *words[1:]],
        cwd=place / "elsewhere",
        capture_output=True,
        text=True,
        timeout=200,
        env={**variables, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def test_the_installed_package_is_the_one_that_runs(place: Path) -> None:
    program = "import mpifed, topologies; print(mpifed.__file__, topologies.__file__)"
    for path in call(place, "python", "-c", program).split():
        assert Path(path).is_relative_to(place / "env")
    assert call(place, "mpifed", "--version") == f"mpifed {mpifed.__version__}\n"


def test_a_run_a_report_a_job_and_a_graph(place: Path) -> None:
    small = ("clients=3", "rounds=2", "data.n_test=20")
    call(place, "mpifed", "run", "synthetic-fedem", *small, "--output", "run", "--quiet")
    # The same numbers as from the checkout.
    here = mpifed.run(
        "synthetic-fedem", output=place / "here", clients=3, rounds=2, **{"data.n_test": 20}
    )
    there = mpifed.read(place / "elsewhere" / "run")
    assert there.summary["state_digest"] == here.summary["state_digest"]
    call(place, "mpifed", "report", "run", "--output", "report", "--format", "svg")
    page = (place / "elsewhere" / "report" / "report.html").read_text()
    assert (ROOT / "mpifed" / "report" / "page.css").read_text().strip()[:40] in page
    words = ("mpifed", "jobs", "render", "synthetic-fedem", "job.ranks=2")
    assert "#SBATCH" in call(place, *words)
    assert "gap" in call(place, "mpifed", "topologies", "show", "ring:n=5")


def test_what_is_read_beside_modules_is_there(place: Path) -> None:
    for name in ("method", "model", "data", "schedule"):
        call(place, "mpifed", "new", name, f"my_{name}")
        assert (place / "elsewhere" / f"my_{name}.py").is_file()
    listed = call(place, "mpifed", "run", "--list", "experiments")
    shipped = {path.stem for path in (ROOT / "mpifed" / "experiments").glob("*.yaml")}
    assert {line.split()[0] for line in listed.splitlines()} == shipped
    program = (
        "from pathlib import Path; import mpifed.reproduce as r; "
        "print(*sorted(p.name for p in (Path(r.__file__).parent / 'experiments/tuned').iterdir()))"
    )
    tuned = {path.name for path in (ROOT / "experiments" / "tuned").glob("*.yaml")}
    assert tuned and set(call(place, "python", "-c", program).split()) == tuned
    assert "table" in call(place, "mpifed", "reproduce", "fedem", "--list").lower()
    words = ("job.ranks=2", "--site", "example-cluster")
    rendered = call(place, "python", "-m", "mpifed.jobs", "render", "clients=2", *words)
    assert rendered.startswith("#!")


def test_a_folder_named_mpifed_does_not_hide_an_editable_install(tmp_path: Path) -> None:
    checkout = copied(tmp_path / "mpifed")
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    (folder,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (folder / "zz.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = ("install", "--quiet", "--no-deps", "--no-build-isolation", "--editable", checkout)
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), *map(str, install)],
        check=True,
        timeout=120,
    )
    (tmp_path / "elsewhere").symlink_to(tmp_path)
    assert call(tmp_path, "python", "-m", "mpifed", "--version") == f"mpifed {mpifed.__version__}\n"
    program = "import mpifed; print(mpifed.__file__)"
    assert call(tmp_path, "python", "-c", program) == f"{checkout}/mpifed/__init__.py\n"
