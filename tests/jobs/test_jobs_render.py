"""Scripts as they are rendered, and texts that want to break out of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpifed.errors import InputError
from mpifed.jobs import render
from mpifed.jobs.plan import FILES, Job, continued, plan
from mpifed.jobs.slurm import for_sbatch
from mpifed.sweep.plan import Planned

COMMON = ["clients=4", "rounds=6", "job.python=/opt/venv/bin/python", "job.mpirun=/opt/bin/mpirun"]
SITE = str(FILES / "sites" / "example-cluster.yaml")
CASES = {
    "mpirun": (["job.ranks=4"], None),
    "srun": (["job.nodes=1-2", "job.ranks_per_node=2", "job.max_restarts=0"], SITE),
    "gpu": (["job.nodes=1", "job.ranks_per_node=4", "job.gpus_per_node=a100:4", "job.mem=0"], None),
    "container": (["job.ranks=4", "job.image=/opt/an image.sif", "job.launcher=srun"], None),
    "array": (
        ["seed=[0,1]", "algorithm=[fedem,fedavg]", "job.ranks=4", "job.array_limit=2"],
        None,
    ),
}
TEXTS = st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" "), min_size=1)


def planned(name: str) -> Job:
    words, site = CASES[name]
    return plan([*COMMON, *words], site, Path("/runs") / name, False)


def script(job: Job) -> str:
    return render.script(job, range(len(job.runs)))


def shellcheck() -> str:
    beside = Path(sys.executable).with_name("shellcheck")
    found = str(beside) if beside.exists() else shutil.which("shellcheck")
    if found is None:
        pytest.skip("shellcheck is not installed")
    return found


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("mpirun", ["#SBATCH --ntasks=4", "mpirun=/opt/bin/mpirun"]),
        (
            "srun",
            [
                "#SBATCH --nodes=1-2",
                "#SBATCH --ntasks-per-node=2",
                "#SBATCH --no-requeue",
                "#SBATCH --exclude=node[13,17]",
                "module load -- gcc/13",
                "export UCX_TLS=rc,sm,self",
            ],
        ),
        ("gpu", ["#SBATCH --gres=gpu:a100:4", "#SBATCH --mem=0"]),
        ("container", ["container=('apptainer' 'exec' '/opt/an image.sif')"]),
        ("array", ["#SBATCH --array=0,1,2,3%2", "case $SLURM_ARRAY_TASK_ID in"]),
    ],
)
def test_a_script_asks_for_what_the_options_say(name: str, lines: list[str]) -> None:
    found = script(planned(name)).splitlines()
    assert [line for line in lines if line not in found] == []


@pytest.mark.parametrize("name", CASES)
def test_shellcheck_finds_nothing_in_rendered_scripts(name: str) -> None:
    command, job = [shellcheck(), "--severity=warning", "-"], planned(name)
    for text in (script(job), render.report_script(job)):
        subprocess.run(command, input=text, text=True, check=True, timeout=60)


@pytest.mark.parametrize("site", ["lumi", "leonardo", "juwels-booster", "frontier"])
def test_sites_render(site: str, tmp_path: Path) -> None:
    assert "not run there" in (FILES / "sites" / f"{site}.yaml").read_text()
    words = ["job.nodes=2", "job.ranks_per_node=8", "clients=4"]
    text = script(plan(words, site, tmp_path / "run", False))
    subprocess.run(["bash", "-n"], input=text, text=True, check=True, timeout=20)


@pytest.mark.parametrize("path", sorted((FILES / "examples").glob("*.yaml")), ids=lambda p: p.stem)
def test_the_examples_render(path: Path, tmp_path: Path) -> None:
    job = plan([str(path)], None, tmp_path / "run", False)
    text = script(job)
    assert job.sweep == (path.stem == "sweep") == ("#SBATCH --array=0" in text)
    subprocess.run(["bash", "-n"], input=text, text=True, check=True, timeout=20)
    assert not (tmp_path / "run").exists()


def test_the_section_sweep_of_an_experiment_is_swept_over(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(
        "job: {ranks: 2}\nsweep: {seed: [0, 1], algorithm: [fedavg, local]}\ndata: digits\n"
        "clients: 4\nmodel: {name: mlp, hidden: [8, 4]}\n"
    )
    job = plan([str(path), "algorithm=fedavg", "local.lr=[0.1,0.2]"], None, tmp_path / "out", False)
    assert len(job.runs) == 4
    assert set(job.runs[0].overrides) == {"seed", "local.lr", "algorithm"}
    assert not {"job", "sweep"} & set((job.text or "").split())


def test_the_command_line_goes_before_the_experiment_and_that_before_the_site(
    tmp_path: Path,
) -> None:
    site, path = tmp_path / "site.yaml", tmp_path / "own.yaml"
    site.write_text(
        "ranks: 2\nenvironment: {A: 1, B: 1}\nqos: site\naccount: site\npartition: site\n"
    )
    path.write_text("job: {account: file, partition: file}\n")
    words = [str(path), "job.partition=word", "job.environment.B=2"]
    job = plan(words, str(site), tmp_path / "out", False)
    found = job.options
    assert (found.qos, found.account, found.partition, found.ranks) == ("site", "file", "word", 2)
    assert found.environment == {"A": 1, "B": "2"}
    later, left = continued(job, [0], ["job.ranks=3", "rounds=9"])
    assert (later.options.ranks, later.runs[0].overrides["rounds"], left) == (3, 9, [0])


def test_directives_can_be_added() -> None:
    words = ["job.ranks=2", "job.extra_directives=['--reservation=a b']"]
    assert "#SBATCH --reservation=a b\n" in script(plan(words, None, Path("/x"), False))


def test_smoke_is_one_round_on_two_ranks(tmp_path: Path) -> None:
    words = ["seed=[0,1]", "rounds=50", "job.nodes=8", "job.ranks_per_node=32"]
    job = plan(words, None, tmp_path / "out", True)
    assert (len(job.runs), job.sweep, job.runs[0].overrides["rounds"]) == (1, False, 1)
    assert (job.layout.ranks, job.layout.nodes, job.options.max_restarts) == (2, "2", 0)
    assert job.output == tmp_path / "out-smoke"


@settings(max_examples=40, deadline=None)
@given(st.lists(TEXTS, min_size=7, max_size=7))
def test_no_text_breaks_out_of_a_script(texts: list[str]) -> None:
    """bash, asked what the settings hold, gives back what was put in; and nothing is run."""
    folder_name, value, image, word, python, variable, experiment = texts
    options = {"ranks": 2, "image": image, "container_options": [word], "python": python}
    options |= {"environment": {"TEXT": variable}, "mpirun": value}
    options = {key: text for key, text in options.items() if not _blank(text)}
    output = Path("/runs") / folder_name.replace("/", "_").replace("\\", "_")
    run = Planned(output, {"data.path": value}, {})
    job = Job("own", experiment, output, False, (run,), options)
    text = script(job)
    show = 'printf "%s\\0" "$run_dir" "$experiment" "$mpirun" "${container[@]}" "${words[@]}"'
    settings_only = text.split("\nlaunch()")[0]
    exports = "\n".join(line for line in text.splitlines() if line.startswith("export TEXT"))
    done = subprocess.run(
        ["bash", "-c", f"{settings_only}\n{exports}\n{show}; printf '%s\\0' \"${{TEXT-}}\""],
        capture_output=True,
        check=True,
        timeout=20,
        env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
    )
    expected = [str(output), experiment, job.options.mpirun, *render._container(job.options)]
    expected += [f"data.path={render.as_text(value)}", options.get("environment", {})["TEXT"], ""]
    assert done.stdout.decode().split("\0") == expected


def _blank(value: object) -> bool:
    texts = value if isinstance(value, list) else [value]
    return any(isinstance(text, str) and not text.strip() for text in texts)


@given(TEXTS)
def test_directives_are_quoted_as_sbatch_reads_them(text: str) -> None:
    """By the rules of sbatch: a word ends at a blank outside of quotes, # begins a comment, a
    backslash takes the next character as it stands.
    """
    written = for_sbatch(text)
    found, quoted, place = "", False, 0
    while place < len(written):
        character = written[place]
        if character == "\\":
            place += 1
            found += written[place]
        elif character == '"':
            quoted = not quoted
        else:
            assert quoted or not (character.isspace() or character in "#'")
            found += character
        place += 1
    assert found == text
    assert not quoted

    with pytest.raises(InputError, match="one line of text"):
        for_sbatch(f"{text}\n")
