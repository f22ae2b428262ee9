"""FedEM and D-FedEM: federated expectation-maximisation (Marfoq et al., NeurIPS 2021).

``expectation`` has the E-step and the mixture weights (eqs. 8 and 9), ``fedem`` Algorithms 1 to 5,
the black-box local solvers of App. H, and the choice among several beginnings; ``fedgmm`` is the
joint mixture of Wu et al. (2023), and ``fedspd`` FedSPD of Lin et al. (2025).
"""

from mpifed.algorithms.fedem.expectation import mixture_weights, posterior
from mpifed.algorithms.fedem.fedem import FedEM, FedEMState

__all__ = ["FedEM", "FedEMState", "mixture_weights", "posterior"]
