"""Graphs, mixing matrices and schedules for gossip averaging."""

# mypy: implicit-reexport
# ruff: noqa: F401

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:  # ``typing`` would cost every guard 5 ms
    from typing import Any

    from topologies.analysis.consensus import (
        Communication,
        ConsensusRate,
        GossipRun,
        communication,
        consensus_rate,
        diameter,
        effective_neighbours,
        gossip,
        mixing_time,
        slem,
        spectrum,
        stationary_distribution,
        weighted_slem,
    )
    from topologies.analysis.description import describe
    from topologies.errors import TopologyError
    from topologies.graphs.build import (
        FAMILIES,
        build_graph,
        check_graph_parameters,
        edge_array,
        parse_graph,
    )
    from topologies.matrix import MixingMatrix, Report, Violation
    from topologies.names import Entry
    from topologies.parameters import Parameter
    from topologies.schedules.cliques import Cliques
    from topologies.schedules.sequences import (
        Around,
        BurstyEdges,
        Drawn,
        DropEdges,
        DropNodes,
        LocalRounds,
        Periodic,
        Schedule,
        Static,
    )
    from topologies.schedules.table import (
        SCHEDULES,
        build_schedule,
        check_schedule,
        parse_schedule,
        prepare_schedule,
        restore_schedule,
    )
    from topologies.weights.fastest_mixing import FmmcResult, fmmc
    from topologies.weights.rules import (
        best_constant,
        by_size,
        max_degree,
        metropolis_hastings,
        uniform,
    )
    from topologies.weights.table import WEIGHTS, check_weights, mixing_matrix

# The public names by the module that defines them, which is imported when one of them is used.
# scipy and networkx take most of a second to import, and most users of a module of this package
# need little of them.
_HOMES = {
    "analysis.consensus": "Communication ConsensusRate GossipRun communication consensus_rate "
    "diameter effective_neighbours gossip mixing_time slem spectrum stationary_distribution "
    "weighted_slem",
    "analysis.description": "describe",
    "graphs.build": "FAMILIES build_graph check_graph_parameters edge_array parse_graph",
    "errors": "TopologyError",
    "matrix": "MixingMatrix Report Violation",
    "schedules.cliques": "Cliques",
    "schedules.sequences": "Around BurstyEdges Drawn DropEdges DropNodes LocalRounds Periodic "
    "Schedule Static",
    "schedules.table": "SCHEDULES build_schedule check_schedule parse_schedule prepare_schedule "
    "restore_schedule",
    "names": "Entry",
    "parameters": "Parameter",
    "weights.fastest_mixing": "FmmcResult fmmc",
    "weights.rules": "best_constant by_size max_degree metropolis_hastings uniform",
    "weights.table": "WEIGHTS check_weights mixing_matrix",
}

__all__ = sorted(" ".join(_HOMES.values()).split())

if not TYPE_CHECKING:  # else mypy would accept any name

    def __getattr__(name: str) -> Any:
        for module, names in _HOMES.items():
            if name in names.split():
                value = globals()[name] = getattr(import_module(f"topologies.{module}"), name)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
