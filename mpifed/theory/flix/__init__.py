"""The theorems of FLIX (Gasanov et al. 2021) as functions of measured constants.

Notation of the paper: client i has coefficient alpha_i, smoothness L_i and strong convexity mu_i;
``hat`` marks a plain mean over clients, L_alpha = mean alpha_i^2 L_i and mu_alpha =
mean alpha_i^2 mu_i (Proposition 2). f~ is the objective, x_i are the clients' optima.
"""

from mpifed.theory.flix.quantities import (
    Constants,
    constants,
    largest_distance,
    spread,
    variance,
)
from mpifed.theory.flix.rounds import (
    affordable_alpha,
    communications,
    dcgd_floor,
    diana_rate,
    one_shot_alpha,
    rounds_until,
)
from mpifed.theory.flix.step_sizes import (
    Setting,
    dcgd_step,
    dgd_step,
    diana_step,
    error_feedback_step,
    is_stable,
    largest_memory_rate,
)

__all__ = [
    "Constants",
    "Setting",
    "affordable_alpha",
    "communications",
    "constants",
    "dcgd_floor",
    "dcgd_step",
    "dgd_step",
    "diana_rate",
    "diana_step",
    "error_feedback_step",
    "is_stable",
    "largest_distance",
    "largest_memory_rate",
    "one_shot_alpha",
    "rounds_until",
    "spread",
    "variance",
]
