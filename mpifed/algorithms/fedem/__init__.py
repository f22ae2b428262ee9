"""FedEM and D-FedEM: federated expectation-maximisation (Marfoq et al., NeurIPS 2021).

``fedem`` is Algorithms 1, 2 and 4, and ``mixtures`` their options; ``expectation`` the E-step and
the mixture weights (eqs. 8 and 9); ``surrogate`` Algorithms 3 and 5, of which FedEM and pFedMe are
instances; ``maximisation`` the black-box local solvers of App. H; ``restarts`` the choice among
several beginnings.
"""

from mpifed.algorithms.fedem.expectation import mixture_weights, posterior
from mpifed.algorithms.fedem.fedem import FedEM, FedEMState

__all__ = ["FedEM", "FedEMState", "mixture_weights", "posterior"]
