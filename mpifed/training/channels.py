"""The channel of a round, with what clients do to their updates on the way."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from mpifed.components.base import checked_result
from mpifed.exchange.attacks import Attackers
from mpifed.exchange.base import Channel, ServerChannel
from mpifed.exchange.outgoing import Change, Round, changing
from mpifed.exchange.privacy import OneUpdate, with_central_noise, with_local_noise
from mpifed.theory.accounting import accountant_of
from mpifed.training.build import Setup


def channel_of(setup: Setup, round: int, active: np.ndarray, memory: Any) -> Channel:
    """Return the channel of a round."""
    channel = setup.exchange.at(round, active, memory)
    options, hostile = setup.configuration.privacy, setup.attackers
    federation, seed, now = setup.federation, setup.configuration.seed, Round(round, active)
    if options.is_asked_for and options.where == "central":
        channel = with_central_noise(channel, options, federation, seed, now)
    if hostile is not None and hostile.attack.changes_updates:
        channel = changing(channel, Change(federation, hostile.who, partial(_sent, hostile)), now)
    if options.is_asked_for and options.where == "local":
        channel = with_local_noise(channel, options, federation, seed, now)
    if options.is_asked_for:
        assert isinstance(channel, ServerChannel)
        channel = OneUpdate(channel)
    return channel


def remarks(setup: Setup) -> list[str]:
    """Return lines for the log: who attacks, and what the privacy of the whole run will be."""
    if setup.federation.communicator.rank:
        return []
    found = [] if setup.attackers is None else [str(setup.attackers)]
    configuration = setup.configuration
    options, rounds = configuration.privacy, configuration.rounds
    if options.is_asked_for:
        epsilon = accountant_of(options, setup.federation, configuration.seed)(rounds)
        found.append(
            f"privacy {options.where}: after {rounds:,} rounds epsilon is {epsilon:.4g} for delta "
            f"{options.delta:g}"
        )
    return found


def _sent(hostile: Attackers, updates: Tensor, ids: np.ndarray, round: Round) -> Tensor:
    malicious = int((round.active & hostile.who).sum())
    made = hostile.attack.sent(updates, malicious, int(round.active.sum()))
    return checked_result(hostile.attack, "sent", made, updates)
