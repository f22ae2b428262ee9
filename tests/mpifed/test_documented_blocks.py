"""Every command of the documentation is run, checked, tested elsewhere, or marked with why not."""

from __future__ import annotations

import doctest
import importlib
import re
import shlex
import shutil
import subprocess
import sys
import venv
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from commands import environment
from documented_blocks import BLOCKS, COMMANDS, OTHERS, ROOT, Block

from mpifed.config.configuration import apply_overrides, resolve
from mpifed.config.experiments import parse_overrides, read_experiment, split_words
from mpifed.jobs.__main__ import parser as jobs_parser
from mpifed.launch import parser as run_parser
from mpifed.report.__main__ import parser as report_parser
from mpifed.report.__main__ import request_of
from mpifed.reproduce.__main__ import main as reproduce
from mpifed.sweep.__main__ import main as sweep

SECONDS = 240
CHECKED = [block for block in BLOCKS if block.mark and block.mark["check"]]
PAGES: dict[str, list[Block]] = defaultdict(list)
for each in BLOCKS:
    PAGES[each.page].append(each)
RUNNING = [block for block in BLOCKS if block.runs]


def test_every_block_has_a_language_and_every_command_a_mark():
    assert [block.place for block in BLOCKS if block.language not in COMMANDS + OTHERS] == []
    commands = [block for block in BLOCKS if block.language in COMMANDS]
    assert [block.place for block in commands if block.mark is None] == []


def test_a_test_that_a_block_names_reads_its_page():
    for block in BLOCKS:
        if block.mark and block.mark["tested"]:
            text = (ROOT / block.mark["tested"]).read_text(encoding="utf-8")
            assert Path(block.page).name in text or "scripts/quickstart" in text, block.place


def test_the_top_of_the_readme_works_as_pasted(tmp_path):
    """On a machine that has no mpirun, and in a checkout that has no .venv before."""
    (first, *_) = PAGES["README.md"]
    stubs = {"scripts/quickstart": QUICKSTART, "scripts/test": 'echo "scripts/test $*" >> done'}
    for name, text in stubs.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    venv.create(tmp_path / "made", with_pip=False)
    where = {"cwd": tmp_path, "env": {"PATH": "/nowhere"}, "timeout": 20}
    bash = shutil.which("bash")
    done = subprocess.run([bash, "-euc", first.script], capture_output=True, text=True, **where)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "done").read_text().splitlines()
    assert lines == ["mpirun -n 100 python -m mpifed.run", "scripts/test "]


QUICKSTART = """
PATH=/usr/bin:/bin
sed "s=$PWD/made=$PWD/.venv=" -i made/bin/activate
mv made .venv
printf '#!/bin/bash\necho "mpirun $*" >> done\n' > .venv/bin/mpirun
chmod +x .venv/bin/mpirun
"""


RECORD = """
python() { printf '%s\\0' "$#" "$@" >&3; }
mpirun() { shift 2; "$@"; }
mpifed() { python -m "mpifed.$1" "${@:2}"; }
command_not_found_handle() { echo "mark '$1' as run, or as not run" >&2; return 127; }
PATH=/nowhere
"""
"""Makes bash say what Python would be called with: quotes, variables and loops are bash's."""


def calls(script: str, folder: Path) -> list[list[str]]:
    """The words behind every ``python`` of a script."""
    bash = ["bash", "-euc", f"exec 3>calls\n{RECORD}\n{script}"]
    done = subprocess.run(bash, cwd=folder, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr
    rest = (folder / "calls").read_text(encoding="utf-8").split("\0")[:-1]
    found = []
    while rest:
        count = int(rest[0])
        found.append(rest[1 : 1 + count])
        rest = rest[1 + count :]
    return found


def check_run(words: Sequence[str]) -> None:
    experiment, given = split_words(run_parser().parse_intermixed_args(words).words)
    resolve(
        apply_overrides(read_experiment(experiment or "synthetic-fedem"), parse_overrides(given))
    )


def check_report(words: Sequence[str]) -> None:
    request_of(report_parser().parse_args(words))


def check_jobs(words: Sequence[str]) -> None:
    jobs_parser("").parse_intermixed_args(words)


def parsed(module: str) -> Callable[[Sequence[str]], None]:
    """The check of a command whose parser refuses what is wrong."""

    def check(words: Sequence[str]) -> None:
        importlib.import_module(module).parser().parse_args(words)

    return check


CHECKS = {
    "mpifed.run": check_run,
    "mpifed.report": check_report,
    "mpifed.jobs": check_jobs,
    "mpifed.verify": parsed("mpifed.verify"),
    "mpifed.retime": parsed("mpifed.retime"),
    "topologies": parsed("topologies.__main__"),
    "mpifed.sweep": lambda words: sweep([*words, "--dry-run"]),
    "mpifed.reproduce": lambda words: reproduce([*words, "--dry-run"]),
}
"""What accepts the words of a module, and does nothing."""


def write_files(blocks: Sequence[Block], folder: Path) -> None:
    for block in blocks:
        if block.mark and block.mark["file"]:
            (folder / block.mark["file"]).write_text(block.text, encoding="utf-8")


@pytest.mark.parametrize("block", CHECKED, ids=lambda block: block.place)
def test_the_words_of_a_block_are_accepted(block, tmp_path, monkeypatch, capsys):
    earlier = [other for other in PAGES[block.page] if other.line < block.line]
    write_files(earlier, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for other in earlier:  # modules of one name, from other pages or tests
        if other.mark and other.mark["file"]:
            stem = Path(other.mark["file"]).stem
            monkeypatch.setitem(sys.modules, stem, None)  # what is imported is forgotten at the end
            monkeypatch.delitem(sys.modules, stem)
    # variables that earlier blocks of the page have set
    known = re.findall(r'^\w+=".*"$', "\n".join(other.text for other in earlier), re.MULTILINE)
    found = calls("\n".join([*known, block.script]), tmp_path)
    assert found
    for flag, module, *words in found:
        assert flag == "-m"
        assert not CHECKS[module](words), shlex.join(words) + capsys.readouterr().err


@pytest.fixture(scope="module")
def desks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a page: ``python`` is this one, and activating it does nothing."""
    made: dict[str, Path] = {}

    def desk(page: str) -> Path:
        if page not in made:
            made[page] = folder = tmp_path_factory.mktemp("desk")
            for below in ("bin", "work/.venv/bin"):
                (folder / below).mkdir(parents=True)
            (folder / "work" / ".venv" / "bin" / "activate").touch()
            (folder / "bin" / "python").write_text(PYTHON)
            (folder / "bin" / "mpifed").write_text(MPIFED)
            for name in ("python", "mpifed"):
                (folder / "bin" / name).chmod(0o755)
            write_files(PAGES[page], folder / "work")
        return made[page]

    return desk


PYTHON = f"""#!/bin/bash
case "$1 $2" in "-m mpifed.run" | "-m mpifed.sweep") more=$DOCUMENTED_WORDS ;; esac
exec {shlex.quote(sys.executable)} "$@" $more
"""
MPIFED = """#!/bin/bash
exec python -m "mpifed.$1" "${@:2}"
"""


def run_block(block: Block, desk: Path) -> subprocess.CompletedProcess[str]:
    """Run a block as bash, or Python, would."""
    variables = environment(DOCUMENTED_WORDS=(block.mark or {})["words"] or "")
    beside = Path(sys.executable).parent  # its mpirun, where there is one
    variables["PATH"] = f"{desk / 'bin'}:{beside}:{variables['PATH']}"
    variables["PYTHONPATH"] = str(ROOT)
    if block.language == "python":
        # a file, since programs with processes of their own import it again
        (desk / "work" / "program.py").write_text(block.text, encoding="utf-8")
        words = [sys.executable, "program.py"]
    else:
        words = ["bash", "-euo", "pipefail", "-c", block.script]
    where = {"cwd": desk / "work", "env": variables, "timeout": SECONDS}
    return subprocess.run(words, capture_output=True, text=True, **where)


@pytest.mark.slow
@pytest.mark.parametrize("block", RUNNING, ids=lambda block: block.place)
def test_the_commands_of_a_block_work(block, desks):
    """In the order of the page, since what one block writes the next may read."""
    done = run_block(block, desks(block.page))
    assert done.returncode == int(block.mark["code"] or 0), done.stdout + done.stderr
    if block.mark["compare"]:
        shown = re.sub(r"^\$ .*(?:\\\n.*)*\n", "", block.text, flags=re.MULTILINE)
        assert doctest.OutputChecker().check_output(shown, done.stdout, doctest.ELLIPSIS), (
            done.stdout
        )
