"""DCGD on the FLIX objective (Gasanov et al. 2021, Algorithm 2): compressed gradients.

    1  for k = 0, 1, ...
    2    broadcast x
    3    every client i
    4      compute alpha_i grad f_i(T_i(x))
    5      g_i = C_i(alpha_i grad f_i(T_i(x)))
    6    g = (1/n) sum_i g_i
    7    x <- x - gamma g

It ends in a floor that falls with gamma omega / n (Theorem 3); ``diana`` has none.
"""

from __future__ import annotations

from dataclasses import replace

from mpifed.algorithms.flix.descent import Descent, FlixState, send_gradients, stepped
from mpifed.exchange.base import Exchange, ServerChannel
from mpifed.federation.clients import Clients, Draws
from mpifed.theory import flix as theory


class Dcgd(Descent[ServerChannel]):
    """DCGD: gradient descent on the FLIX objective with unbiased compression of gradients.

    Parameters
    ----------
    **options
        Those of ``Descent``.
    """

    sends = "its compressed gradient"
    exchanges = ("server",)
    averages_by = None
    compressors = "unbiased"

    def descend(
        self, state: FlixState, clients: Clients, channel: ServerChannel, draws: Draws, first: bool
    ) -> FlixState:
        channel.broadcast(state.model)  # line 2
        sent = send_gradients(self.objective, state, None, clients, channel, draws)  # lines 4, 5
        g = channel.sum(sent, clients.sampled_weights)  # line 6
        return replace(state, model=stepped(state.model, float(state.step), g))  # line 7

    def proven_step(self, c: theory.Constants) -> float:
        """Theorems 3, 5 and 7."""
        return theory.dcgd_step(c, self.setting)

    def predicted_rounds(
        self, state: FlixState, clients: Clients, exchange: Exchange, c: theory.Constants
    ) -> list[str]:
        """Where Theorem 3 puts the floor."""
        if not self.knows_minimiser(state, c):
            return []
        noise = self.squared_gradients(state, clients) / c.n
        floor = theory.dcgd_floor(c, float(state.step), c.omega * noise)
        gap = c.l_alpha / 2 * floor
        return [f"Theorem 3: E||x - x*||^2 ends at {floor:.3g} at most, the gap at {gap:.3g}"]
