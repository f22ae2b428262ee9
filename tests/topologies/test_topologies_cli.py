import csv
import json
import os
import subprocess
import sys

import pytest

import topologies
from mpifed.testing import run_command
from topologies import MixingMatrix


def run(capsys, *arguments):
    code = run_command(["topologies", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_terminal_that_shows_ascii_alone_gets_signs_as_wide():
    words = [sys.executable, "-m", "topologies", "rank", "ring", "--n", "8"]
    ascii = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(words, env=ascii, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "") and "ring . fmmc" in done.stdout


def test_show_as_json(capsys):
    code, out, _ = run(
        capsys, "show", "erdos_renyi:n=20,p=0.5", "--weights", "fmmc", "--seed", "1234", "--json"
    )
    record = json.loads(out)
    assert code == 0
    assert (record["edges"], record["tries"], record["seed"]) == (102, 1, 1234)
    assert record["connected"] is True
    assert f"{record['slem']:.4f}" == "0.3504"


def test_show_as_text_and_with_options(capsys):
    code, out, _ = run(capsys, "show", "ring:n=5", "--weights", "fmmc:self_loops=false")
    assert code == 0
    assert "min_self_weight" in out
    assert "sha256" in out


@pytest.mark.parametrize("arguments", [[], ["families"], ["weights"], ["schedules"], ["--json"]])
def test_list(capsys, arguments):
    code, out, _ = run(capsys, "list", *arguments)
    assert code == 0
    assert ("small_world" in out) == (arguments not in (["weights"], ["schedules"]))
    assert ("matcha" in out) == (arguments not in (["families"], ["weights"]))


def test_compare_writes_the_same_as_a_table_and_a_picture(capsys, tmp_path):
    table, picture = tmp_path / "t.csv", tmp_path / "t.png"
    code, out, _ = run(
        capsys,
        *("compare", "ring", "erdos_renyi:p=0.5", "one_peer_exponential", "--n", "8"),
        *("--weights", "metropolis_hastings", "fmmc", "--schedules", "static", "matcha"),
        *("--csv", str(table), "--plot", str(picture), "--json"),
    )
    records = json.loads(out)
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert code == 0
    # A schedule is the same under every rule: two graphs with two rules and matcha, and one peer.
    assert [row["label"] for row in rows] == [record["label"] for record in records]
    assert len(rows) == 7
    assert picture.stat().st_size > 1000
    assert float(rows[0]["slem"]) == records[0]["slem"]
    code, out, _ = run(capsys, "compare", "ring:n=4", "path:n=3")
    assert code == 0
    assert len(out.splitlines()) == 3
    code, out, _ = run(capsys, "compare", "star:n=6", "--weights", "best_constant")
    title, row = (line.split() for line in out.replace(" · ", "·").splitlines())
    assert float(row[title.index("min_self_weight")]) < 0


def test_graphs_in_one_picture_and_what_is_left_out(capsys, tmp_path):
    picture = str(tmp_path / "decay.png")
    several = ("plot", "ring:n=6", "star:n=6", "--output", picture, "--kind")
    assert run(capsys, *several, "decay")[0] == 0
    assert "--kind graph" in run(capsys, *several, "graph")[2]
    assert " 3000 " in run(capsys, "compare", "one_peer_exponential:n=512")[1]
    assert " 3000 " not in run(capsys, "show", "ring:n=6")[1]
    assert "effective_neighbours" in run(capsys, "rank", "ring", "--n", "6")[1]


def test_schedule(capsys):
    code, out, _ = run(capsys, "schedule", "base_k:n=6", "--json")
    record = json.loads(out)
    assert code == 0
    assert (record["period"], len(record["rounds"]), record["consensus_rate"]) == (4, 4, 1)
    code, out, _ = run(
        capsys, "schedule", "ring:n=6", "--schedule", "matcha:drop_nodes=0.5", "--rounds", "3"
    )
    assert code == 0
    assert "consensus_rate_error" in out


def test_export_and_back(capsys, tmp_path):
    file = tmp_path / "w.npz"
    assert run(capsys, "export", "ring:n=5", "--output", str(file))[:2] == (0, f"{file}\n")
    code, out, _ = run(capsys, "show", f"matrix:path={file}", "--weights", "given", "--json")
    assert code == 0
    assert json.loads(out)["sha256"] == MixingMatrix.load(file).sha256
    rounds = tmp_path / "rounds"
    assert run(capsys, "export", "base_k:n=6", "--output", str(rounds))[0] == 0
    code, out, _ = run(capsys, "show", f"periodic:n=6,path={rounds}", "--json")
    assert json.loads(out)["consensus_rate"] == 1
    code, _, err = run(capsys, "export", "base_k:n=6", "--output", str(rounds))
    assert code == 2
    assert str(rounds) in err
    code, _, err = run(capsys, "export", "equitopo:n=6", "--output", str(tmp_path / "new"))
    assert code == 2
    assert "--rounds" in err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "kind",
    [
        "graph",
        "spectrum",
    ],
)
def test_plot(capsys, tmp_path, kind):
    file = tmp_path / "p.png"
    words = ("plot", "ring:n=6", "--kind", kind, "--output", str(file))
    assert run(capsys, *words)[:2] == (0, f"{file}\n")
    assert file.stat().st_size > 1000


def test_gossip(capsys, tmp_path):
    table, picture = tmp_path / "g.csv", tmp_path / "g.png"
    code, out, _ = run(
        capsys,
        *("gossip", "ring:n=8", "--rounds", "30", "--json"),
        *("--csv", str(table), "--plot", str(picture)),
    )
    record = json.loads(out)
    assert code == 0
    assert record["measured_contraction"] <= record["predicted_contraction"] + 1e-9
    assert len(table.read_text().splitlines()) == 32
    assert picture.exists()
    assert run(capsys, "gossip", "ring:n=8")[0] == 0


def test_throughput(capsys, tmp_path):
    links, table = tmp_path / "links.csv", tmp_path / "t.csv"
    links.write_text("0,1,2\n1,0,3\n2,3,0\n")
    code, out, _ = run(capsys, "throughput", str(links), "--json", "--csv", str(table))
    assert code == 0
    times = {row["overlay"]: row["cycle_time"] for row in json.loads(out)}
    assert times["ring"] == pytest.approx(2)
    assert len(table.read_text().splitlines()) == 5
    code, out, _ = run(capsys, "throughput", str(links), "--overlays", "ring")
    assert code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "erdos_reny:n=3"],
        ["show", "ring:n=4", "--weights", "fmc"],
        ["show", "ring:n=4", "--accuracy", "0"],
        ["show", "erdos_renyi:n=40,p=0.01"],
        ["show", "ring:n=4", "--schedule", "matsha"],
        ["gossip", "base_k:n=4", "--schedule", "matcha"],
        ["shw"],
        ["compare", "ring:n=4", "--csv", "/nowhere/t.csv"],
        ["export", "ring:n=4", "--output", "w.txt"],
        ["gossip", "ring:n=4", "--rounds", "0"],
        ["throughput", "links.txt"],
    ],
)
def test_bad_input_is_one_sentence_and_code_2(capsys, arguments):
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("topologies: ")
    assert err.count("\n") == 1


def test_the_module_runs_without_torch_and_mpi():
    program = (
        "import sys; import topologies.__main__; "
        "print([m for m in ('torch', 'mpi4py', 'mpifed', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_every_public_name_can_be_imported_in_any_order():
    program = (
        "import topologies; names = topologies.__all__; "
        "found = {name: getattr(topologies, name) for name in reversed(names)}; "
        "again = {name: getattr(topologies, name) for name in names}; "
        "print(all(found[name] is again[name] for name in names), "
        "set(names) <= {*dir(topologies)}, "
        "[name for name in names if type(found[name]).__name__ == 'module'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "True True []"
    with pytest.raises(AttributeError, match=r"'topologies'.*'torus'"):
        topologies.torus  # noqa: B018


def test_a_family_of_ones_own_is_written_as_in_a_run(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_family.py").write_text(
        "import networkx\n\ndef wheel(n, *, spokes=2, seed=None):\n"
        "    graph = networkx.cycle_graph(n)\n"
        "    graph.add_edges_from((0, node) for node in range(0, n, spokes) if node)\n"
        "    return graph\n"
    )
    for words, edges in (("n=9", 9 + 3), ("n=9,spokes=3", 9 + 2)):
        graph = f"own_family:wheel:{words}"
        assert run_command(["topologies", "show", graph, "--json"]) == 0
        record = json.loads(capsys.readouterr().out)
        assert (record["n"], record["edges"]) == (9, edges)
    words = "networkx:watts_strogatz_graph:n=10,k=4,p=0.1"
    assert run_command(["topologies", "show", words, "--seed", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["edges"] == 20


def test_fmmc_that_stops_above_its_tolerance_says_so():
    graph = topologies.build_graph("erdos_renyi", 40, 1, p=0.2)
    with pytest.warns(UserWarning, match="above the tolerance"):
        topologies.mixing_matrix(graph, "fmmc", tolerance=1e-9, max_iterations=3)
