"""Plots of graphs, matrices and schedules, each a matplotlib figure that the caller saves."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np

from topologies.analysis.consensus import GossipRun, spectrum
from topologies.matrix import ACTIVE, MixingMatrix
from topologies.schedules.sequences import Schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

CIRCULAR = ("ring", "complete", "exponential")
SPRING_NODES = 150
NUMBERED_NODES, WEIGHED_EDGES = 50, 40
SMALL: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7}


@contextlib.contextmanager
def drawing(style: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Let a command draw files in matplotlib's own style, whatever the user's settings are."""
    os.environ["MPLBACKEND"] = "agg"  # that of a notebook may not be installed here
    from matplotlib import style as styles

    with styles.context(dict(style or {}), after_reset=True):
        yield


def draw_graph(matrix: MixingMatrix, title: str = "") -> Figure:
    """Draw the graph of a matrix, with edges as wide as their weight.

    Nodes have their numbers and edges their weights where there are few enough to be read. Where
    edges are directed, the weight stands nearer to the sender.
    """
    figure = new_figure(6.4, 5.6)
    axes = figure.subplots()
    positions = layout(matrix)
    points = _draw(axes, matrix, positions)
    if matrix.n <= NUMBERED_NODES:
        for node, (x, y) in positions.items():
            dark = matrix.self_weights[node] < 0.6 * matrix.self_weights.max()
            axes.text(x, y, str(node), color="white" if dark else "black", **SMALL)
    if len(matrix.edges) <= WEIGHED_EDGES:
        share = 0.5 if matrix.symmetric else 0.65
        for (i, j), weight in zip(matrix.edges.tolist(), matrix.weights.tolist(), strict=True):
            x, y = share * np.array(positions[j]) + (1 - share) * np.array(positions[i])
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
            axes.text(x, y, f"{weight:.2g}", bbox=box, **SMALL)
    figure.colorbar(points, ax=axes, label="self-weight", shrink=0.7)
    axes.set_title(title, parse_math=False)
    return figure


def heat_map(matrix: MixingMatrix, title: str = "") -> Figure:
    """Show W as an image, with zero white and negative entries red."""
    figure = new_figure(5.8, 5.0)
    axes = figure.subplots()
    dense = matrix.to_dense()
    top = float(np.abs(dense).max())
    image = axes.imshow(dense, cmap="RdBu", vmin=-top, vmax=top, interpolation="nearest")
    figure.colorbar(image, ax=axes, label="$W_{ij}$", shrink=0.85)
    axes.locator_params(integer=True)
    axes.set(xlabel="sender $j$", ylabel="receiver $i$")
    axes.set_title(title, parse_math=False)
    return figure


def spectrum_plot(matrix: MixingMatrix, title: str = "") -> Figure:
    """Plot the eigenvalues (singular values, if not symmetric) of a matrix, largest first."""
    figure = new_figure(6.4, 4.4)
    axes = figure.subplots()
    axes.plot(range(1, matrix.n + 1), spectrum(matrix)[::-1], ".-", linewidth=0.8, markersize=4)
    axes.axhline(0, color="0.8", linewidth=0.8, zorder=0)
    axes.set(xlabel="rank", ylabel="eigenvalue of $W$")
    axes.set_title(title, parse_math=False)
    return figure


def consensus_decay(runs: Mapping[str, GossipRun], title: str = "") -> Figure:
    """Plot the measured distance from consensus over the rounds, and the predicted one dashed.

    ``runs`` is by the name of each graph.
    """
    figure = new_figure(6.4, 4.4)
    axes = figure.subplots()
    for name, run in runs.items():
        (line,) = axes.semilogy(np.maximum(run.distance, 1e-17), label=name)
        promised = np.maximum(run.predicted, 1e-17)
        style = {"linewidth": 1, "drawstyle": "steps-post", "color": line.get_color()}
        axes.semilogy(promised, "--", **style)
    axes.plot([], [], "--", color="0.4", linewidth=1, label="promised by (p, τ)")
    axes.set_ylim(bottom=max(1e-17, axes.get_ylim()[0]), top=2)
    axes.set(xlabel="round", ylabel="distance from consensus")
    axes.set_title(title, parse_math=False)
    _as_text(figure.legend(loc="outside lower center", ncols=2, frameon=False))
    return figure


def round_panels(schedule: Schedule, count: int, title: str = "") -> Figure:
    """Draw the graphs of the first rounds, one panel each, with the nodes on one circle."""
    columns = min(count, 4)
    rows = math.ceil(count / columns)
    figure = new_figure(2.6 * columns, 2.8 * rows)
    positions = nx.circular_layout(range(schedule.n))
    for k in range(1, count + 1):
        matrix = schedule.matrix(k)
        axes = figure.add_subplot(rows, columns, k)
        _draw(axes, matrix, positions, small=True)
        axes.set_title(f"round {k}: {len(matrix.edges)} edges", fontsize=9)
    figure.suptitle(title, parse_math=False)
    return figure


def comparison(records: Sequence[Mapping[str, Any]]) -> Figure:
    """Plot the contraction, the effective neighbours and the messages of each record side
    by side.
    """
    panels = {
        "contraction a round": [(1 - r["consensus_rate"]) ** (0.5 / r["tau"]) for r in records],
        "effective neighbours": [r["effective_neighbours"] for r in records],
        "messages a round": [r["messages_per_round"] or None for r in records],
    }
    groups = [str(r["weights"] or r["schedule"]) for r in records]
    figure = new_figure(11, 1.4 + 0.27 * len(records))
    heights = np.arange(len(records))[::-1]
    every = figure.subplots(1, 3, sharey=True)
    for axes, (name, values) in zip(every, panels.items(), strict=True):
        for group in dict.fromkeys(groups):
            mine = [k for k, other in enumerate(groups) if other == group and values[k] is not None]
            axes.plot([values[k] for k in mine], heights[mine], "o", label=group)
        axes.set_xlabel(name)
        axes.grid(axis="y", color="0.9")
        axes.set_axisbelow(True)
    labels = [record["label"] for record in records]
    every[0].set_yticks(heights, labels, fontsize=8, parse_math=False)
    every[2].set_xscale("log")
    handles, names = every[0].get_legend_handles_labels()
    _as_text(figure.legend(handles, names, loc="outside upper center", ncols=5, frameon=False))
    return figure


def _as_text(legend: Legend) -> None:
    for text in legend.get_texts():
        text.set_parse_math(False)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches."""
    # Imported here because it is slow and most commands draw nothing.
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def layout(matrix: MixingMatrix) -> dict[int, Any]:
    """Return where the nodes of a graph are drawn."""
    graph = nx.empty_graph(matrix.n)
    graph.add_edges_from(matrix.edges.tolist())
    if matrix.info.get("family") in CIRCULAR or not matrix.symmetric:
        return dict(nx.circular_layout(graph))
    if matrix.n > SPRING_NODES or not nx.is_connected(graph):
        return dict(nx.spring_layout(graph, seed=0))
    return dict(nx.kamada_kawai_layout(graph))


def _draw(
    axes: Axes, matrix: MixingMatrix, positions: Mapping[int, Any], small: bool = False
) -> Any:
    """Draw one graph into the axes, unused edges dotted; return the nodes, for a colour bar."""
    graph = nx.empty_graph(matrix.n, create_using=nx.Graph if matrix.symmetric else nx.DiGraph)
    sizes = np.abs(matrix.weights)
    used = sizes > ACTIVE
    widths = 0.3 + 2.2 * sizes / max(float(sizes.max(initial=0)), ACTIVE)
    # A message goes from the sender, the second of a directed edge, to the receiver.
    ends = matrix.edges if matrix.symmetric else matrix.edges[:, ::-1]
    size = 30 if small else float(np.clip(6000 / matrix.n, 12, 260))
    arrows = {} if matrix.symmetric else {"arrowsize": 6, "node_size": size}
    styles = (used, {"width": widths[used], **arrows}), (~used, {"style": "dotted"})
    for drawn, style in styles:
        drawn_edges = list(map(tuple, ends[drawn].tolist()))
        nx.draw_networkx_edges(graph, positions, drawn_edges, ax=axes, edge_color="0.55", **style)
    self_weights = matrix.self_weights
    limits = {
        "vmin": min(0.0, float(self_weights.min())),
        "vmax": 1.0 if small else float(self_weights.max()),
    }
    nodes = nx.draw_networkx_nodes(
        graph, positions, ax=axes, node_size=size, node_color=self_weights, cmap="viridis", **limits
    )
    nodes.set_edgecolor("white")
    axes.set_axis_off()
    axes.set_aspect("equal")
    return nodes
