"""Links and computing times of the simulated clients, from the sections of ``timing``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import ndtri

from mpifed.errors import InputError
from mpifed.federation.options import ComputeOptions, NetworkOptions
from mpifed.mpi.communicator import Communicator
from mpifed.random import client_keys
from topologies.graphs.files import read_numbers
from topologies.inputs import TopologyError
from topologies.links.network import Links, Network, at_sites, one_site, read_network

# Seconds of a local step by round and clients, int64 (m,): float64 (m,).
StepSeconds = Callable[[int, np.ndarray], np.ndarray]


def read_links(
    options: NetworkOptions, n: int, communicator: Communicator
) -> tuple[Links, int | None]:
    """Return the links among ``n`` training clients, and the site of a server. Collective."""
    up, down = options.upload, options.download
    if options.path is None:
        rates = [math.inf if rate is None else rate for rate in (options.bandwidth, up, down)]
        return one_site(n, options.latency, *rates), None
    path = options.path
    network: Network = _by_rank_0(communicator, lambda: read_network(path), "network.path")
    sites = np.ones(network.n)
    network = replace(
        network,
        upload=network.upload if up is None else up * sites,
        download=network.download if down is None else down * sites,
        # Clients of one site do not need the network between sites.
        latency=np.where(np.eye(network.n, dtype=bool), 0.0, network.latency),
    )
    server = options.server
    if server is None:
        server = int(np.argmin((network.latency + network.latency.T).max(axis=1)))
    if server >= network.n:
        raise InputError(
            f"network.server is {server}, but '{path}' has {network.n} sites; allowed: 0 to "
            f"{network.n - 1}"
        )
    try:
        return at_sites(network, n), server
    except TopologyError as error:
        raise InputError(f"network.path: {error}") from None


def step_seconds(
    options: ComputeOptions,
    links: Links,
    clients: np.ndarray,
    seed: int,
    communicator: Communicator,
) -> StepSeconds:
    """Return the function that gives the seconds of a local step. Collective."""
    if options.name == "trace":
        path = str(options.path)
        table = _by_rank_0(communicator, lambda: _trace(path, len(clients)), "compute.path")
        column = np.zeros(int(clients.max()) + 1, np.int64)
        column[clients] = np.arange(len(clients)) if table.shape[1] > 1 else 0
        return lambda round, some: table[(round - 1) % len(table), column[some]]
    if options.name == "lognormal":

        def lognormal(round: int, some: np.ndarray) -> np.ndarray:
            ever = options.client_sigma * _normal(seed, "speed", 0, some)
            now = options.round_sigma * _normal(seed, "speed of a round", round, some)
            return options.seconds * np.exp(ever + now)

        return lognormal
    if options == ComputeOptions():
        own = np.zeros(int(clients.max()) + 1)
        own[clients] = links.network.compute[links.site]
        return lambda round, some: own[some]
    return lambda round, some: np.full(len(some), options.seconds)


def _normal(seed: int, purpose: str, round: int, clients: np.ndarray) -> np.ndarray:
    """Standard normal numbers, one for each client."""
    bits = client_keys(seed, purpose, round, clients) >> np.uint64(11)
    return np.asarray(ndtri((bits + 0.5) * 2.0**-53))


def _trace(path: str, n: int) -> np.ndarray:
    table = read_numbers(path)
    if table.shape[1] not in (1, n):
        raise TopologyError(
            f"'{path}' has {table.shape[1]} columns, but there are {n} clients in training; "
            f"allowed: {n}, or 1 for all"
        )
    if not (np.isfinite(table) & (table >= 0)).all():
        raise TopologyError(f"'{path}' must have seconds of at least 0")
    return table


def _by_rank_0(communicator: Communicator, make: Callable[[], Any], field: str) -> Any:
    made: Any = None
    if communicator.rank == 0:
        try:
            made = make()
        except TopologyError as error:
            made = str(error)
    made = communicator.broadcast_object(made)
    if isinstance(made, str):
        raise InputError(f"{field}: {made}")
    return made
