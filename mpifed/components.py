"""Names in a configuration become objects here.

Each kind of component has one table, ``name -> where it lives``; nothing is imported before it is
named, so that ``--help`` is quick and an optional dependency is only asked for when used. A name of
the form ``package.module:object`` reaches a user's own component.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from mpifed.errors import InputError, closest

ALGORITHMS = {
    "local": "mpifed.algorithms.local:Local",
    "fedavg": "mpifed.algorithms.fedavg:FedAvg",
    "fedavg_ft": "mpifed.algorithms.fedavg_ft:FedAvgFineTuned",
    "fedem": "mpifed.algorithms.fedem:FedEM",
    "flix": "mpifed.algorithms.flix:Flix",
    "dcgd": "mpifed.algorithms.dcgd:Dcgd",
    "diana": "mpifed.algorithms.diana:Diana",
    "fomaml": "mpifed.algorithms.maml:Fomaml",
    "maml": "mpifed.algorithms.maml:Maml",
    "reptile": "mpifed.algorithms.maml:Reptile",
    "fedmm": "mpifed.algorithms.fedmm:FedMM",
    "fedmm_theta": "mpifed.algorithms.fedmm_theta:FedMMTheta",
    "sa_ssmm": "mpifed.algorithms.sa_ssmm:SaSsmm",
    "fedmgs": "mpifed.algorithms.fedmgs:FedMGS",
    "fedmm_ot": "mpifed.algorithms.fedmm_ot:FedMMOT",
    "fedadam": "mpifed.algorithms.fedadam:FedAdam",
}
DATASETS = {
    "synthetic": "mpifed.data.synthetic:Synthetic",
    "digits": "mpifed.data.digits:Digits",
    "mnist": "mpifed.data.idx:Idx",
    "federated": "mpifed.data.federated:FederatedFile",
    "libsvm": "mpifed.data.libsvm:LibSvm",
    "sine": "mpifed.data.sine:Sine",
    "tags": "mpifed.data.tags:Tags",
    "tags_file": "mpifed.data.tags_file:TagsFile",
    "dictionary": "mpifed.data.dictionary:Dictionary",
    "poisson": "mpifed.data.poisson:Poisson",
    "gaussian_mixture": "mpifed.data.gaussian_mixture:GaussianMixture",
    "ratings": "mpifed.data.ratings:Ratings",
    "transport": "mpifed.data.transport:Transport",
}
MODELS = {
    "linear": "mpifed.models.linear:linear",
    "mlp": "mpifed.models.mlp:mlp",
    "icnn": "mpifed.models.icnn:icnn",
    "none": "mpifed.models.none:none",
}
EXCHANGES = {
    "server": "mpifed.exchange.server:Server",
    "gossip": "mpifed.exchange.gossip:Gossip",
}
COMPRESSORS = {
    "none": "mpifed.exchange.compression.base:Identity",
    "identity": "mpifed.exchange.compression.base:Identity",
    "rand_k": "mpifed.exchange.compression.sparse:RandK",
    "top_k": "mpifed.exchange.compression.sparse:TopK",
    "quantise": "mpifed.exchange.compression.rounding:Quantise",
    "natural": "mpifed.exchange.compression.rounding:Natural",
    "bernoulli": "mpifed.exchange.compression.combined:Bernoulli",
    "composition": "mpifed.exchange.compression.combined:Composition",
}
SURROGATES = {
    "quadratic": "mpifed.surrogates.quadratic:quadratic",
    "poisson": "mpifed.surrogates.poisson:poisson",
    "gaussian_mixture": "mpifed.surrogates.gaussian_mixture:gaussian_mixture",
    "dictionary": "mpifed.surrogates.dictionary:dictionary",
    "remark_one": "mpifed.surrogates.remark_one:remark_one",
}

TABLES = {
    "algorithm": ALGORITHMS,
    "data": DATASETS,
    "model": MODELS,
    "exchange": EXCHANGES,
    "compression": COMPRESSORS,
    "surrogate": SURROGATES,
}


def find(kind: str, name: Any) -> Callable[..., Any]:
    """The component of ``kind`` called ``name``; raises ``InputError`` that offers the closest."""
    table = TABLES[kind]
    if not isinstance(name, str):
        raise InputError(f"{kind}.name is {name!r}; {closest(str(name), table)}")
    if ":" in name:
        return _load(name, f"{kind}.name")
    if name not in table:
        raise InputError(f"{kind}.name is '{name}'; {closest(name, table)}")
    return _load(table[name], f"{kind}.name")


def summary(component: Callable[..., Any]) -> str:
    """The first line of the component's docstring."""
    return (component.__doc__ or "").strip().split("\n")[0]


def _load(target: str, field: str) -> Callable[..., Any]:
    module_name, _, attribute = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise InputError(f"{field} is '{target}', but module '{error.name}' is not found") from None
    found = getattr(module, attribute, None)
    if not callable(found):
        raise InputError(
            f"{field} is '{target}', but '{module_name}' has no callable '{attribute}'"
        )
    return found
