"""Base classes of components: classes that a configuration names."""

from __future__ import annotations

from abc import ABC
from typing import Any, ClassVar, Literal

from mpifed.components.requirement import Requirement


class Component(ABC):  # noqa: B024 (the base classes derived from it have abstract methods)
    """A class that a configuration names; its keyword-only parameters are its options."""

    requires: ClassVar[tuple[Requirement, ...]] = ()

    @staticmethod
    def complete_options(options: dict[str, Any], n_training: int) -> dict[str, Any]:
        """Fill in what the options leave open."""
        return options

    @staticmethod  # noqa: B027 (a component that goes with everything needs none)
    def validate(configuration: Any) -> None:
        """Raise ``InputError`` where the component does not go with the rest."""


# Which compressors the messages of an algorithm may go through.
Compressors = Literal["any", "unbiased", "none"]

# What a server makes of the messages of an algorithm.
Aggregates = Literal["mean", "means", "sums"]


# What an algorithm averages once in a round, and nothing else: its only model, or several.
Averages = Literal["one", "several"]


class DeclaredAlgorithm(Component):
    """The attributes of an algorithm's class that a configuration reads."""

    exchanges: ClassVar[tuple[str, ...] | None] = None
    compressors: ClassVar[Compressors] = "any"
    aggregates: ClassVar[Aggregates] = "mean"
    devices: ClassVar[tuple[Literal["cpu", "cuda"], ...]] = ("cpu", "cuda")
    communicates: ClassVar[bool] = True
    uses_model: ClassVar[bool] = True
    steps_locally: ClassVar[bool] = False
    takes_duals: ClassVar[bool] = False
    steps_without_clients: ClassVar[bool] = False
    server_steps: ClassVar[bool] = False
    averages_models: ClassVar[Averages | None] = None
    neighbours: ClassVar[Literal["given", "corrected", "chosen"]] = "given"

    @classmethod
    def serves_unseen_clients(cls) -> bool:
        """Return whether clients that took no part in training get a predictor."""
        return False
