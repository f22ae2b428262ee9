"""What the command and the function do when all is well."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import typing
from pathlib import Path

import commands
import numpy as np
import pytest
import torch
import yaml
from commands import TINY, call, checked_refusal, environment, rows
from mypy import api

import mpifed
from mpifed import __version__
from mpifed.errors import InputError
from mpifed.method import Channel, Exchange, ServerChannel
from mpifed.model import Model, NoModel
from mpifed.testing import find_item, names, run_command, run_rounds, world

SMALL = {key: yaml.safe_load(value) for key, _, value in (word.partition("=") for word in TINY[1:])}


@pytest.fixture
def resolved(capfd):
    """A function that returns the complete configuration that the words of a command mean."""

    def configuration(*words: str, experiment: str = "synthetic-fedem") -> dict:
        outcome = call([experiment, *words, "--dry-run", "--json"], capfd)
        assert outcome.code == 0, outcome.err
        return json.loads(outcome.out)["configuration"]

    return configuration


# What is printed.


def test_version_and_help_need_nothing_heavy():
    code = (
        "import sys; from mpifed.launch import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as ended: assert not ended.code\n"
        "assert not {'torch', 'numpy', 'mpi4py', 'h5py'} & set(sys.modules)"
    )
    for word, expected in (("--version", f"mpifed {__version__}"), ("--help", "EXPERIMENT")):
        done = subprocess.run(
            [sys.executable, "-c", code, word], capture_output=True, text=True, timeout=30
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert expected in done.stdout


def test_a_plain_run_loads_no_part_of_scipy_that_few_runs_need():
    code = (
        "import sys, mpifed.launch; mpifed.launch.preload(['rounds=1'])\n"
        "print({'scipy.optimize', 'scipy.linalg', 'scipy.sparse.csgraph'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_a_dry_run_writes_nothing(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in (
        [*TINY, "exchange=gossip"],
        ["synthetic-released", "clients=3", "data.n_test=10"],
        ["digits-fedem", "clients=5"],
    ):
        outcome = call([*words, "--dry-run", "--output", tmp_path / "run"], capfd)
        assert (outcome.code, outcome.err) == (0, "")
        configuration, plan = outcome.out.split("\n\n", 1)
        assert f"{yaml.safe_load(configuration)['clients']} clients" in plan
        for word in ("clients", "per rank", "bytes", "parameters", "MPI moves"):
            assert word in plan
    assert list(tmp_path.iterdir()) == []


def test_quiet_prints_nothing_and_logs_all_the_same(tmp_path, capfd):
    loud, quiet = tmp_path / "loud", tmp_path / "quiet"
    said = call([*TINY, "--output", loud], capfd)
    assert (said.code, said.err) == (0, "")
    logged = (loud / "log.txt").read_text().splitlines()
    assert said.out.splitlines() == [line for line in logged if not line.startswith("warning on")]
    assert "round 4/4" in said.out
    outcome = call([*TINY, "--quiet", "--output", quiet], capfd)
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")
    assert len((quiet / "log.txt").read_text().splitlines()) == len(logged)


# How words are read.


@pytest.mark.parametrize(
    ("algorithm", "unread"),
    [
        ("{name: fedmm, surrogate: {name: quadratic, rho: 0.01}}", ["lr", "batch_size"]),
        ("fedem", []),
    ],
)
def test_an_option_that_the_algorithm_does_not_read_is_named(algorithm, unread, tmp_path, capfd):
    words = ["digits-fedem", "clients=4", "rounds=1", "local.lr=0.3", f"algorithm={algorithm}"]
    assert call([*words, "--quiet", "--output", tmp_path / "run"], capfd).code == 0
    log = (tmp_path / "run" / "log.txt").read_text().splitlines()
    said = [line.split("=")[0] for line in log if line.startswith("local.") and "=" in line]
    assert said == [f"local.{name}" for name in unread]


def test_a_component_named_alone_takes_its_own_defaults(resolved, tmp_path, capfd):
    experiment = tmp_path / "experiment.yaml"
    written = {"name": "fedem", "gossip_step_scale": "none"}
    experiment.write_text(json.dumps({"clients": 4, "algorithm": written}))
    sheets = json.loads(call(["--list", "fedavg", "--json"], capfd).out)
    own = {option["name"]: option["default"] for option in sheets[0]["options"]}
    assert own["gossip_step_scale"] != "none"
    for word in ("algorithm=fedavg", "algorithm.name=fedavg", "algorithm={name: fedavg}"):
        assert resolved(word, experiment=experiment)["algorithm"] == {"name": "fedavg", **own}
    # The same one named again is no other.
    assert resolved("algorithm=fedem") == resolved("algorithm.name=fedem") == resolved()


def test_a_mapping_without_a_name_sets_options_of_what_is_there(resolved):
    for whole, dotted in (
        (["data={seed: 3, partition: iid}"], ["data.seed=3", "data.partition=iid"]),
        (["local={lr: 0.2}"], ["local.lr=0.2"]),
        (["data={seed: 3}", "data.seed=4"], ["data.seed=4"]),
        (["data.seed=4", "data={seed: 3}"], ["data.seed=4"]),
        (["data=synthetic", "model=mlp"], ["data={name: synthetic}", "model={name: mlp}"]),
        (
            ["exchange={name: gossip, topology: {name: erdos_renyi, p: 0.25}}"],
            ["exchange=gossip", "exchange.topology={p: 0.25}"],
        ),
        (
            ["exchange=gossip", "exchange.topology=torus:rows=4,cols=5"],
            ["exchange=gossip", "exchange.topology={name: torus, rows: 4, cols: 5}"],
        ),
    ):
        one, other = (
            resolved("clients=20", *words, experiment="digits-fedem") for words in (whole, dotted)
        )
        assert one == other


@pytest.mark.parametrize(
    "words",
    [
        ("algorithm=fedavg_ft", "algorithm.tune_epochs=2", "algorithm.tune_lr=0.5"),
        ("algorithm.name=fedavg_ft", "algorithm.tune_epochs=2", "rounds=3"),
    ],
)
def test_the_order_of_overrides_does_not_matter(words, resolved):
    first = resolved(*words)
    assert first != resolved()
    for other in itertools.permutations(words):
        assert resolved(*other) == first


def test_numbers_are_read_as_a_person_means_them(resolved):
    assert resolved("local.lr=1e-3")["local"]["lr"] == 0.001
    assert resolved("rounds=10.0")["rounds"] == 10
    assert resolved("participation=1")["participation"] == 1.0
    assert resolved("local.steps=null")["local"]["steps"] is None
    assert resolved("participation={name: bernoulli, p: 1}")["participation"]["p"] == 1.0


def test_a_data_file_can_be_named_in_short(tmp_path, capfd):
    file = tmp_path / "a=b.h5"
    assert run_command(["data", "digits", "--output", file, "--clients", 4, "--seed", 5]) == 0
    whole = ["digits-fedem", "clients=4", "data.seed=5", "data.partition=dirichlet", "rounds=2"]
    assert call([*whole, "--quiet", "--output", tmp_path / "whole"], capfd).code == 0
    for number, word in enumerate((f"data={file}", f"data.path={file}")):
        target = tmp_path / str(number)
        words = ["digits-fedem", "clients=4", "rounds=2", word, "--quiet", "--output", target]
        assert call(words, capfd).code == 0
        assert rows(target) == rows(tmp_path / "whole")
        stored = yaml.safe_load((target / "config.yaml").read_text())
        assert stored["data"] == {"name": "federated", "path": str(file)}
    # An option of the data set that the file replaces is not passed over in silence.
    refused = call(["digits-fedem", f"data.path={file}", "data.seed=5", "--dry-run"], capfd)
    checked_refusal(refused, "'data.seed'")


def test_a_data_set_that_is_named_is_not_replaced_by_a_file(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("data.name", "data"):
        for data, path in (("parquet", "a.parquet"), ("cifar10", "a"), ("digits", "a.h5")):
            outcome = call([*TINY[:1], f"{name}={data}", f"data.path={path}"], capfd)
            checked_refusal(outcome, "'data.path'")
        for word in (f"{name}=a.parquet", "data.path=a.parquet"):
            checked_refusal(call([*TINY[:1], word], capfd), "data.raw", "a.parquet")


@pytest.mark.parametrize(
    "more",
    [[], ["exchange=gossip", "participation=0.5"], ["model=mlp", "data=digits", "seed=9"]],
)
def test_the_resolved_configuration_repeats_the_run(more, tmp_path, capfd):
    words = [*(word for word in TINY if not (more[-1:] == ["seed=9"] and "data." in word)), *more]
    first, second = tmp_path / "first", tmp_path / "second"
    assert call([*words, "--quiet", "--output", first], capfd).code == 0
    assert call([first / "config.yaml", "--quiet", "--output", second], capfd).code == 0
    assert rows(first) == rows(second)
    assert (first / "config.yaml").read_bytes() == (second / "config.yaml").read_bytes()


@pytest.mark.mpi
def test_a_client_for_each_rank(tmp_path, capfd):
    communicator = world()
    target = Path(communicator.broadcast_object(str(tmp_path))) / "run"
    words = [*TINY, "clients=ranks", "--quiet", "--expect-ranks", communicator.size]
    assert call([*words, "--output", target], capfd).code == 0
    stored = yaml.safe_load((target / "config.yaml").read_text())
    assert stored["clients"] == communicator.size
    summary = json.loads((target / "summary.json").read_text())
    assert summary["ranks"] == summary["clients"] == communicator.size


def test_a_user_may_plug_in_a_component(tmp_path, capfd, monkeypatch):
    monkeypatch.syspath_prepend(commands.HERE)
    own, shipped = tmp_path / "own", tmp_path / "shipped"
    words = [*TINY, "--quiet", "--output"]
    assert call([*words, own, "algorithm=user_components:Fails"], capfd).code == 0
    assert call([*words, shipped, "algorithm=fedavg"], capfd).code == 0
    assert rows(own) == rows(shipped)


# From Python.


def test_the_function_does_what_the_command_does(tmp_path, capfd):
    result = mpifed.run("synthetic-fedem", output=tmp_path / "function", **SMALL)
    assert call([*TINY, "--quiet", "--output", tmp_path / "command"], capfd).code == 0
    assert rows(tmp_path / "function") == rows(tmp_path / "command")
    assert result.status == result.summary["status"] == "finished"
    assert result.metrics["round"].tolist() == [0, 2, 4]
    assert np.isnan(result.metrics["consensus_distance"]).all()
    assert result.metrics["state_digest"][-1] == result.summary["state_digest"]
    assert result.clients["mixture"].shape == (4, 3)
    assert capfd.readouterr().out == ""


def test_the_function_takes_what_python_programs_have(tmp_path):
    more = {"rounds": np.int64(1), "local.lr": np.float32(0.5), "seed": np.arange(3)[2]}
    result = mpifed.run(
        "synthetic-fedem", output=str(tmp_path / "run"), **{**SMALL, **more}, quiet=True
    )
    stored = yaml.safe_load((result.directory / "config.yaml").read_text())
    assert (stored["rounds"], stored["local"]["lr"], stored["seed"]) == (1, 0.5, 2)
    with pytest.raises(InputError, match=r"model\.hidden.*object.*whole number"):
        mpifed.run(model={"name": "mlp", "hidden": [object()]}, output=tmp_path / "wrong")


def test_no_command_hides_the_function():
    code = (
        "import mpifed\n"
        "from mpifed.__main__ import main\n"
        "assert main(['run', '--version']) == 0\n"
        "assert mpifed.run.__doc__.startswith('Run an experiment')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment()
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_module_of_the_same_name_hides_no_function():
    code = (
        "import pickle, runpy, sys, mpifed\n"
        "function, sys.argv = mpifed.run, ['mpifed', '--version']\n"
        "for how in ('pass', 'import mpifed.run', 'import mpifed.run as module'):\n"
        "    sys.modules.pop('mpifed.run', None)\n"
        "    exec(how)\n"
        "    try:\n"
        "        runpy.run_module('mpifed.run', run_name='__main__')\n"
        "    except SystemExit as ended:\n"
        "        assert ended.code == 0\n"
        "    from mpifed import run\n"
        "    assert mpifed.run is run is function is pickle.loads(pickle.dumps(function))\n"
    )
    line = [sys.executable, "-W", "ignore::RuntimeWarning", "-c", code]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, env=environment())
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("mpifed ")


# Base classes of components: what a user's own class must be.


def run_of(algorithm="fedavg", **sections):
    data = {"name": "synthetic", "n_test": 5, "dimension": 4}
    return run_rounds(algorithm, data, **{"clients": 2, "rounds": 0, **sections})


def number(data):
    return 3


def nothing(data):
    return NoModel(data)


@pytest.mark.parametrize(
    ("model", "names"),
    [(f"{__name__}:number", ("int",)), (f"{__name__}:nothing", ("NoModel", "'fedavg'", "Model"))],
)
def test_a_model_must_be_one_that_the_algorithm_trains(model, names):
    with pytest.raises(InputError) as refused:
        run_of(model=model)
    assert all(name in str(refused.value) for name in (model, *names))


def module(data):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 1))


def test_a_torch_module_is_a_model():
    assert isinstance(run_of(model=module).model, Model)


@pytest.mark.parametrize("name", names("exchanges"))
def test_the_channel_of_an_exchange_has_send_only_if_there_is_a_server(name):
    found = find_item("exchange", name)
    channel = typing.get_type_hints(found.at)["return"]
    assert issubclass(found, Exchange) and issubclass(channel, Channel)
    assert issubclass(channel, ServerChannel) == (name == "server") == hasattr(channel, "send")


@pytest.fixture
def readme_method(tmp_path, monkeypatch):
    """The code of the method in README.md, in a module ``mine`` that may be written again."""
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", readme, re.S)
    (code,) = (block for block in blocks if "Mine" in block)
    (tmp_path / "mine.py").write_text(code)
    (tmp_path / "without.py").write_text(
        code.replace("draws, channel)\n        model", "draws)\n        model")
    )
    monkeypatch.syspath_prepend(tmp_path)


LED = {"name": "gossip", "correction": "led"}


def digest_of(algorithm, **sections):
    return run_of(algorithm, **sections).advance().digest


@pytest.mark.usefixtures("readme_method")
@pytest.mark.parametrize(
    "sections",
    [
        {"exchange": "server", "participation": 0.5},
        {"exchange": "gossip", "clients": 5},
        {"exchange": LED, "clients": 5},
    ],
)
def test_the_method_in_the_readme_is_fedavg(sections):
    assert digest_of("mine:Mine", **sections) == digest_of("fedavg", **sections)


@pytest.mark.usefixtures("readme_method")
def test_steps_without_their_channel_are_told_of_it():
    alike = {"exchange": "gossip", "clients": 5}
    assert digest_of("without:Mine", **alike) != digest_of("fedavg", **alike)  # other rates
    with pytest.raises(
        TypeError, match=r"Led .*local\(start, optimizer, clients, draws, channel\)"
    ):
        digest_of("without:Mine", exchange=LED, clients=5)


@pytest.mark.slow
def test_mypy_refuses_a_method_for_gossip_that_sends(tmp_path):
    source = tmp_path / "mine.py"
    source.write_text(
        "from typing import Any\n"
        "from mpifed.method import Channel, ServerChannel\n"
        "def right(channel: ServerChannel, rows: Any) -> None:\n"
        "    channel.send(rows)\n"
        "def wrong(channel: Channel, rows: Any) -> None:\n"
        "    channel.send(rows)\n"
    )
    found, _, code = api.run(["--strict", "--follow-imports=silent", str(source)])
    assert code == 1
    assert '"Channel" has no attribute "send"' in found and "mine.py:4" not in found
