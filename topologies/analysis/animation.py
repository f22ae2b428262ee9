"""A moving picture of gossip: numbers on the nodes of a graph that approach their mean."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import numpy as np

from topologies.analysis import plots
from topologies.matrix import ACTIVE
from topologies.schedules.sequences import Schedule

# Frames in a second.
SPEED = 2


def write_gossip(
    schedule: Schedule, rounds: int, path: Path, *, seed: int = 0, title: str = ""
) -> None:
    """Write a GIF of gossip on random numbers: a frame for the start and one for each round.

    Nodes are coloured by their numbers, uniform in [0, 1) at the start; the edges of a frame are
    those of its round, as wide as their weights.

    Parameters
    ----------
    schedule : Schedule
        The matrices of the rounds.
    rounds : int
        How many rounds.
    path : Path
        The file to write.
    seed : int, default 0
        The seed of the numbers.
    title : str, optional
        The title above all frames.
    """
    from matplotlib.animation import FuncAnimation, PillowWriter

    x = np.random.default_rng(seed).random(schedule.n)
    values = [x]
    for k in range(1, rounds + 1):
        values.append(schedule.matrix(k).to_sparse() @ values[-1])
    positions = plots.layout(schedule.matrix(1))
    figure = plots.new_figure(6.4, 5.6)
    axes = figure.subplots()
    size = float(np.clip(6000 / schedule.n, 12, 260))
    graph = nx.empty_graph(schedule.n, create_using=nx.DiGraph)

    def draw(k: int) -> None:
        axes.clear()
        matrix = schedule.matrix(max(k, 1))
        sizes = np.abs(matrix.weights)
        used = sizes > ACTIVE
        ends = [(int(j), int(i)) for i, j in matrix.edges[used].tolist()]
        widths = 0.3 + 2.2 * sizes[used] / max(float(sizes.max(initial=0)), ACTIVE)
        nx.draw_networkx_edges(
            *(graph, positions, ends),
            ax=axes,
            width=widths if k else 0.3,
            edge_color="0.55",
            arrows=not matrix.symmetric,
            node_size=size,
        )
        nodes = nx.draw_networkx_nodes(
            *(graph, positions),
            ax=axes,
            node_color=values[k],
            node_size=size,
            cmap="viridis",
            vmin=0,
            vmax=1,
        )
        nodes.set_edgecolor("white")
        axes.set_axis_off()
        axes.set_aspect("equal")
        spread = float(np.std(values[k]))
        axes.set_title(f"{title}\nround {k}, standard deviation {spread:.2g}", parse_math=False)

    draw(0)
    figure.colorbar(axes.collections[-1], ax=axes, label="number of a node", shrink=0.7)
    FuncAnimation(figure, draw, frames=rounds + 1).save(path, PillowWriter(fps=SPEED), dpi=80)
