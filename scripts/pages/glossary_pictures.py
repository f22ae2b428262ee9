"""Draws the pictures of docs/glossary.md: ``python scripts/pages/glossary_pictures.py [FOLDER]``.

``glossary-architecture.svg`` shows clients on ranks under a server and by gossip;
``glossary-mixing.svg`` shows a graph beside its mixing matrix, as ``topologies`` computes it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import networkx as nx
import numpy as np

import topologies

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.patches import Circle, FancyBboxPatch

DOCS = Path(__file__).parents[2] / "docs"
BLUE, ORANGE, INK, FILL = "#0072B2", "#D55E00", "#222222", "#EAF2F8"
STYLE = {"svg.hashsalt": "mpifed", "font.size": 11}
GRAPH = nx.Graph([(0, 1), (1, 2), (2, 3), (3, 0), (2, 4)])


def node(axes, x, y, label, colour=BLUE, radius=0.27):
    """Draw a circle with a label."""
    axes.add_patch(Circle((x, y), radius, facecolor="white", edgecolor=colour, lw=2, zorder=2))
    axes.text(x, y, label, ha="center", va="center", color=INK, zorder=3)


def arrow(axes, begin, end, gap=13):
    """Draw messages both ways between two points."""
    shape = {"arrowstyle": "<->", "color": ORANGE, "lw": 1.6, "shrinkA": 13, "shrinkB": gap}
    axes.annotate("", xy=end, xytext=begin, arrowprops=shape, zorder=1)


def exchange(axes, title, places, edges, centre=None):
    """Draw six clients, the two ranks that host them, and the messages of a round."""
    for rank, left in enumerate((0, 3)):
        shape = {"boxstyle": "round,pad=0,rounding_size=0.15", "fc": FILL, "ec": "#888888"}
        axes.add_patch(FancyBboxPatch((left + 0.07, -0.7), 2.86, 2.4, **shape))
        axes.text(left + 1.5, -0.55, f"rank {rank}, an MPI process", ha="center", color="#555555")
    for number, (x, y) in enumerate(places):
        node(axes, x, y, str(number))
    for i, j in edges:
        if centre is None:
            arrow(axes, places[i], places[j])
        else:
            arrow(axes, places[i], centre, gap=23)
    if centre is not None:
        node(axes, *centre, "server", ORANGE, 0.48)
    axes.set_title(title, color=INK)
    axes.set(xlim=(-0.2, 6.2), ylim=(-1, 3.4), aspect="equal")
    axes.axis("off")


def architecture(path: Path) -> None:
    """Draw clients on ranks, under a server and by gossip."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    row = [(x, 0.6) for x in (0.6, 1.5, 2.4, 3.6, 4.5, 5.4)]
    exchange(left, "server: models go up, their mean comes down", row,
             [(i, i) for i in range(6)], (3, 2.7))  # fmt: skip
    ring = [(0.6, 0.1), (1.5, 1.2), (2.5, 0.3), (3.5, 1.2), (4.5, 0.2), (5.4, 1.2)]
    edges = [(0, 1), (1, 3), (3, 5), (5, 4), (4, 2), (2, 0)]
    exchange(right, "gossip: neighbours mix their models", ring, edges)
    save(figure, path)


def mixing(path: Path) -> None:
    """Draw a graph with its Metropolis-Hastings weights on the edges, and W."""
    w = topologies.mixing_matrix(GRAPH, "metropolis_hastings").to_dense()
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    places = {0: (0, 0), 1: (0, 2), 2: (2, 2), 3: (2, 0), 4: (4, 2)}
    for i, j in GRAPH.edges:
        (x, y), (u, v) = places[i], places[j]
        left.plot([x, u], [y, v], color=ORANGE, lw=1.8, zorder=1)
        left.text((x + u) / 2, (y + v) / 2, f"{w[i, j]:.2f}", ha="center", va="center",
                  bbox={"fc": "white", "ec": "none", "pad": 1})  # fmt: skip
    for number, (x, y) in places.items():
        node(left, x, y, str(number))
    left.set(xlim=(-0.6, 4.6), ylim=(-0.6, 2.6), aspect="equal", title="a graph of five clients")
    left.axis("off")
    right.imshow(w, cmap="Blues", vmin=0, vmax=1.2)
    for (i, j), value in np.ndenumerate(w):
        right.text(j, i, f"{value:.2f}" if value else "0", ha="center", va="center")
    right.set(xticks=range(5), yticks=range(5), title="its mixing matrix W")
    right.set(xlabel="client j, whose model is read", ylabel="client i, which mixes")
    save(figure, path)


def save(figure, path: Path) -> None:
    """Write a picture that is the same whenever it is drawn."""
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS
    with matplotlib.rc_context(STYLE):
        architecture(folder / "glossary-architecture.svg")
        mixing(folder / "glossary-mixing.svg")
