"""Scripts as they are rendered, and texts that want to break out of them."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from rendering import TEMPLATES, directives, refusal, rendered, site

from mpifed.testing import run_command

COMMON = ["clients=4", "rounds=6", "job.python=/opt/venv/bin/python", "job.mpirun=/opt/bin/mpirun"]
SITE = str(TEMPLATES / "sites" / "example-cluster.yaml")
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


def planned(name: str, *more: object) -> str:
    words, site_file = CASES[name]
    site_words = [] if site_file is None else ["--site", site_file]
    return rendered(*COMMON, *words, *site_words, "--output", f"/runs/{name}", *more)


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
    found = planned(name).splitlines()
    assert [line for line in lines if line not in found] == []


@pytest.mark.parametrize("name", CASES)
def test_shellcheck_finds_nothing_in_rendered_scripts(name: str) -> None:
    command = [shellcheck(), "--severity=warning", "-"]
    subprocess.run(command, input=planned(name), text=True, check=True, timeout=60)


def test_shellcheck_finds_nothing_in_a_report_of_a_sweep(tmp_path: Path, capfd) -> None:
    words, _ = CASES["array"]
    options = ["--output", tmp_path / "sweep", "--dry-run", "--unchecked"]
    assert run_command(["jobs", "submit", *COMMON, *words, *options]) == 0
    out = capfd.readouterr().out
    _, _, text = out.partition("afterany:... <<'SCRIPT'\n")
    command = [shellcheck(), "--severity=warning", "-"]
    report = text.removesuffix("SCRIPT\n")
    assert report.startswith("#!/bin/bash\n") and "mpifed.report" in report
    subprocess.run(command, input=report, text=True, check=True, timeout=60)


@pytest.mark.parametrize("name", ["lumi", "leonardo", "juwels-booster", "frontier"])
def test_sites_render(name: str, tmp_path: Path) -> None:
    assert "not run" in (TEMPLATES / "sites" / f"{name}.yaml").read_text()
    words = ["job.nodes=2", "job.ranks_per_node=8", "clients=16"]
    text = rendered(*words, "--site", name, "--output", tmp_path / "run")
    subprocess.run(["bash", "-n"], input=text, text=True, check=True, timeout=20)


@pytest.mark.parametrize(
    "path", sorted((TEMPLATES / "examples").glob("*.yaml")), ids=lambda p: p.stem
)
def test_the_examples_render(path: Path, tmp_path: Path) -> None:
    text = rendered(path, "--output", tmp_path / "run")
    assert (path.stem == "sweep") == ("#SBATCH --array=0" in text)
    subprocess.run(["bash", "-n"], input=text, text=True, check=True, timeout=20)
    assert not (tmp_path / "run").exists()


def test_the_section_sweep_of_an_experiment_is_swept_over(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(
        "job: {ranks: 2}\nsweep: {seed: [0, 1], algorithm: [fedavg, local]}\ndata: digits\n"
        "clients: 4\nmodel: {name: mlp, hidden: [8, 4]}\n"
    )
    words = [path, "algorithm=fedavg", "local.lr=[0.1,0.2]"]
    text = rendered(*words, "--output", tmp_path / "out")
    assert "#SBATCH --array=0,1,2,3\n" in text
    arguments = re.findall(r"words=\((.*)\)", text)
    assert len(arguments) == 4
    for task in arguments:
        named = {word.partition("=")[0] for word in shlex.split(task)}
        assert named == {"seed", "local.lr", "algorithm"}
    experiment = yaml.safe_load(re.search(r"experiment='(.*?)'\n", text, re.DOTALL)[1])
    assert experiment["clients"] == 4 and not {"job", "sweep"} & set(experiment)


def test_the_command_line_goes_before_the_experiment_and_that_before_the_site(
    tmp_path: Path,
) -> None:
    site_file, path = tmp_path / "site.yaml", tmp_path / "own.yaml"
    site_file.write_text(
        "ranks: 2\nenvironment: {A: 1, B: 1}\nqos: site\naccount: site\npartition: site\n"
    )
    path.write_text("job: {account: file, partition: file}\n")
    words = [str(path), "job.partition=word", "job.environment.B=2"]
    text = rendered(*words, "--site", site_file, "--output", tmp_path / "out")
    found = directives(text)
    assert (found["qos"], found["account"], found["partition"]) == ("site", "file", "word")
    assert found["ntasks"] == "2"
    assert {"export A=1", "export B=2"} <= set(text.splitlines())


def test_directives_can_be_added() -> None:
    words = ["job.ranks=2", "job.extra_directives=['--reservation=a b']"]
    assert "#SBATCH --reservation=a b\n" in rendered(*words, "--output", "/x")


def test_smoke_is_one_round_on_two_ranks(tmp_path: Path) -> None:
    words = ["seed=[0,1]", "rounds=50", "job.nodes=8", "job.ranks_per_node=32"]
    text = rendered(*words, "--output", tmp_path / "out", "--smoke")
    found = directives(text)
    assert (found["nodes"], found["ntasks"], "no-requeue" in found) == ("2", "2", True)
    assert "array" not in found
    assert "rounds=1'" in text and f"run_dir={tmp_path / 'out'}-smoke\n" in text


@settings(max_examples=40, deadline=None)
@given(st.lists(TEXTS, min_size=7, max_size=7))
def test_no_text_breaks_out_of_a_script(tmp_path_factory, texts: list[str]) -> None:
    """bash, asked what the settings hold, gives back what was put in; and nothing is run."""
    folder_name, value, image, word, python, variable, path = texts
    options = {"ranks": 2, "image": image, "container_options": [word], "python": python}
    options |= {"environment": {"TEXT": variable}, "mpirun": value}
    options = {key: text for key, text in options.items() if not _blank(text)}
    output = "/runs/" + folder_name.replace("/", "_").replace("\\", "_").strip(" .") + "_"
    words = site(tmp_path_factory.mktemp("site"), options)
    words += [f"data.path={json.dumps(path, ensure_ascii=False)}", "data.name=csv"]
    text = rendered("digits-fedem", *words, "--output", output)
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
    run_dir, experiment, mpirun, *more, exported, end = done.stdout.decode().split("\0")
    assert (run_dir, experiment) == (output, "")
    assert mpirun == options.get("mpirun", "mpirun")
    assert exported == options.get("environment", {}).get("TEXT", "") and not end
    if "image" in options:
        container = ["apptainer", "exec", *options.get("container_options", []), image]
        assert more[: len(container)] == container
        more = more[len(container) :]
    key, _, written = next(each for each in more if each.startswith("data.path")).partition("=")
    assert (key, yaml.safe_load(written)) == ("data.path", path)
    assert {"digits-fedem", "clients=4", "data.name=csv"} < set(more) and len(more) == 4


def _blank(value: object) -> bool:
    texts = value if isinstance(value, list) else [value]
    return any(isinstance(text, str) and not text.strip() for text in texts)


@settings(max_examples=40, deadline=None)
@given(TEXTS.filter(str.strip))
def test_directives_are_quoted_as_sbatch_reads_them(tmp_path_factory, text: str) -> None:
    """By the rules of sbatch: a word ends at a blank outside of quotes, # begins a comment, a
    backslash takes the next character as it stands.
    """
    folder = tmp_path_factory.mktemp("site")
    script = rendered(*site(folder, {"ranks": 2, "constraint": text}))
    written = directives(script)["constraint"]
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
    options = {"ranks": 2, "constraint": f"{text}\n"}
    assert "job.constraint" in refusal(*site(folder, options))
