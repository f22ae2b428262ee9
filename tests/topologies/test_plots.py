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
    assert drawn(plots.draw_graph(matrix, title="t"), tmp_path)
    assert drawn(plots.draw_graph(one_peer_exponential(5).matrix(1)), tmp_path)
    silent = MixingMatrix(3, np.zeros((0, 2)), np.zeros(0))
    assert drawn(plots.draw_graph(silent), tmp_path)
    idle = MixingMatrix(3, np.array([[0, 1], [1, 2]]), np.array([0.5, 0.0]))
    assert drawn(plots.draw_graph(idle), tmp_path)


def test_decay_and_rounds(matrix, tmp_path):
    assert drawn(plots.consensus_decay(gossip(matrix, 10)), tmp_path)
    figure = plots.round_panels(base_k(9), 6, title="base_k")
    assert len(figure.axes) == 6
    assert drawn(figure, tmp_path)
