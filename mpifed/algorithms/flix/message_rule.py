"""What clients send in FLIX, DCGD and DIANA, and what the server makes of it.

The three methods are one descent (``descent``). They differ in their ``MessageRule``: whole models
(``flix``), compressed gradients (``dcgd``), compressed differences of gradients (``diana``).

What is known of a run of FLIX before its first round: constants, and what the theorems predict.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from mpifed.algorithms.base import AnyChannel
from mpifed.algorithms.flix.objective import FlixObjective, weighted_mean, weighted_variance
from mpifed.algorithms.flix.options import FlixState, StepSize
from mpifed.algorithms.server_messages import message_variance
from mpifed.exchange.base import Exchange, ServerChannel
from mpifed.exchange.measuring import largest, total
from mpifed.exchange.reduction import SparseRows, gathered
from mpifed.federation.clients import Clients, Draws
from mpifed.theory import flix as theory


@dataclass(frozen=True)
class Problem:
    """A run before its first round, as a theorem sees it."""

    objective: FlixObjective
    state: FlixState
    clients: Clients
    exchange: Exchange
    constants: theory.Constants
    step_size: StepSize
    averages: bool
    accuracy: float

    @property
    def has_minimiser(self) -> bool:
        """Whether Theorems 3 and 4 hold and the minimiser is known, from which they measure."""
        strong = self.step_size.setting == "strongly_convex" and self.constants.mu_alpha > 0
        return strong and bool(int(self.state.known))

    def squared_gradients(self, away_from: Tensor | None = None) -> float:
        """sum_i ||g_i - h_i||^2 for the gradients g_i of f_i(T_i(x)) at the minimiser x*."""
        state, draws = self.state, Draws(0, 0)
        x = state.reference.to(state.optima)
        g = self.objective.gradients(state.optima, x, self.clients, draws)
        if away_from is not None:
            g = g - self.objective.gradients(state.optima, away_from, self.clients, draws)
        return float(total(self.clients, g.double().square().sum(1)[:, None])[0])


def all_constants(
    clients: Clients,
    alpha: np.ndarray,
    smoothness: Tensor,
    strong: float,
    omega: float,
    memory_rate: float,
) -> theory.Constants:
    """The constants of the theorems over all training clients; collective."""
    federation = clients.federation
    one_hot = torch.zeros(len(clients), federation.n_clients, dtype=torch.float64)
    one_hot[torch.arange(len(clients)), torch.from_numpy(clients.ids)] = smoothness
    smooth = total(clients, one_hot).numpy()[federation.training]
    return theory.constants(alpha, smooth, strong, omega, memory_rate)


def feeds_errors_back(exchange: Exchange, size: int) -> bool:
    """Whether the compressor of messages of ``size`` numbers loses something that the next message
    makes up for.
    """
    compressor = exchange.compressor
    if compressor is None or compressor.unbiased or exchange.shared_is_rows:
        return False
    return compressor.contraction(size) < 1


def theorem_of_step(problem: Problem, unproven: list[str]) -> str:
    """Which theorem gave gamma, and what of the run it does not cover, for the log."""
    how, exchange, objective = problem.step_size, problem.exchange, problem.objective
    if how.given is not None:
        return ""
    fed_back = feeds_errors_back(exchange, objective.model.n_parameters)
    whose = "error feedback's" if fed_back else f"the {how.setting}"
    gossip = ["gossip"] if exchange.shared_is_rows else []
    stochastic = ["stochastic gradients"] if objective.batch_size is not None else []
    beyond = " and ".join([*gossip, *stochastic, *unproven])
    return f", of {whose} theorem" + (f", which does not speak of {beyond}" if beyond else "")


def is_predictable(problem: Problem) -> bool:
    """Whether the theorems cover the run, whatever its messages are."""
    how, exchange = problem.step_size, problem.exchange
    return (
        how.given is None
        and how.smoothness != "published_code"
        and problem.objective.batch_size is None
        and not exchange.shared_is_rows
        and exchange.federation.inclusion == 1
    )


def constants_in_words(c: theory.Constants) -> str:
    """The constants, for the log."""
    return (
        f"mean L_i {c.l_hat:.6g}, L_alpha {c.l_alpha:.6g}, condition {c.condition:.4g}, omega "
        f"{c.omega:.4g}"
    )


def accuracy_of_optima(
    gradient_norms: Tensor, tolerance: float, iterations: int, clients: Clients
) -> list[str]:
    """Log lines on how near to their optima the clients came; collective."""
    worst = largest(clients, gradient_norms)
    lines = [f"local optima: gradient norms up to {worst:.2e}"]
    if worst > tolerance:
        lines.append(
            f"warning: algorithm.local_tolerance {tolerance:g} was not reached (at most "
            f"{iterations} iterations, or no further progress); x_i are what was reached"
        )
    return lines


def bold_memory_rate(rate: float, omega: float) -> list[str]:
    """A warning where DIANA's beta, ``rate``, is above what is proven; nothing elsewhere."""
    if theory.is_stable(rate, omega):
        return []
    return [
        f"warning: algorithm.control_variate_rate {rate:g} is above 1 / (1 + omega) = "
        f"{theory.largest_memory_rate(omega):.4g}, up to which DIANA is known to converge"
    ]


def report_theorem_two(problem: Problem) -> list[str]:
    """Rounds that Theorem 2 needs from the one-shot average, with equal coefficients;
    collective.
    """
    c, clients = problem.constants, problem.clients
    alpha = problem.objective.alpha(clients.federation.training)
    equal = len(alpha) > 0 and bool((alpha == alpha[0]).all())
    if not problem.averages or c.mu_hat <= 0 or not equal:
        return []
    variance = weighted_variance(problem.state.optima, problem.state.smoothness, clients)
    rounds = theory.communications(c, variance, problem.accuracy, float(alpha[0]))
    most = theory.one_shot_alpha(c, variance, problem.accuracy)
    return [
        f"Theorem 2: at most {rounds} rounds to a gap of {problem.accuracy:g}; one round is enough "
        f"up to flix_alpha {most:.3g}"
    ]


def report_theorem_three(problem: Problem) -> list[str]:
    """Where Theorem 3 puts the floor of DCGD; collective."""
    if not problem.has_minimiser:
        return []
    c = problem.constants
    noise = problem.squared_gradients() / c.n
    floor = theory.dcgd_floor(c, float(problem.state.step), c.omega * noise)
    gap = c.l_alpha / 2 * floor
    return [f"Theorem 3: E||x - x*||^2 ends at {floor:.3g} at most, the gap at {gap:.3g}"]


def report_theorem_four(problem: Problem, starts_with_gradients: bool) -> list[str]:
    """Rounds after which Theorem 4 puts the expected gap of DIANA below the accuracy;
    collective.
    """
    c, state, clients = problem.constants, problem.state, problem.clients
    if not problem.has_minimiser or not theory.is_stable(c.rho, c.omega):
        return []
    x = state.model[0].to(state.optima)
    if problem.averages:
        mass = state.smoothness * problem.objective.squares(clients)
        x = weighted_mean(state.optima, mass, clients)
    away = float((x.double() - state.reference).square().sum())
    sigma = c.omega * problem.squared_gradients(x if starts_with_gradients else None) / c.n
    step = float(state.step)
    start = away + 4 * step**2 / (c.n * c.rho) * sigma
    rate = theory.diana_rate(c, step)
    rounds = theory.rounds_until(c.l_alpha / 2 * start, problem.accuracy, rate)
    return [
        f"Theorem 4: an expected gap of {problem.accuracy:g} after at most "
        f"{rounds + problem.averages} rounds"
    ]


State = TypeVar("State", bound=FlixState)


class MessageRule(ABC, Generic[State, AnyChannel]):
    """How gradients of f~ travel, and what the paper proves about it."""

    @abstractmethod
    def start(self, state: FlixState) -> State:
        """Return the state before round 1, with what this rule keeps from round to round."""

    @abstractmethod
    def step(
        self,
        objective: FlixObjective,
        state: State,
        clients: Clients,
        channel: AnyChannel,
        draws: Draws,
        first: bool,
    ) -> State:
        """Return the state with x^{k+1} for x^k: one communication round."""

    @abstractmethod
    def step_size(self, c: theory.Constants, how: StepSize) -> float:
        """Return gamma by the theorem for this rule."""

    @abstractmethod
    def predicted_rounds(self, problem: Problem) -> list[str]:
        """Return log lines on what the theorem for this rule predicts; collective."""

    def variance(self, exchange: Exchange, size: int) -> float:
        """Return omega of a message of ``size`` numbers, absent clients included; 0 if it arrives
        whole.
        """
        return message_variance(exchange.compressor, exchange.federation, size)

    def memory_rate(self, omega: float) -> float:
        """Return beta of DIANA's memories; 1 without memories."""
        return 1.0

    def unproven(self, exchange: Exchange) -> list[str]:
        """Return what of the exchange the theorem for this rule does not cover, in words."""
        return []

    def warnings(self, exchange: Exchange, size: int) -> list[str]:
        """Return log lines on options with which the method may diverge."""
        return []


def send_gradients(
    objective: FlixObjective,
    optima: Tensor,
    x: Tensor,
    memories: Tensor | None,
    clients: Clients,
    channel: ServerChannel,
    draws: Draws,
    whole: bool = False,
) -> Tensor | SparseRows:
    """C_i(alpha_i grad f_i(T_i(x)) - h_i) as the server receives it."""
    size, exact = optima.shape[1], objective.batch_size is None
    columns = channel.coordinates(size) if exact and not whole else None
    if columns is not None:
        chosen = objective.partial_gradients(optima, x, clients, columns)
        if chosen is not None:
            if memories is not None:
                chosen.sub_(gathered(memories, columns))
            return channel.send_chosen(SparseRows(columns, chosen, size))
    rows = objective.gradients(optima, x, clients, draws)
    if memories is not None:
        rows.sub_(memories)
    return channel.send(rows, whole)


def stepped(model: Tensor, step: float, gradient: Tensor) -> Tensor:
    """x - step * gradient, computed in float64 at the server."""
    return (model.double() - step * gradient).to(model)


def one_shot_average(
    optima: Tensor, squares: Tensor, smoothness: Tensor, channel: ServerChannel
) -> Tensor | None:
    """The average of Theorem 1: x_avg = sum_i w_i x_i with w_i proportional to alpha_i^2 L_i."""
    known = torch.where(smoothness > 0, smoothness, torch.ones_like(smoothness))
    mass = (squares * known)[:, None].to(optima)
    sent = channel.send(torch.cat([optima * mass, mass], 1), whole=True)
    summed = channel.sum(sent, torch.ones(len(optima), dtype=torch.float64))
    return summed[:-1] / summed[-1] if float(summed[-1]) > 0 else None
