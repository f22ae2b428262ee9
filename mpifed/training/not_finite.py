"""Numbers that are not finite in a rehearsed round: whether a user's own components are why."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import torch

from mpifed.components.registry import find
from mpifed.errors import Diverged, InputError, PeerDiverged
from mpifed.models.base import Model
from mpifed.state import tensors
from mpifed.training.build import Setup
from mpifed.training.engine import Engine
from mpifed.training.own_parts import is_users, own_sections
from topologies.inputs import within

# What the learning rate is multiplied by, or one where it is larger.
SMALLER = 1e-6

# Samples of a client for which the outputs of a model are looked at.
TRIED = 16


def play_finitely(
    begin: Callable[[Setup], Engine], go: Callable[[Engine], None], setup: Setup
) -> None:
    """Go through a round, and refuse own components that make it not finite; collective."""
    engine = begin(setup)
    try:
        go(engine)
    except (Diverged, PeerDiverged):
        configuration = setup.configuration
        if setup.algorithm.step_option != "local.lr":  # by which it may have diverged
            return
        local = dataclasses.replace(configuration.local, lr=_smaller(setup))
        slow = dataclasses.replace(configuration, local=local)
        try:
            go(begin(dataclasses.replace(setup, configuration=slow)))
        except (Diverged, PeerDiverged):
            engine = begin(setup)
            raise InputError(_of_model(engine) or _of_state(engine) or _of_round(setup)) from None
        return
    said = _of_model(engine)
    if said is not None:
        raise InputError(said)


def _smaller(setup: Setup) -> float:
    return min(1.0, setup.configuration.local.lr) * SMALLER


def _of_model(engine: Engine) -> str | None:
    """Return that the outputs of a user's model are not finite before round 1."""
    setup, name = engine.setup, engine.setup.configuration.model.name
    hosted = len(setup.federation.hosted)
    if not is_users(setup.configuration.model) or not isinstance(setup.model, Model) or not hosted:
        return None
    clients = engine.samples.clients(np.arange(1))
    split = clients.shards.train
    x = split.x[split.rows_of(clients.rows[0])][:TRIED]
    row = setup.model.init(np.random.default_rng(setup.configuration.seed))
    where = within(find("model", name))
    if not np.isfinite(row).all():
        return f"model.name is '{name}', whose first parameters are not finite{where}"
    with torch.no_grad():
        outputs = setup.model.shared_logits(torch.from_numpy(row)[None].to(setup.dtype), x)
    if not len(x) or not _finite(x) or _finite(outputs):
        return None
    return (
        f"model.name is '{name}', whose outputs for samples of the data are not finite before the "
        f"first step{where}"
    )


def _of_state(engine: Engine) -> str | None:
    """Return that the state of a user's algorithm is not finite before round 1."""
    section, algorithm = engine.setup.configuration.algorithm, engine.setup.algorithm
    if not is_users(section):
        return None
    engine.prepare()
    kept = tensors(engine.state.algorithm, engine.setup.exchange.shared_is_rows)
    fields = [name for name, tensor, _ in kept if not _finite(tensor)]
    if not fields:
        return None
    made = within(type(algorithm).init) or within(type(algorithm))
    return (
        f"algorithm '{type(algorithm).__name__}': init returned a state whose {fields[0]} is not "
        f"finite, nor is it after the first round{made}"
    )


def _of_round(setup: Setup) -> str:
    """Return that a round with a user's components is not finite."""
    named = []
    for key, kind, section in own_sections(setup.configuration):
        found = find(kind, section.name)
        place = within(getattr(found, "round", found)) or within(found)
        named.append(f"{key}.name is '{section.name}'{place}")
    return (
        f"{' and '.join(named)}: the first round gives numbers that are not finite, with a "
        f"local.lr of {_smaller(setup):g} too"
    )


def _finite(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())
