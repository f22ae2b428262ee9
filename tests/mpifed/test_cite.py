"""``mpifed cite``: BibTeX of what runs used, from what docstrings of components name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from commands import STORED, call

from mpifed import cite
from mpifed.components.tables import TABLES

OWN = '''"""An own compressor."""

from mpifed.message import Compressor


class Halves(Compressor):
    """Every other number (Muster and Frau 2026)."""

    def __call__(self, rows, draws, ids, purpose="compression"):
        return rows

    def bits(self, size, itemsize, draws, ids, purpose="compression"):
        return 8 * size * itemsize + 0 * ids
'''


def run_with(folder: Path, **sections) -> Path:
    """The directory of a run, as far as it is read."""
    folder.mkdir()
    names = {"algorithm": "local", "data": "digits", "model": "linear", "exchange": "server"}
    sections = {kind: {"name": name} for kind, name in names.items()} | sections
    (folder / "config.yaml").write_text(yaml.safe_dump({**STORED, **sections}))
    return folder


def entries(text: str) -> dict[str, dict[str, str]]:
    """The fields of each entry by its key; braces must balance."""
    found = {}
    for entry in text.strip().split("\n\n"):
        head, *lines, end = entry.splitlines()
        key = re.fullmatch(r"@[a-z]+\{(\w+),", head)[1]
        assert end == "}" and entry.count("{") == entry.count("}") and key not in found
        fields = [re.fullmatch(r"  (\w+) = \{(.*)\},?", line).groups() for line in lines]
        found[key] = dict(fields)
        assert found[key].get("title") or "note" in found[key]
    return found


def test_method_data_graph_weights_and_compressor_are_cited_once(tmp_path, capfd):
    gossip = {"name": "gossip", "topology": {"name": "small_world"}, "weights": "fmmc"}
    gossip |= {"schedule": {"name": "static"}, "correction": {"name": "beer"}}
    run = run_with(
        tmp_path / "run",
        algorithm={"name": "fedavg"},
        data={"name": "cifar10"},
        exchange=gossip,
        compression={"name": "quantise", "levels": 4},
    )
    both = {"name": "in_order", "compressors": [{"name": "natural"}]}
    other = run_with(tmp_path / "other", algorithm={"name": "fedprox"}, compression=both)
    done = call([run, other, run], capfd, "cite")
    assert done.code == 0
    titles = " ".join(fields.get("title", "") for fields in entries(done.out).values())
    for word in (
        *("mpifed:", "Communication-Efficient Learning", "Tiny Images", "Small-World"),
        *("Fastest Mixing", "QSGD", "BEER", "Heterogeneous Networks", "Natural Compression"),
    ):
        assert titles.count(word) == 1, word


def test_options_of_local_steps_are_cited_where_they_are_used(tmp_path, capfd):
    plain = run_with(tmp_path / "plain", local={"lr_warmup": 0, "sam_radius": 0.0})
    used = run_with(tmp_path / "used", local={"lr_warmup": 5, "sam_radius": 0.05})
    without, found = (entries(call([run], capfd, "cite").out) for run in (plain, used))
    titles = [found[key]["title"] for key in sorted(found.keys() - without.keys())]
    assert ["Sharpness-Aware" in titles[0], "1 Hour" in titles[1]] == [True, True] and len(
        titles
    ) == 2


def test_what_an_own_component_names_becomes_a_short_entry(tmp_path, monkeypatch, capfd):
    (tmp_path / "own_halves.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    run = run_with(tmp_path / "run", compression={"name": "own_halves:Halves"})
    found = entries(call([run], capfd, "cite").out)["muster2026"]
    assert found["author"] == "Muster and Frau" and found["year"] == "2026"


def test_what_is_no_run_is_refused(tmp_path, capfd):
    refused = call([tmp_path], capfd, "cite")
    assert (refused.code, refused.out) == (2, "") and "config.yaml" in refused.err


def test_every_method_has_a_paper_and_every_reference_a_component():
    shipped = [(kind, name) for kind in (*cite.KINDS, *cite.GRAPHS) for name in cite.GRAPHS.get(
        kind, TABLES.get(kind, ()))]  # fmt: skip
    by_item = {item: cite.cited_by(*item) for item in shipped}
    by_item["local", "steps"] = cite.cited_by_steps({"lr_warmup": 5, "sam_radius": 0.05})
    by_key = {entry.partition(",")[0]: entry for found in by_item.values() for entry in found}
    every = entries("\n\n".join(by_key.values()))
    assert [name for kind, name in shipped if kind == "algorithm" and not by_item[kind, name]] == []
    content = Path(cite.__file__).with_name("references.bib").read_text(encoding="utf-8")
    keys = re.findall(r"^@\w+\{(\w+),", content, re.MULTILINE)
    assert len(keys) == len(set(keys)) == len(cite.ENTRY.findall(content))
    assert set(keys) - every.keys() == set()
    # Papers of the same authors and year are told apart.
    titles = {"fedprox": "Heterogeneous Networks", "qffl": "Fair Resource", "fedbn": "FedBN"}
    for name, title in (titles | {"moon": "Contrastive", "ditto": "Ditto"}).items():
        (entry,) = by_item["algorithm", name]
        assert title in entry


@pytest.mark.parametrize("kind", ["exchange", "seed", "label"])
def test_other_keys_name_no_component(kind):
    assert list(cite.components_of({kind: "fedavg", "data": {"partition": "kmeans"}})) == []
