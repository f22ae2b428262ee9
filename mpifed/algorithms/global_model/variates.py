"""What methods have in common whose clients correct their own steps or values."""

from __future__ import annotations

from typing import Any


def refuse_momentum(configuration: Any) -> str | None:
    """Return why steps that are corrected by constant rows cannot have momentum, or None."""
    local = configuration.local
    if local.optimizer == "sgd" and not local.momentum:
        return None
    return (
        f"local.optimizer is '{local.optimizer}' and local.momentum {local.momentum}, but "
        f"{configuration.algorithm.name} corrects steps of plain SGD; allowed: sgd with momentum 0"
    )


def refuse_correction(configuration: Any) -> str | None:
    """Return why gossip cannot be corrected besides, or go without rounds, or None."""
    mixes = configuration.exchange.options.get("asynchrony", "none")
    if mixes != "none":
        return (
            f"exchange.asynchrony is '{mixes}', but the corrections of "
            f"{configuration.algorithm.name} cancel only where all clients exchange in the same "
            "round; allowed: none"
        )
    asked = configuration.exchange.options.get("correction")
    if asked is None:
        return None
    return (
        f"exchange.correction is '{asked.name}', but {configuration.algorithm.name} "
        "corrects gossip itself; allowed: none"
    )
