"""Writes docs/methods.md, the table of all methods: ``python scripts/pages/methods.py [FILE]``.

Everything comes from the classes: what a method learns and sends, where it works, whether a client
keeps fields of its state from round to round.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import typing
import unicodedata
from pathlib import Path

from mpifed.cite import cited_by
from mpifed.components.registry import find, written_from
from mpifed.components.tables import (
    AGGREGATORS,
    ALGORITHMS,
    ATTACKS,
    COMPRESSORS,
    CORRECTIONS,
    PRE_AGGREGATORS,
    SERVER_OPTIMIZERS,
)
from mpifed.method.algorithm import Algorithm, algorithm_class
from topologies.schedules.table import SCHEDULES

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"

HEAD = """# Methods

Choose a method with `algorithm=NAME`. Its link has its equations, `mpifed run --list NAME` its
options, and [papers](#papers) has the titles.
`python scripts/pages/methods.py` writes this page from the code.

* **exchange**: a server, gossip, or both; `-` for methods that send nothing.
* **compression**: the compressors for its messages under a server (`any`, `unbiased`, `none`).
* **unseen**: whether it serves clients that took no part in training.
* **state**: whether a client keeps more than momentum or moments from round to round.
* **†**: [written without the paper's text](#written-without-the-papers-text).

FedYogi, FedAdagrad and FedAvgM are `fedavg` with
[`server_optimizer=yogi`, `adagrad` and `momentum`](baselines/one_model.md#server-optimizers).
"""

GROUPS = {
    "One model for all clients": "fedavg fedadam fedprox scaffold feddyn fedpd fednova svrg moon "
    "fedlt streaming_diloco qffl agnostic",
    "One model by gossip": "kgt scaffnew d_admm",
    "One model that each client adapts": "fedavg_ft maml fomaml reptile knn_per",
    "A model of each client": "local ditto apfl pfedme l2gd l2sgd fedfomo fedala fedproto mocha",
    "Parts of a model": "fedper fedrep fedbabu lg_fedavg fedbn fedpac fedrod fedrod_hyper pfeddst",
    "Mixtures and clusters": "fedem fedgmm fedspd clustered ifca",
    "Mixtures of a local optimum and a shared model": "flix dcgd diana flix_fedavg scafflix",
    "Surrogates and optimal transport": "fedmm fedmm_theta sa_ssmm fedmgs fedmm_ot",
}

# What other public code has as well, by the names of the files in its repository.
ELSEWHERE = {
    "PFLlib": "local fedavg fedprox scaffold feddyn moon ditto apfl pfedme fedfomo fedper fedrep "
    "fedbabu fedbn fedrod lg_fedavg fedpac fedala fedproto mocha fomaml",
    "Flower": "fedavg fedprox scaffold qffl fedadam fedbn fednova fedper fedrep fedbabu moon maml "
    "momentum adam yogi adagrad median trimmed_mean krum",
    "FedJAX": "fedavg fedprox agnostic apfl ifca momentum adam yogi adagrad",
    "FedLab": "fedavg fedprox scaffold feddyn fednova qffl ditto ifca momentum adam yogi adagrad",
    "pfl-research": "fedavg fedprox scaffold reptile adam",
    "FederatedScope": "fedavg fedprox ditto fedrep pfedme fedem",
    "FedEM's code": "local fedavg fedavg_ft fedprox clustered pfedme l2sgd apfl qffl agnostic "
    "fedem",
    "SONAR": "local fedavg fedfomo l2c",
    "BlueFog": "tracking exact_diffusion push_diging static_exponential one_peer_exponential",
    "RelaySGD's code": "d2 push_sum quasi_global relay_sum",
    "BaseGraph": "base_k simple_base_k static_exponential one_peer_exponential d2 quasi_global",
    "decentralizepy": "top_k rand_k quantise epidemic",
    "ByzFL": "mean median trimmed_mean krum geometric_median centred_clipping mda monna meamed nnm "
    "bucketing sign_flip alie ipm mimic",
}

# Components of the same name that compute something else there.
DIFFER = """
ByzFL defines attacks of the same names otherwise, with μ the mean of the honest updates and σ their
deviation. Its `sign_flip` sends -μ, mpifed's minus the attacker's own update (Li et al. 2019). Its
`alie` sends μ + τ σ with the divisor n - 1 in σ, mpifed's μ - z σ with n. Its `ipm` sends -2 μ by
default (-τ μ, in early versions (1 - τ) μ), mpifed's -0.5 μ. `mimic` is the same."""

# What training gives, and what a client sends in a round.
TEXTS = {
    "local": ("one model a client", "nothing"),
    "fedavg": ("one model", "its model"),
    "fedavg_ft": ("one model, fine-tuned by each client", "its model"),
    "fedprox": ("one model", "its model"),
    "scaffold": ("one model", "its update and that of its control variate"),
    "svrg": ("one model", "its model"),
    "qffl": (
        "one model, fair to clients with a large risk",
        "its update and its risk (compressed: also its norm)",
    ),
    "agnostic": ("one model, for the worst mixture of clients", "its gradient and its risk"),
    "mocha": ("a linear model a client, and how clients are related", "the change of its b_t"),
    "fedem": ("M components, mixture weights of each client", "its M components"),
    "fedgmm": (
        "M1 Gaussians, M2 components, mixture weights of each client",
        "its M2 components, moments of its inputs",
    ),
    "clustered": ("one model a cluster of clients", "its update"),
    "ifca": ("K models, one for each cluster of clients", "the model it chose, and which"),
    "fedspd": (
        "S models of clusters of samples, of which each client deploys its mean",
        "the model that it trained, and its cluster",
    ),
    "fedper": ("one body, a head of each client", "its body"),
    "fedrep": ("one body, a head of each client", "its body"),
    "fedbabu": ("one body, fine-tuned with the head by each client", "its body"),
    "fedbn": (
        "one model, normalisation layers of each client",
        "its model except normalisation layers",
    ),
    "lg_fedavg": ("one head, a body of each client", "its head"),
    "fedpac": (
        "one body, a head of each client that is combined from those of all",
        "its body, head, prototypes and moments of its features",
    ),
    "fedala": ("one model, weights of each client between it and its own", "its model"),
    "fedproto": (
        "one model a client, prototypes of labels",
        "its prototypes and how many samples they are of",
    ),
    "fedfomo": ("one model a client, moved towards those of others that fit its data", "its model"),
    "knn_per": ("one model, mixed with each client's neighbours", "its model"),
    "fedrod": ("one model, a head of each client to add to its own", "its generic model"),
    "fedrod_hyper": (
        "one model, and a network that makes a head from a client's label shares",
        "its generic model and the network",
    ),
    "flix": ("one model, mixed with local optima", "its model after a step"),
    "dcgd": ("one model, mixed with local optima", "its compressed gradient"),
    "diana": ("one model, mixed with local optima", "a compressed difference of gradients"),
    "flix_fedavg": ("one model, mixed with local optima", "its model"),
    "scafflix": ("one model, mixed with local optima", "its model after several steps"),
    "fomaml": ("one model, adapted by a few steps", "its gradient at the adapted model"),
    "maml": ("one model, adapted by a few steps", "the gradient of its adapted loss"),
    "reptile": ("one model, adapted by a few steps", "its update"),
    "fedmm": ("the parameters of a surrogate", "a change of its statistic"),
    "fedmm_theta": ("the parameters of a surrogate", "a change of its parameters"),
    "sa_ssmm": ("the parameters of a surrogate", "nothing"),
    "fedmgs": ("a factor; codes of each client", "two statistics"),
    "fedmm_ot": ("a transport map and its inverse", "a change of its potential"),
    "fedadam": ("one model", "its update"),
    "ditto": ("one model, and one model a client near it", "its model"),
    "apfl": (
        "one model, and a mixture with its own for each client",
        "its copy of the global model",
    ),
    "pfedme": ("one model, and one model a client near it", "its copy of the shared model"),
    "l2gd": (
        "one model a client, near their mean",
        "its model, where a step to the mean follows one of its own",
    ),
    "l2sgd": (
        "one model a client, near their mean",
        "its model, and its mean gradient before several steps to the mean",
    ),
    "kgt": ("one model", "its model and the mean gradient of its steps"),
    "scaffnew": ("one model", "its model"),
    "feddyn": ("one model", "its model"),
    "fednova": ("one model", "its update and the sum of its learning rates"),
    "moon": ("one model", "its model"),
    "fedpd": ("one model", "its model and multiplier, added up"),
    "d_admm": ("one model", "its model"),
    "fedlt": ("one model", "a change of its model"),
    "pfeddst": ("one body, a head of each client", "its model and a loss"),
    "streaming_diloco": ("one model", "a fragment of its model"),
}

# Sections by page, with the methods that they are about; "" is the whole page.
PAGES = {
    "fedem.md": {"Equations": "fedem"},
    "decentralised.md": {"Methods that correct their own steps": "kgt scaffnew d_admm"},
    "baselines/mocha.md": {"": "mocha"},
    "baselines/clusters.md": {
        "clustered": "clustered",
        "ifca": "ifca",
        "fedspd": "fedspd",
        "fedgmm": "fedgmm",
    },
    "baselines/one_model.md": {
        "FedAvg": "fedavg fedavg_ft",
        "Server optimizers": "fedadam",
        "MAML and Reptile": "maml fomaml reptile",
        "FedProx": "fedprox",
        "SCAFFOLD": "scaffold",
        "FedDyn": "feddyn",
        "FedPD": "fedpd",
        "Fed-LT": "fedlt",
        "Streaming DiLoCo": "streaming_diloco",
        "FedNova": "fednova",
        "SVRG": "svrg",
        "MOON": "moon",
        "q-FFL": "qffl",
        "AFL": "agnostic",
    },
    "baselines/parts.md": {
        "fedper": "fedper",
        "fedrep": "fedrep",
        "fedbabu": "fedbabu",
        "lg_fedavg": "lg_fedavg",
        "fedpac": "fedpac",
        "pfeddst": "pfeddst",
        "Normalisation: fedbn": "fedbn",
        "A mix of two models: fedala": "fedala",
        "Prototypes: fedproto": "fedproto",
        "Two heads: fedrod": "fedrod",
        "fedrod_hyper": "fedrod_hyper",
        "Nearest neighbours: knn_per": "knn_per",
    },
    "baselines/personal_models.md": {
        "Local": "local",
        "Ditto": "ditto",
        "pFedMe": "pfedme",
        "APFL": "apfl",
        "FedFomo": "fedfomo",
        "L2GD and L2SGD+": "l2gd l2sgd",
    },
}
# Where the papers of other methods are read.
OTHER_PAGES = {
    "flix.md": {"": "flix dcgd diana flix_fedavg scafflix"},
    "fedmm.md": {"Methods": "fedmm fedmm_theta sa_ssmm fedmgs"},
    "transport.md": {"Methods": "fedmm_ot"},
}

ALSO = """
## In other public code

Which of thirteen public repositories have a method too, by their files on 27 November 2026.

| repository | methods |
| --- | --- |
"""

COMPONENTS = """
## Components of the exchange

| | names: also in | not found there |
| --- | --- | --- |
"""

# What is no component.
OPTIONS = """
DiLoCo is `fedavg` with `local.optimizer=adamw` and `server_optimizer=nesterov`, MuLoCo the same
with `muon`, DFedSAM `local.sam_radius`. Other options, not looked for elsewhere: `exchange.when`,
`exchange.gossip_steps`, `exchange.chebyshev`, `weights=by_size`, `model=gpt`, `model.adapter`
(LoRA), and `privacy` by gossip.
"""

PAPERS = """
## Papers

| paper | title | methods |
| --- | --- | --- |
"""

# What stands in place of a paper, by the components' docstrings.
WITHOUT_PAPER = """
## Written without the paper's text

Of the components marked †, the paper's text could not be had. They are from other sources, and may
differ from the paper. What is assumed stands in the docstring of the module.

| | from |
| --- | --- |
"""

KINDS = {
    "corrections of gossip": CORRECTIONS,
    "schedules": SCHEDULES,
    "compressors": COMPRESSORS,
    "server optimizers": SERVER_OPTIMIZERS,
    "aggregators": AGGREGATORS,
    "pre-aggregators": PRE_AGGREGATORS,
    "attacks": ATTACKS,
}

COLUMNS = (
    "method",
    "paper",
    "learns",
    "a client sends",
    "exchange",
    "compression",
    "unseen",
    "state",
)

ACCENTS = {"'": "\u0301", '"': "\u0308", "`": "\u0300", "v": "\u030c", "H": "\u030b"}


def state_of(method: type[Algorithm]) -> type | None:
    """Return the dataclass of a method's state, or None where neither it nor ``init`` says."""
    if hasattr(method, "state_class"):
        return method.state_class
    found = typing.get_type_hints(method.init)["return"]
    if isinstance(found, typing.TypeVar):
        arguments = [
            argument
            for base in inspect.getmro(method)
            for generic in getattr(base, "__orig_bases__", ())
            for argument in typing.get_args(generic)
        ]
        found = next(filter(dataclasses.is_dataclass, arguments), None)
    return found if dataclasses.is_dataclass(found) else None


def kept(method: type[Algorithm]) -> list[str]:
    """Return the names of what a client keeps."""
    state = state_of(method)
    fields = dataclasses.fields(state) if state is not None else ()
    return [field.name for field in fields if field.metadata.get("owner") == "client"]


def origin(kind: str, name: str) -> str:
    """Return what a component was written from in place of its paper, else ''."""
    component = algorithm_class(name) if kind == "algorithm" else find(kind, name)
    return written_from(component).partition("this is from ")[2].removesuffix(".")


def elsewhere(name: str) -> list[str]:
    """Return the names of other public code that has a method or component."""
    return [library for library, names in ELSEWHERE.items() if name in names.split()]


def plain(text: str) -> str:
    """Return text of BibTeX with its accents as letters and without braces."""
    text = re.sub(
        r"\{\\(['\"`vH])\{?(\w)\}?\}",
        lambda found: unicodedata.normalize("NFC", found[2] + ACCENTS[found[1]]),
        text,
    )
    return re.sub(r"[{}]", "", text)


def paper(name: str) -> tuple[str, str]:
    """Return the authors and the year of a method's paper, and its title."""
    entry = cited_by("algorithm", name)[0]
    fields = {
        key: plain(value)
        for key, value in re.findall(r"^  (\w+) = \{(.*)\},?$", entry, re.MULTILINE)
    }
    families = [author.partition(",")[0] for author in fields["author"].split(" and ")]
    authors = " and ".join(families) if len(families) < 3 else f"{families[0]} et al."
    return f"{authors.replace(' and others', ' et al.')} {fields['year']}", fields["title"]


def place(name: str) -> str:
    """Return the page and heading that explain a method."""
    for page, sections in (PAGES | OTHER_PAGES).items():
        for heading, names in sections.items():
            if name in names.split():
                anchor = re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")
                return f"{page}#{anchor}" if anchor else page
    raise LookupError(f"no page explains {name}")


def row(name: str) -> str:
    """Return the row of a method."""
    method = algorithm_class(name)
    learns, sends = TEXTS[name]
    allowed = method.exchanges or ("server", "gossip")
    works = "-" if not method.communicates else "both" if len(allowed) == 2 else allowed[0]
    cells = [
        f"[`{name}`]({place(name)})" + "†" * bool(origin("algorithm", name)),
        paper(name)[0],
        learns,
        sends,
        works,
        method.compressors if method.communicates else "-",
        "yes" if method.serves_unseen_clients() else "-",
        "yes" if set(kept(method)) - {"optimizer"} else "-",
    ]
    return f"| {' | '.join(cells)} |"


def text() -> str:
    """Return the page."""
    head = [f"| {' | '.join(COLUMNS)} |", "|" + " --- |" * len(COLUMNS)]
    groups = [
        "\n".join([f"\n## {group}\n", *head, *map(row, names.split())])
        for group, names in GROUPS.items()
    ]
    also = [
        f"| {library} | {', '.join(f'`{name}`' for name in ALGORITHMS if name in names.split())} |"
        for library, names in ELSEWHERE.items()
        if {*names.split()} & {*ALGORITHMS}
    ]
    by_paper: dict[str, list[str]] = {}
    for name in ALGORITHMS:
        authors, title = paper(name)
        by_paper.setdefault(f"{authors} | {title}", []).append(f"`{name}`")
    papers = [f"| {key} | {', '.join(names)} |" for key, names in sorted(by_paper.items())]
    kinds = []
    for kind, table in KINDS.items():
        found: dict[str, list[str]] = {"": []}
        for name in table:
            if name not in ("none", "identity"):
                mark = "†" * (table is CORRECTIONS and bool(origin("correction", name)))
                found.setdefault(", ".join(elsewhere(name)), []).append(f"`{name}`{mark}")
        alone = ", ".join(found.pop(""))
        cells = [f"{', '.join(names)}: {at}" for at, names in found.items()]
        kinds.append(f"| {kind} | {'; '.join(cells)} | {alone} |")
    sources = {
        name: origin(kind, name)
        for kind, table in (("algorithm", ALGORITHMS), ("correction", CORRECTIONS))
        for name in table
    }
    unread = [f"| `{name}` | {origin} |" for name, origin in sources.items() if origin]
    without_paper = WITHOUT_PAPER + "\n".join(unread)
    parts = [
        *groups,
        COMPONENTS + "\n".join(kinds),
        DIFFER,
        OPTIONS.rstrip(),
        PAPERS + "\n".join(papers),
        without_paper,
        ALSO + "\n".join(also),
    ]
    return HEAD + "\n".join(parts) + "\n"


if __name__ == "__main__":
    (Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE).write_text(text(), encoding="utf-8")
