"""Graphs, mixing matrices and schedules for gossip averaging."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topologies.analysis.consensus import ConsensusRate, consensus_rate, mixing_time
    from topologies.analysis.measures import describe
    from topologies.analysis.messages import Communication, GossipRun, communication, gossip
    from topologies.analysis.spectrum import diameter, effective_neighbours, slem, spectrum
    from topologies.graphs.build import build_graph, check_graph_parameters, edge_array, parse_graph
    from topologies.graphs.families import FAMILIES
    from topologies.matrix import MixingMatrix, Report, Violation
    from topologies.parameters import Entry, Parameter, TopologyError
    from topologies.schedules.sequences import Drawn, Periodic, Schedule, Static
    from topologies.schedules.table import (
        SCHEDULES,
        build_schedule,
        check_schedule,
        parse_schedule,
        prepare_schedule,
        restore_schedule,
    )
    from topologies.schedules.thinning import BurstyEdges, DropEdges, DropNodes, LocalRounds
    from topologies.weights.fastest_mixing import FmmcResult, fmmc
    from topologies.weights.rules import (
        WEIGHTS,
        best_constant,
        check_weights,
        max_degree,
        metropolis_hastings,
        mixing_matrix,
        uniform,
    )

__all__ = [
    "FAMILIES",
    "SCHEDULES",
    "WEIGHTS",
    "BurstyEdges",
    "Communication",
    "ConsensusRate",
    "Drawn",
    "DropEdges",
    "DropNodes",
    "Entry",
    "FmmcResult",
    "GossipRun",
    "LocalRounds",
    "MixingMatrix",
    "Parameter",
    "Periodic",
    "Report",
    "Schedule",
    "Static",
    "TopologyError",
    "Violation",
    "best_constant",
    "build_graph",
    "build_schedule",
    "check_graph_parameters",
    "check_schedule",
    "check_weights",
    "communication",
    "consensus_rate",
    "describe",
    "diameter",
    "edge_array",
    "effective_neighbours",
    "fmmc",
    "gossip",
    "max_degree",
    "metropolis_hastings",
    "mixing_matrix",
    "mixing_time",
    "parse_graph",
    "parse_schedule",
    "prepare_schedule",
    "restore_schedule",
    "slem",
    "spectrum",
    "uniform",
]

# The public names by the module that defines them, which is imported when one of them is used.
# scipy and networkx take most of a second to import, and most users of a module of this package
# need little of them.
_HOMES = {
    "analysis.spectrum": "diameter effective_neighbours slem spectrum",
    "parameters": "Entry Parameter TopologyError",
    "analysis.consensus": "ConsensusRate consensus_rate mixing_time",
    "graphs.families": "FAMILIES",
    "weights.fastest_mixing": "FmmcResult fmmc",
    "graphs.build": "build_graph check_graph_parameters edge_array parse_graph",
    "matrix": "MixingMatrix Report Violation",
    "analysis.measures": "describe",
    "analysis.messages": "Communication GossipRun communication gossip",
    "schedules.table": "SCHEDULES build_schedule check_schedule parse_schedule prepare_schedule "
    "restore_schedule",
    "schedules.sequences": "Drawn Periodic Schedule Static",
    "schedules.thinning": "BurstyEdges DropEdges DropNodes LocalRounds",
    "weights.rules": "WEIGHTS best_constant check_weights max_degree metropolis_hastings "
    "mixing_matrix uniform",
}

if not TYPE_CHECKING:  # else mypy would accept any name

    def __getattr__(name: str) -> Any:
        for module, names in _HOMES.items():
            if name in names.split():
                value = globals()[name] = getattr(import_module(f"topologies.{module}"), name)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
