"""Plots of graphs, matrices and schedules, each a matplotlib figure that the caller saves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np

from topologies.analysis.consensus import GossipRun, spectrum
from topologies.matrix import ACTIVE, MixingMatrix
from topologies.schedules.sequences import Schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


CIRCULAR = ("ring", "complete", "exponential")
SPRING_NODES = 150
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#7f7f7f")


def draw_graph(
    matrix: MixingMatrix, *, title: str = "", values: Sequence[float] | None = None
) -> Figure:
    """Draw the graph of a matrix, with edges as wide as their weight."""
    figure = _figure(6.4, 5.6)
    axes = figure.subplots()
    shown = matrix.self_weights if values is None else np.asarray(values, dtype=np.float64)
    points = _draw(axes, matrix, _layout(matrix), shown)
    label = "self-weight" if values is None else "value"
    figure.colorbar(points, ax=axes, label=label, shrink=0.7)
    axes.set_title(title)
    return figure


def heat_map(matrix: MixingMatrix, *, title: str = "") -> Figure:
    """Show W as an image, with zero white and negative entries red."""
    figure = _figure(5.8, 5.0)
    axes = figure.subplots()
    dense = matrix.to_dense()
    top = float(np.abs(dense).max())
    image = axes.imshow(dense, cmap="RdBu", vmin=-top, vmax=top, interpolation="nearest")
    figure.colorbar(image, ax=axes, label="$W_{ij}$", shrink=0.85)
    axes.locator_params(integer=True)
    axes.set_xlabel("sender $j$")
    axes.set_ylabel("receiver $i$")
    axes.set_title(title)
    return figure


def spectrum_plot(matrices: Mapping[str, MixingMatrix], *, title: str = "") -> Figure:
    """Plot the eigenvalues (singular values, if not symmetric) of each matrix, largest first."""
    figure = _figure(6.4, 4.4)
    axes = figure.subplots()
    for (label, matrix), colour in _coloured(matrices):
        values = spectrum(matrix)[::-1]
        rank = np.arange(1, len(values) + 1)
        axes.plot(rank, values, ".-", color=colour, label=label, linewidth=0.8, markersize=4)
    axes.axhline(0, color="0.8", linewidth=0.8, zorder=0)
    axes.set_xlabel("rank")
    axes.set_ylabel("eigenvalue of $W$")
    axes.set_title(title)
    axes.legend(frameon=False)
    return figure


def consensus_decay(runs: Mapping[str, GossipRun], *, title: str = "") -> Figure:
    """Plot the measured distance from consensus over the rounds, and the predicted one dashed."""
    figure = _figure(6.4, 4.4)
    axes = figure.subplots()
    for (label, run), colour in _coloured(runs):
        rounds = np.arange(len(run.distance))
        axes.semilogy(rounds, np.maximum(run.distance, 1e-17), color=colour, label=label)
        promised = np.maximum(run.predicted, 1e-17)
        axes.semilogy(rounds, promised, "--", color=colour, linewidth=1, drawstyle="steps-post")
    axes.plot([], [], "--", color="0.4", linewidth=1, label="promised by (p, τ)")
    axes.set_ylim(bottom=max(1e-17, axes.get_ylim()[0]), top=2)
    axes.set_xlabel("round")
    axes.set_ylabel("distance from consensus")
    axes.set_title(title)
    axes.legend(frameon=False)
    return figure


def round_panels(schedule: Schedule, count: int, *, title: str = "") -> Figure:
    """Draw the graphs of the first rounds, one panel each, with the nodes on one circle."""
    columns = min(count, 4)
    rows = math.ceil(count / columns)
    figure = _figure(2.6 * columns, 2.8 * rows)
    grid = figure.subplots(rows, columns, squeeze=False)
    positions = nx.circular_layout(range(schedule.n))
    for k, axes in enumerate(grid.ravel(), start=1):
        if k > count:
            axes.set_axis_off()
            continue
        matrix = schedule.matrix(k)
        _draw(axes, matrix, positions, matrix.self_weights, small=True)
        axes.set_title(f"round {k}: {len(matrix.edges)} edges", fontsize=9)
    figure.suptitle(title)
    return figure


def comparison(records: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> Figure:
    """Plot the contraction, the effective neighbours and the messages of each record side
    by side.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    panels = {
        "contraction a round": [(1 - r["consensus_rate"]) ** (0.5 / r["tau"]) for r in records],
        "effective neighbours": [r["effective_neighbours"] for r in records],
        "messages a round": [r["messages_per_round"] or None for r in records],
    }
    groups = [_group(r) for r in records]
    colour_of = dict(zip(dict.fromkeys(groups), COLOURS * len(groups), strict=False))
    figure = _figure(11, 1.4 + 0.27 * len(records))
    places = np.arange(len(records))[::-1]
    for axes, (name, values) in zip(
        figure.subplots(1, 3, sharey=True), panels.items(), strict=True
    ):
        for group, colour in colour_of.items():
            mine = [k for k, other in enumerate(groups) if other == group and values[k] is not None]
            axes.plot([values[k] for k in mine], places[mine], "o", color=colour, label=group)
        axes.set_xlabel(name)
        axes.grid(axis="y", color="0.9")
        axes.set_axisbelow(True)
    first = figure.axes[0]
    first.set_yticks(places, labels, fontsize=8)
    figure.axes[2].set_xscale("log")
    figure.axes[2].xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=7))
    figure.axes[2].xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    figure.axes[2].xaxis.set_minor_formatter(NullFormatter())
    handles, names = first.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=5, frameon=False)
    return figure


def _group(record: Mapping[str, Any]) -> str:
    """Return the weight rule of a record, or its schedule where it has no fixed weights."""
    if record["weights"] is None and record["schedule"] == "static":
        return "static, thinned or with drop-outs"
    return str(record["weights"] or record["schedule"])


def _figure(width: float, height: float) -> Figure:
    # Imported here because it is slow and most commands draw nothing.
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _layout(matrix: MixingMatrix) -> dict[int, Any]:
    graph = nx.empty_graph(matrix.n)
    graph.add_edges_from(matrix.edges.tolist())
    if matrix.info.get("family") in CIRCULAR or not matrix.symmetric:
        return dict(nx.circular_layout(graph))
    if matrix.n > SPRING_NODES or not nx.is_connected(graph):
        return dict(nx.spring_layout(graph, seed=0))
    return dict(nx.kamada_kawai_layout(graph))


def _draw(
    axes: Axes, matrix: MixingMatrix, positions: Mapping[int, Any], values: Any, small: bool = False
) -> Any:
    """Draw one graph into the axes; return the nodes, for a colour bar."""
    graph = nx.empty_graph(matrix.n, create_using=nx.Graph if matrix.symmetric else nx.DiGraph)
    sizes = np.abs(matrix.weights)
    used = sizes > ACTIVE
    widths = 0.3 + 2.2 * sizes / max(float(sizes.max(initial=0)), ACTIVE)
    # A message goes from the sender, the second of a directed edge, to the receiver.
    order = slice(None) if matrix.symmetric else slice(None, None, -1)
    ends = [tuple(edge[order]) for edge in matrix.edges.tolist()]
    kept = [edge for edge, on in zip(ends, used, strict=True) if on]
    size = 30 if small else float(np.clip(6000 / matrix.n, 12, 260))
    style = {"arrowsize": 6, "node_size": size} if not matrix.symmetric else {}
    nx.draw_networkx_edges(
        graph, positions, kept, ax=axes, width=widths[used], edge_color="0.55", **style
    )
    idle = [edge for edge, on in zip(ends, used, strict=True) if not on]
    nx.draw_networkx_edges(graph, positions, idle, ax=axes, style="dotted", edge_color="0.7")
    nodes = nx.draw_networkx_nodes(
        graph,
        positions,
        ax=axes,
        node_size=size,
        node_color=values,
        cmap="viridis",
        vmin=min(0.0, float(np.min(values))),
        vmax=1.0 if small else float(np.max(values)),
    )
    nodes.set_edgecolor("white")
    axes.set_axis_off()
    axes.set_aspect("equal")
    return nodes


def _coloured(items: Mapping[str, Any]) -> Any:
    return zip(items.items(), (COLOURS * len(items))[: len(items)], strict=True)
