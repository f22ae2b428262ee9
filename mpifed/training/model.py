"""Makes a run's model: from a component's function, or from a torch module of the user's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch

from mpifed.algorithms.base import Algorithm
from mpifed.components.registry import find
from mpifed.config.configuration import Configuration
from mpifed.data.base import Description
from mpifed.errors import InputError
from mpifed.models.base import Model, Parametrised
from mpifed.models.losses import loss_for
from mpifed.models.modules import complete, module_model, seeded


def make_model(
    configuration: Configuration, description: Description, method: type[Algorithm]
) -> Model:
    """Return the model of a run."""
    name = configuration.model.name
    function = find("model", name)

    def build() -> Any:
        return function(description, **configuration.model.options)

    if configuration.local.autocast and configuration.dtype == "float64":
        raise InputError(
            f"local.autocast is '{configuration.local.autocast}', which torch does not apply to "
            "dtype 'float64'; allowed: float32"
        )

    def first() -> Any:
        made = build()
        shape = description.input_shape
        return complete(made, shape) if isinstance(made, torch.nn.Module) else made

    built = seeded(first, configuration.seed)
    if isinstance(built, torch.nn.Module):
        built = module_model(
            build,
            description.input_shape,
            description.output_shape,
            loss_for(description.task),
            seed=configuration.seed,
            autocast=torch.bfloat16 if configuration.local.autocast else None,
            dtype=torch.float64 if configuration.dtype == "float64" else torch.float32,
            network=built,
        )
    elif configuration.local.autocast:
        raise InputError(
            f"local.autocast is '{configuration.local.autocast}', but model '{name}' is computed "
            "by formulas of its own; allowed with networks (torch modules)"
        )
    wanted = method.model_type if isinstance(built, Parametrised) else (Model, torch.nn.Module)
    if not isinstance(built, wanted):
        kinds = wanted if isinstance(wanted, tuple) else (wanted,)
        raise InputError(
            f"model.name is '{name}', which gives a {type(built).__name__}, but algorithm "
            f"'{configuration.algorithm.name}' needs a "
            f"{' or '.join(kind.__name__ for kind in kinds)}"
        )
    # A model that does not predict reaches only methods that ask for it by ``model_type``.
    return cast(Model, built)


def with_stepping(
    configuration: Configuration, model: Model, device: torch.device
) -> Configuration:
    """Return the configuration with ``local.stepping`` as it is used, where digests depend
    on it.
    """
    asked = configuration.local.stepping
    if asked != "auto" and asked not in model.steppings:
        raise InputError(
            f"local.stepping is '{asked}', but the model {_unstackable(configuration, model)}, so "
            "that its rows cannot be stacked; allowed: auto, one_by_one"
        )
    on_cpu, predicts = device.type == "cpu", isinstance(model, Model)
    if asked != "auto" or not predicts or (on_cpu and model.same_bits):
        return configuration
    chosen = model.stepping if on_cpu else model.stepping_on_gpu
    return replace(configuration, local=replace(configuration.local, stepping=chosen))


def _unstackable(configuration: Configuration, model: Model) -> str:
    """Say what keeps rows of a model from being stacked."""
    if not model.deterministic:
        return "has dropout, batch normalisation or buffers that change"
    if configuration.local.autocast:
        return f"computes in {configuration.local.autocast} (local.autocast)"
    return "has layers, branches or changes in place that torch.func.vmap does not take"


def validate_exact(
    configuration: Configuration, model: Model, method: Algorithm | type[Algorithm]
) -> None:
    """Refuse a model whose risk is random in a method that needs whole risks."""
    if not method.uses_model or method.local_options is None:
        return
    if not model.deterministic:
        raise InputError(
            f"model.name is '{configuration.model.name}', whose outputs in training depend on "
            "random numbers or on other samples (dropout, batch normalisation), but "
            f"algorithm '{configuration.algorithm.name}' computes gradients of whole risks; "
            "use a network without them, such as one with GroupNorm"
        )


def validate_buffers(configuration: Configuration, model: Model, unbiased: bool) -> None:
    """Refuse running statistics in exchanges that do not average: a variance could be negative."""
    name = configuration.compression.name
    if not model.n_buffers or (name in ("none", "identity") and not unbiased):
        return
    kept = configuration.local.buffers == "local"
    if kept and not configuration.evaluation.unseen_fraction:
        return
    cause = "participation.weights is 'unbiased'" if unbiased else f"compression.name is '{name}'"
    raise InputError(
        f"{cause}, but model '{configuration.model.name}' has running statistics, whose variances "
        "could become negative; allowed with local.buffers=local and without unseen clients, or use"
        " GroupNorm"
    )


def described(model: Model) -> str:
    """Return the size of a model and how it is stepped, for the plan of a run."""
    buffers = f" and {model.n_buffers:,} running statistics" if model.n_buffers else ""
    return f"{model.n_parameters - model.n_buffers:,} parameters{buffers}"
