"""Names in a configuration become objects here.

Each kind of component has one table, ``name -> where it lives``; nothing is imported before it is
named, so that ``--help`` is quick and an optional dependency is only asked for when used. A name of
the form ``package.module:object`` reaches a user's own component.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

from mpifed.components.base import Component, DeclaredAlgorithm
from mpifed.components.schema import check_options, shown
from mpifed.errors import InputError, closest

ALGORITHMS = {
    "local": "mpifed.algorithms.local:Local",
    "fedavg": "mpifed.algorithms.fedavg:FedAvg",
    "fedavg_ft": "mpifed.algorithms.fedavg_ft:FedAvgFineTuned",
    "fedem": "mpifed.algorithms.fedem:FedEM",
    "flix": "mpifed.algorithms.flix.flix:Flix",
    "dcgd": "mpifed.algorithms.flix.dcgd:Dcgd",
    "diana": "mpifed.algorithms.flix.diana:Diana",
    "fomaml": "mpifed.algorithms.maml:Fomaml",
    "maml": "mpifed.algorithms.maml:Maml",
    "reptile": "mpifed.algorithms.maml:Reptile",
    "fedmm": "mpifed.algorithms.fedmm.fedmm:FedMM",
    "fedmm_theta": "mpifed.algorithms.fedmm.fedmm_theta:FedMMTheta",
    "sa_ssmm": "mpifed.algorithms.fedmm.sa_ssmm:SaSsmm",
    "fedmgs": "mpifed.algorithms.fedmgs:FedMGS",
    "fedmm_ot": "mpifed.algorithms.fedmm.fedmm_ot:FedMMOT",
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
    "transport": "mpifed.transport.dataset:Transport",
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

BASES = {
    "algorithm": "mpifed.algorithms.base:Algorithm",
    "data": "mpifed.data.base:Dataset",
    "exchange": "mpifed.exchange.base:Exchange",
}
"""Base classes from which the components of a kind derive."""


def find(kind: str, name: Any) -> Callable[..., Any]:
    """The component of ``kind`` called ``name``; raises ``InputError`` that offers the closest.

    It also refuses a user's own component that does not derive from the base class of its kind, or
    lacks a method of it.
    """
    table = TABLES[kind]
    if not isinstance(name, str):
        raise InputError(f"{kind}.name is {name!r}; {closest(str(name), table)}")
    if ":" in name:
        found = _load(name, f"{kind}.name")
        if kind in BASES:
            _check_base(found, BASES[kind], f"{kind}.name is '{name}'")
        return found
    if name not in table:
        raise InputError(f"{kind}.name is '{name}'; {closest(name, table)}")
    return _load(table[name], f"{kind}.name")


def find_algorithm(name: Any) -> type[DeclaredAlgorithm]:
    """The class of the algorithm called ``name``, for what it declares; as ``find``."""
    return cast(type[DeclaredAlgorithm], find("algorithm", name))


def summary(component: Callable[..., Any]) -> str:
    """The first line of the component's docstring."""
    return (component.__doc__ or "").strip().split("\n")[0]


def complete(kind: str, section: Any, path: str) -> dict[str, Any]:
    """A section (a name, or a mapping with a name) with its name and all options.

    ``kind`` is the table of ``components``, ``path`` the section's place in the configuration.
    Raises ``InputError`` for what is unknown or out of range.
    """
    if isinstance(section, str):
        section = {"name": section}
    if not isinstance(section, Mapping) or "name" not in section:
        raise InputError(f"{path} is {shown(section)}; it must be a name, or a mapping with a name")
    component = find(kind, section["name"])
    checked = check_options(component, without_name(section), path)
    return {"name": section["name"], **completed_options(component, checked, 0, path)}


def completed_options(
    component: Callable[..., Any], checked: dict[str, Any], n_training: int, *path: str
) -> dict[str, Any]:
    """Checked options as the component completes them; a plain function leaves them alone.

    ``n_training`` counts the clients in training; ``path`` is the section's place if it is inside
    of another one.
    """
    fill = getattr(component, "complete_options", None)
    return checked if fill is None else fill(checked, n_training, *path)


def refusal(component: Callable[..., Any], configuration: Any) -> str | None:
    """Why ``component`` does not go with the rest of the configuration; None if it does."""
    refuse = getattr(component, "refuse", None)
    return None if refuse is None else refuse(configuration)


def without_name(section: Mapping[str, Any]) -> dict[str, Any]:
    """A section without its name."""
    return {key: value for key, value in section.items() if key != "name"}


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


def _check_base(found: Callable[..., Any], place: str, said: str) -> None:
    """Raises ``InputError`` where ``found`` is no complete subclass of the class at ``place``."""
    module, _, name = place.partition(":")
    base: type[Component] = getattr(importlib.import_module(module), name)
    if not (inspect.isclass(found) and issubclass(found, base)):
        raise InputError(f"{said}, which is not derived from {module}.{name}")
    missing = sorted(found.__abstractmethods__)
    if missing:
        raise InputError(f"{said}, which lacks the methods {', '.join(missing)}")
