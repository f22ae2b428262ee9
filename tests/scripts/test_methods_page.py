"""docs/methods.md is what the code says."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_page_of_methods_is_up_to_date():
    made = runpy.run_path(str(ROOT / "scripts" / "methods.py"))["text"]()
    said = "python scripts/methods.py writes docs/methods.md anew"
    assert made == (ROOT / "docs" / "methods.md").read_text(encoding="utf-8"), said


PAGES = {
    "fedem.md": {"": ["fedem", "local", "fedavg", "fedavg_ft"]},
    "decentralised.md": {"Methods that correct their own steps": ["kgt", "scaffnew", "d_admm"]},
    "baselines/mocha.md": {"": ["mocha"]},
    "baselines/clusters.md": {
        "clustered": ["clustered"],
        "ifca": ["ifca"],
        "fedspd": ["fedspd"],
        "fedgmm": ["fedgmm"],
    },
    "baselines/one_model.md": {
        "FedProx": ["fedprox"],
        "SCAFFOLD": ["scaffold"],
        "FedDyn": ["feddyn"],
        "FedPD": ["fedpd"],
        "Fed-LT": ["fedlt"],
        "Streaming DiLoCo": ["streaming_diloco"],
        "FedNova": ["fednova"],
        "SVRG": ["svrg"],
        "MOON": ["moon"],
        "q-FFL": ["qffl"],
        "AFL": ["agnostic"],
    },
    "baselines/parts.md": {
        "fedper": ["fedper"],
        "fedrep": ["fedrep"],
        "fedbabu": ["fedbabu"],
        "lg_fedavg": ["lg_fedavg"],
        "fedpac": ["fedpac"],
        "pfeddst": ["pfeddst"],
        "Normalisation: fedbn": ["fedbn"],
        "A mix of two models: fedala": ["fedala"],
        "Prototypes: fedproto": ["fedproto"],
        "Two heads: fedrod": ["fedrod"],
        "fedrod_hyper": ["fedrod_hyper"],
        "Nearest neighbours: knn_per": ["knn_per"],
    },
    "baselines/personal_models.md": {
        "Ditto": ["ditto"],
        "pFedMe": ["pfedme"],
        "APFL": ["apfl"],
        "FedFomo": ["fedfomo"],
        "L2GD and L2SGD+": ["l2gd", "l2sgd"],
    },
}
"""Sections by page, with the methods that they are about; "" is the whole page."""

SECTIONS = [
    pytest.param(page, heading, method, id=method)
    for page, sections in PAGES.items()
    for heading, methods in sections.items()
    for method in methods
]


@pytest.mark.parametrize(("page", "heading", "method"), SECTIONS)
def test_a_page_says_where_paper_and_code_differ(page, heading, method):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert method in text
    if heading:
        _, found, rest = text.partition(f"# {heading}\n")
        assert found
        text = re.split(r"^#+ ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    assert "paper and code" in text.lower()
