"""Step sizes gamma_t of FedMM's methods (Dieuleveut et al. 2025, Alg. 1 to 3), and their limit
under gossip.
"""

from __future__ import annotations

import math
from typing import Literal

from mpifed.errors import InputError
from mpifed.federation.clients import Federation

StepRule = Literal["constant", "sqrt", "inverse", "inverse_kept"]

DEFAULT_STEP = 0.05


def gamma_of(rule: StepRule, beta: float, t: int) -> float:
    """Return the step size of a round.

    Parameters
    ----------
    rule : {'constant', 'sqrt', 'inverse', 'inverse_kept'}
        beta, beta / sqrt(beta + t) (the paper's experiments, section 6), 1 / t, or 1 / (t + 1).
        1 / t forgets the first S, 1 / (t + 1) keeps it as one sample.
    beta : float
        In (0, 1].
    t : int
        The round, from 1.

    Returns
    -------
    float
        gamma_t in (0, 1].

    Examples
    --------
    >>> gamma_of("inverse", 0.05, 4), gamma_of("inverse_kept", 0.05, 4)
    (0.25, 0.2)
    """
    rules = {
        "constant": beta,
        "sqrt": beta / math.sqrt(beta + t),
        "inverse": 1 / t,
        "inverse_kept": 1 / (t + 1),
    }
    return rules[rule]


def refuse_long_steps(federation: Federation, gamma: float, option: str) -> None:
    """Refuse steps gamma n mu_i above 1 of a client, with mu_i = m_i / m.

    Under gossip such a step would take S beyond the client's statistics, and the projection would
    change the mean over clients.

    Parameters
    ----------
    federation : Federation
        Its training clients have m_i samples.
    gamma : float
        Step size of round 1, the largest.
    option : str
        Name of the option that makes it smaller.

    Raises
    ------
    InputError
        Names the longest step.
    """
    largest = int(federation.n_train[federation.training].max()) * len(federation.training)
    longest = gamma * largest / federation.n_train_total
    if longest > 1:
        raise InputError(
            "algorithm.client_weights is 'samples', with which by gossip a client moves by "
            f"gamma n mu_i, here up to {longest:.4g} in round 1; allowed: at most 1, by a "
            f"smaller {option} or client_weights uniform"
        )


def describe_steps(rule: StepRule, beta: float) -> tuple[str, list[str]]:
    """Return what makes a step smaller, for messages, and lines about what is not read.

    Parameters
    ----------
    rule : {'constant', 'sqrt', 'inverse', 'inverse_kept'}
        The step rule.
    beta : float
        The option ``step``.

    Returns
    -------
    option : str
        Name of the option, with the rules that read it.
    unread : list of str
        At most one line for the log.
    """
    if not rule.startswith("inverse"):
        return "algorithm.step", []
    unread = f"algorithm.step={beta:g} changes nothing: step_rule {rule} has no step"
    option = "algorithm.step, with step_rule constant or sqrt,"
    return option, [unread] if beta != DEFAULT_STEP else []
