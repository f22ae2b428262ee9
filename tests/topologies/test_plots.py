import numpy as np
import pytest

from topologies import MixingMatrix, build_graph, gossip, mixing_matrix
from topologies.analysis import plots
from topologies.schedules.circulants import base_k, one_peer_exponential


@pytest.fixture
def matrix():
    return mixing_matrix(build_graph("erdos_renyi", 9, 1, p=0.5))


def drawn(figure, tmp_path):
    figure.savefig(tmp_path / "p.png", dpi=30)
    return (tmp_path / "p.png").stat().st_size > 500


def test_graphs(matrix, tmp_path):
    figure = plots.draw_graph(matrix, title="t")
    said = {text.get_text() for text in figure.axes[0].texts}
    assert said == {*map(str, range(9)), *(f"{weight:.2g}" for weight in matrix.weights)}
    assert drawn(figure, tmp_path)
    assert drawn(plots.draw_graph(one_peer_exponential(5).matrix(1)), tmp_path)
    silent = MixingMatrix(3, np.zeros((0, 2)), np.zeros(0))
    assert drawn(plots.draw_graph(silent), tmp_path)
    idle = MixingMatrix(3, np.array([[0, 1], [1, 2]]), np.array([0.5, 0.0]))
    assert drawn(plots.draw_graph(idle), tmp_path)


def test_decay_and_rounds(matrix, tmp_path):
    figure = plots.consensus_decay({"one": gossip(matrix, 10), "two": gossip(base_k(9), 10)})
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["one", "two", "promised by (p, τ)"] and drawn(figure, tmp_path)
    figure = plots.round_panels(base_k(9), 6, title="base_k")
    assert len(figure.axes) == 6
    assert drawn(figure, tmp_path)


def test_names_are_no_formulas(matrix, tmp_path):
    name = "$x^$"
    for draw in (plots.draw_graph, plots.heat_map, plots.spectrum_plot):
        assert drawn(draw(matrix, name), tmp_path)
    assert drawn(plots.consensus_decay({name: gossip(matrix, 3)}, name), tmp_path)
    assert drawn(plots.round_panels(base_k(9), 2, name), tmp_path)
    numbers = {"consensus_rate": 0.5, "tau": 1, "effective_neighbours": 2, "messages_per_round": 3}
    record = numbers | {"label": name, "weights": name, "schedule": "static"}
    assert drawn(plots.comparison([record]), tmp_path)
