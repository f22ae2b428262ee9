"""FLIX (Gasanov et al. 2021): explicit mixtures of each client's own optimum and one shared model.

    T_i(x) = alpha_i x + (1 - alpha_i) x_i,   minimise f~(x) = (1/n) sum_i f_i(T_i(x))

where x_i = argmin f_i is found before the first round, without communication. This is Algorithm 1,
distributed gradient descent on f~:

    1  for k = 0, 1, ...
    2    every client i
    3      g_i = alpha_i grad f_i(T_i(x))
    4    x <- x - (gamma / n) sum_i g_i

With ``start: average`` the first round is the one-shot average of Theorem 1, from which gradient
descent starts. ``dcgd`` and ``diana`` compress the gradients.
"""

from __future__ import annotations

from dataclasses import replace

from mpifed.algorithms.flix.descent import Descent, FlixState
from mpifed.algorithms.flix.objective import weighted_variance
from mpifed.exchange.base import Channel, Exchange
from mpifed.federation.clients import Clients, Draws
from mpifed.theory import flix as theory


class Flix(Descent[Channel]):
    """FLIX by distributed gradient descent: mixtures of a local optimum and a shared model.

    Clients take the step and send their models, which the exchange averages.

    Parameters
    ----------
    **options
        Those of ``Descent``.
    """

    sends = "its model after a step"

    def descend(
        self, state: FlixState, clients: Clients, channel: Channel, draws: Draws, first: bool
    ) -> FlixState:
        x = channel.broadcast(state.model)
        g = self.objective.gradients(state.optima, x[:, 0], clients, draws)  # line 3
        moved = x - float(state.step) * g[:, None]
        weights = clients.equal_weights
        return replace(state, model=channel.average(moved, weights, before=state.model))  # line 4

    def variance(self, exchange: Exchange) -> float:
        """Return omega; 0 under gossip and with error feedback, which make up for what is lost."""
        compressor = exchange.compressor
        if compressor is None or exchange.shared_is_rows or not compressor.unbiased:
            return 0.0
        return compressor.omega(self.model.n_parameters)

    def proven_step(self, c: theory.Constants) -> float:
        """Theorem 2; with unbiased compression gradient descent is DCGD."""
        return theory.dcgd_step(c, self.setting) if c.omega else theory.dgd_step(c)

    def unproven(self, exchange: Exchange) -> list[str]:
        absent = ["partial participation"] if exchange.federation.inclusion < 1 else []
        return [*super().unproven(exchange), *absent]

    def predicted_rounds(
        self, state: FlixState, clients: Clients, exchange: Exchange, c: theory.Constants
    ) -> list[str]:
        """Rounds that Theorem 2, which is about whole messages, needs with equal coefficients."""
        alpha = self.objective.alpha(clients.federation.training)
        equal = len(alpha) > 0 and bool((alpha == alpha[0]).all())
        if exchange.compressor is not None or not self.averages or c.mu_hat <= 0 or not equal:
            return []
        variance = weighted_variance(state.optima, state.smoothness, clients)
        rounds = theory.communications(c, variance, self.accuracy, float(alpha[0]))
        most = theory.one_shot_alpha(c, variance, self.accuracy)
        return [
            f"Theorem 2: at most {rounds} rounds to a gap of {self.accuracy:g}; one round is "
            f"enough up to flix_alpha {most:.3g}"
        ]
