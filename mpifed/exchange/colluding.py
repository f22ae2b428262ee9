"""Attacks by clients that know what honest ones send, mu and sigma as in ``collusion``.

    alie     mu - z sigma            a little is enough (Baruch, Baruch and Goldberg 2019, Alg. 3)
    ipm      -epsilon mu             inner-product manipulation (Xie, Koyejo and Gupta 2020)
    mimic    u_v                     the update of a victim v (Karimireddy, He and Jaggi 2022)

The attackers of Baruch et al. estimate mu and sigma from what they would have sent themselves; here
they see them. The victim of Karimireddy et al. is found in the first rounds, by the direction in
which updates vary most; here it is named.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import Gt
from scipy.stats import norm
from torch import Tensor

from mpifed.exchange.attacks import ClientNumber
from mpifed.exchange.collusion import Colluding, Seen


class LittleIsEnough(Colluding):
    """A little is enough, ALIE: the honest mean minus z deviations (Baruch et al. 2019).

    Parameters
    ----------
    z : float, 'formula' or 'search'
        The number of deviations. ``formula`` is the paper's: with s = floor(n / 2 + 1) - m, at
        least 1, honest ones that m malicious of n participants need for a majority, the standard
        normal quantile of (n - m - s) / (n - m). ``search`` tries several.
    **options
        ``clients`` or ``fraction``, as for every attack.
    """

    def __init__(
        self,
        *,
        z: Annotated[float, Gt(0)] | Literal["formula", "search"] = 1.5,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.z = z

    def message(self, seen: Seen) -> Tensor:
        if self.z == "search":
            return seen.farthest(-seen.deviation)
        n, honest, z = seen.round.count, len(seen.clients), self.z
        if z == "formula":
            supporters = max(n // 2 + 1 - (n - honest), 1)
            z = float(norm.ppf((honest - supporters) / honest))
        return seen.mean - z * seen.deviation


class InnerProduct(Colluding):
    """Inner-product manipulation, IPM: minus the honest mean, scaled (Xie et al. 2020).

    Parameters
    ----------
    epsilon : float or 'search'
        The factor of the mean. ``search`` tries several.
    **options
        ``clients`` or ``fraction``, as for every attack.
    """

    def __init__(
        self, *, epsilon: Annotated[float, Gt(0)] | Literal["search"] = 0.5, **options: Any
    ) -> None:
        super().__init__(**options)
        self.epsilon = epsilon

    def message(self, seen: Seen) -> Tensor:
        if isinstance(self.epsilon, str):
            return seen.farthest(-seen.mean)
        return -self.epsilon * seen.mean


class Mimic(Colluding):
    """Mimic: all send the update of one honest client, which then counts for several (2022).

    Parameters
    ----------
    victim : int, optional
        The honest client. In a round without it, and for None, it is the first honest participant.
    **options
        ``clients`` or ``fraction``, as for every attack.
    """

    def __init__(self, *, victim: ClientNumber | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.victim = victim

    def message(self, seen: Seen) -> Tensor:
        victim = self.victim if self.victim in seen.clients else seen.clients[0]
        return seen.total(seen.updates, (seen.ids == victim).astype(float))
