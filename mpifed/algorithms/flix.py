"""FLIX (Gasanov et al. 2021): explicit mixtures of each client's own optimum and one shared model.

    T_i(x) = alpha_i x + (1 - alpha_i) x_i,   minimise f~(x) = (1/n) sum_i f_i(T_i(x))

where x_i = argmin f_i is found before the first round, without communication. This is Algorithm 1,
distributed gradient descent on f~; ``dcgd`` and ``diana`` compress its messages. With ``start:
average`` the first round is the one-shot average of Theorem 1 and gradient descent goes on from it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from mpifed import state
from mpifed.algorithms.base import Predictor
from mpifed.algorithms.flix_reference import curvatures, flix_risk, minimise
from mpifed.errors import InputError
from mpifed.exchange.base import Channel, Exchange
from mpifed.exchange.measuring import total
from mpifed.federation import Clients, Draws
from mpifed.local.linear_objective import objective_of
from mpifed.local.objective import Objective, Regulariser, sampled_gradients
from mpifed.local.optima import Solver, local_optima
from mpifed.local.solver import LocalSGD
from mpifed.models.base import Model
from mpifed.models.linear import Linear
from mpifed.random import shuffles
from mpifed.schema import Above, AtLeast, AtMost
from mpifed.theory import flix as theory

Fraction = Annotated[float, AtLeast(0), AtMost(1)]


@dataclass(frozen=True)
class FlixState:
    """``model`` x (1, P); ``optima`` x_i (clients, P) with ``gradient_norm`` ||grad f_i(x_i)||.

    ``smoothness`` holds L_i (clients,), ``step`` the step size gamma (1,). ``reference`` is the
    minimiser of f~ (P,) and ``least`` its value (1,), for the gaps in metrics.csv; ``known`` (1,)
    says whether they were found.
    """

    model: Tensor = state.shared()
    optima: Tensor = state.client()
    gradient_norm: Tensor = state.client()
    smoothness: Tensor = state.client()
    step: Tensor = state.server()
    reference: Tensor = state.server()
    least: Tensor = state.server()
    known: Tensor = state.server()


class Flix:
    """FLIX by distributed gradient descent: mixtures of a local optimum and a shared model."""

    columns = ("objective", "objective_gap", "deployed_distance", "up_floats")

    def __init__(
        self,
        model: Model,
        local: LocalSGD,
        *,
        flix_alpha: Fraction | list[Fraction] = 0.5,
        l2: Annotated[float, AtLeast(0)] = 0.0,
        regulariser: Literal["l2", "nonconvex"] = "l2",
        step: Annotated[float, Above(0)] | None = None,
        setting: Literal["auto", "strongly_convex", "convex", "nonconvex"] = "auto",
        smoothness: Literal["paper", "safe", "published_code"] = "paper",
        start: Literal["average", "zeros", "ones", "random"] | None = None,
        gradient: Literal["exact", "stochastic"] = "exact",
        local_solver: Solver = "gd",
        local_start: Literal["zeros", "shared", "independent"] | None = None,
        local_tolerance: Annotated[float, Above(0)] = 1e-6,
        local_iterations: Annotated[int, AtLeast(1)] = 100_000,
        reference: Literal["auto", "newton", "lbfgs", "none"] = "auto",
        accuracy: Annotated[float, Above(0)] = 1e-10,
    ) -> None:
        """``flix_alpha`` is one coefficient for all clients, or a list with one for each.

        ``l2`` is lambda; the paper's regulariser is ``l2``. ``step`` gives gamma by hand; without
        it the theorem for ``setting`` does (auto: strongly convex where lambda is positive, else
        convex). ``smoothness: published_code`` divides lambda by 4 m_i, as the published code does.
        ``start`` null is the average of Theorem 1 under a server and zeros under gossip; the
        published code starts from ones. ``local_start`` null is zeros for linear models and
        independent draws for networks. ``reference`` says how the minimiser is found from which
        gaps are measured; ``accuracy`` is the epsilon of the rounds that the run foretells.
        """
        self.model, self.local = model, local
        self.flix_alpha = flix_alpha
        self.regulariser = Regulariser(regulariser, l2)
        self.step, self.setting, self.smoothness = step, setting, smoothness
        self.start, self.gradient = start, gradient
        linear = isinstance(model, Linear)
        self.local_solver = local_solver
        self.local_start = local_start or ("zeros" if linear else "independent")
        self.local_tolerance, self.local_iterations = local_tolerance, local_iterations
        self.reference, self.accuracy = reference, accuracy
        self._objectives: dict[bytes, Objective] = {}

    @staticmethod
    def refuse(configuration: Any) -> str | None:
        """Why these options do not go together, if they do not."""
        options, gossip = configuration.algorithm, configuration.exchange["name"] == "gossip"
        alpha = options["flix_alpha"]
        if isinstance(alpha, list) and len(alpha) != configuration.clients:
            return (
                f"algorithm.flix_alpha has {len(alpha)} entries, but there are "
                f"{configuration.clients} clients; it must be one number, or one for each"
            )
        if gossip and options["start"] == "average":
            return (
                "algorithm.start is 'average', which needs a server; allowed with gossip: zeros, "
                "ones, random"
            )
        return None

    # -- before the first round

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> FlixState:
        size, count = self.model.n_parameters, len(clients)
        first = torch.zeros(1, size, dtype=dtype)
        if self.start == "ones":
            first += 1
        elif self.start == "random":
            first[0] = torch.from_numpy(self.model.init(draws.stream("model"))).to(dtype)
        double = torch.float64
        return FlixState(
            exchange.spread(first),
            self._local_start(clients, draws, dtype),
            torch.zeros(count, dtype=double),
            torch.zeros(count, dtype=double),
            torch.zeros(1, dtype=double),
            torch.zeros(size, dtype=double),
            torch.zeros(1, dtype=double),
            torch.zeros(1, dtype=torch.int64),
        )

    def _local_start(self, clients: Clients, draws: Draws, dtype: torch.dtype) -> Tensor:
        if self.local_start == "zeros" or not len(clients):
            return torch.zeros(len(clients), self.model.n_parameters, dtype=dtype)
        independent = self.local_start == "independent"
        drawn = [
            self.model.init(draws.stream("local model", int(client) if independent else -1))
            for client in clients.ids
        ]
        return torch.from_numpy(np.stack(drawn)).to(dtype)

    def prepare(
        self, state: FlixState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> FlixState:
        """The clients' optima, and the constants of the theorems; collective."""
        optima, norms = local_optima(
            self.model,
            clients,
            self.regulariser,
            state.optima,
            self.local_solver,
            self.local_tolerance,
            self.local_iterations,
        )
        made = replace(state, optima=optima, gradient_norm=norms)
        if isinstance(self.model, Linear):
            compat = self.smoothness == "published_code"
            measured = curvatures(self.model, clients, self.regulariser, compat)
            made = replace(made, smoothness=measured)
        elif self.step is None:
            raise InputError(
                "algorithm.step is missing: the smoothness of this model is not known, so no "
                "theorem gives it; set a number"
            )
        step = self._step(made, clients, exchange)
        made = replace(made, step=torch.tensor([step], dtype=torch.float64))
        how = self.reference
        if how == "auto":
            how = "none" if not isinstance(self.model, Linear) else "auto"
        if how == "none" or not self._alpha(clients.federation.training).any():
            return made
        risk = flix_risk(self._objective(clients), optima, self._alpha(clients.ids), clients)
        x, least = minimise(risk, self.model, clients, self.regulariser, how)
        known = torch.ones(1, dtype=torch.int64)
        value = torch.tensor([least], dtype=torch.float64)
        return replace(made, reference=x, least=value, known=known)

    # -- constants

    def _alpha(self, ids: np.ndarray) -> np.ndarray:
        alpha = np.asarray(self.flix_alpha, np.float64)
        return np.full(len(ids), float(alpha)) if alpha.ndim == 0 else alpha[ids]

    def _weights(self, clients: Clients) -> Tensor:
        """alpha_i^2, float64 (clients,)."""
        return torch.from_numpy(self._alpha(clients.ids) ** 2)

    def constants(self, state: FlixState, clients: Clients, exchange: Exchange) -> theory.Constants:
        """What the theorems need, over all clients; collective."""
        federation = clients.federation
        one_hot = torch.zeros(len(clients), federation.n_clients, dtype=torch.float64)
        one_hot[torch.arange(len(clients)), torch.from_numpy(clients.ids)] = state.smoothness
        smooth = total(clients, one_hot).numpy()[federation.training]
        strong = max(0.0, self.regulariser.strong_convexity)
        omega = self.variance(exchange)
        return theory.constants(
            self._alpha(federation.training), smooth, strong, omega, self.memory_rate(omega)
        )

    def variance(self, exchange: Exchange) -> float:
        """omega of the messages; gradient descent sends them whole."""
        return 0.0

    def memory_rate(self, omega: float) -> float:
        return 1.0

    def _setting(self) -> theory.Setting:
        if self.setting != "auto":
            return self.setting
        if self.regulariser.kind == "nonconvex" or not isinstance(self.model, Linear):
            return "nonconvex"
        return "strongly_convex" if self.regulariser.strength > 0 else "convex"

    def _step(self, state: FlixState, clients: Clients, exchange: Exchange) -> float:
        if self.step is not None:
            return self.step
        c = self.constants(state, clients, exchange)
        return self.theoretical_step(c) if c.l_alpha > 0 else 0.0

    def theoretical_step(self, c: theory.Constants) -> float:
        return theory.dgd_step(c)

    def remarks(self, state: FlixState, clients: Clients, exchange: Exchange) -> list[str]:
        """Constants, step size, and the rounds that the theorems foretell; collective."""
        worst = float(clients.federation.communicator.max(_largest(state.gradient_norm)[None])[0])
        lines = [f"local optima: gradient norms up to {worst:.2e}"]
        if worst > self.local_tolerance:
            lines.append(
                f"warning: algorithm.local_tolerance {self.local_tolerance:g} was not reached in "
                f"{self.local_iterations} iterations; x_i are what was reached"
            )
        if not isinstance(self.model, Linear):
            return [*lines, f"step size {float(state.step):.6g}, by hand"]
        c = self.constants(state, clients, exchange)
        by = "by hand" if self.step is not None else f"of the {self._setting()} theorem"
        lines.append(
            f"mean L_i {c.l_hat:.6g}, L_alpha {c.l_alpha:.6g}, condition {c.condition:.4g}, omega "
            f"{c.omega:.4g}; step size {float(state.step):.6g}, {by}"
        )
        return lines + self.foretold(state, c, clients)

    def foretold(self, state: FlixState, c: theory.Constants, clients: Clients) -> list[str]:
        """Rounds that Theorem 2 needs for ``accuracy``; collective."""
        alpha = self._alpha(clients.federation.training)
        averages = self.start in (None, "average")
        if not averages or c.mu_hat <= 0 or not (alpha == alpha[0]).all() or not len(alpha):
            return []
        variance = spread(state.optima, state.smoothness, clients)
        rounds = theory.communications(c, variance, self.accuracy, float(alpha[0]))
        most = theory.one_shot_alpha(c, variance, self.accuracy)
        return [
            f"Theorem 2: at most {rounds} rounds to a gap of {self.accuracy:g}; one round is "
            f"enough up to flix_alpha {most:.3g}"
        ]

    # -- rounds

    def round(
        self, state: FlixState, clients: Clients, channel: Channel, draws: Draws
    ) -> FlixState:
        if self.averages(channel) and draws.round == 1:
            return replace(state, model=self.average(state, clients, channel))
        x = channel.broadcast(state.model)
        g = self.mixed_gradient(state, x[:, 0], clients, draws)  # alpha_i grad f_i(T_i(x))
        moved = x - float(state.step) * g[:, None]
        uniform = torch.full((len(clients),), 1 / len(clients.federation.training)).double()
        return replace(state, model=channel.average(moved, uniform, before=state.model))

    def averages(self, channel: Channel) -> bool:
        """Whether the first round is the one-shot average."""
        return self.start == "average" or (self.start is None and not channel.shared_is_rows)

    def average(self, state: FlixState, clients: Clients, channel: Channel) -> Tensor:
        """x_avg = sum_i w_i x_i with w_i proportional to alpha_i^2 L_i (Theorem 1)."""
        mass = self._weights(clients) * _or_ones(state.smoothness)
        mass = mass[:, None].to(state.optima)
        sent = channel.send(torch.cat([state.optima * mass, mass], 1), whole=True)
        summed = channel.sum(sent, torch.ones(len(clients), dtype=torch.float64))
        if not float(summed[-1]) > 0:
            return state.model
        return (summed[:-1] / summed[-1])[None].to(state.model)

    def mixed(self, state: FlixState, x: Tensor, clients: Clients) -> Tensor:
        """T_i(x) = alpha_i x + (1 - alpha_i) x_i, (clients, P); x is (P,) or (clients, P)."""
        alpha = torch.from_numpy(self._alpha(clients.ids)).to(state.optima)[:, None]
        return alpha * x + (1 - alpha) * state.optima

    def mixed_gradient(self, state: FlixState, x: Tensor, clients: Clients, draws: Draws) -> Tensor:
        """alpha_i grad f_i(T_i(x)), (clients, P); the factor alpha_i is the chain rule's."""
        alpha = torch.from_numpy(self._alpha(clients.ids)).to(state.optima)[:, None]
        points = self.mixed(state, x, clients)
        if self.gradient == "exact":
            return alpha * self._objective(clients).gradients(points)
        keys = draws.client_keys("samples", clients.ids)
        orders = np.split(shuffles(keys, clients.n_train), np.cumsum(clients.n_train)[:-1])
        size = self.local.options.batch_size
        drawn = [o[:size] + begin for o, begin in zip(orders, clients.starts, strict=True)]
        return alpha * sampled_gradients(self.model, clients, self.regulariser, points, drawn)

    def _objective(self, clients: Clients) -> Objective:
        key = clients.rows.tobytes()
        if key not in self._objectives:
            if len(self._objectives) >= 4:
                self._objectives.clear()
            self._objectives[key] = objective_of(self.model, clients, self.regulariser)
        return self._objectives[key]

    # -- what is served and measured

    def deploy(self, state: FlixState, clients: Clients, draws: Draws) -> Predictor:
        """Client i predicts with T_i(x)."""
        x = state.model[0] if state.model.dim() == 2 else state.model[:, 0]
        alpha = torch.from_numpy(self._alpha(clients.ids))
        results = {"flix_alpha": alpha, "local_gradient_norm": state.gradient_norm}
        return Predictor(self.mixed(state, x, clients)[:, None], results=results)

    def measure(
        self, state: FlixState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> dict[str, float | None]:
        x = exchange.mean(state.model)[0]
        n = len(clients.federation.training)
        losses = self._objective(clients).losses(self.mixed(state, x, clients))
        objective = float(total(clients, losses[:, None])[0]) / n
        found: dict[str, float | None] = {
            "objective": objective,
            "up_floats": exchange.ledger.up_floats,
        }
        if int(state.known):
            alpha = torch.from_numpy(self._alpha(clients.ids))
            away = float((x.double() - state.reference).square().sum())
            squares = float(total(clients, alpha.square()[:, None])[0])
            found["objective_gap"] = objective - float(state.least)
            found["deployed_distance"] = squares * away / n
        return found

    def payload(self) -> int:
        return self.model.n_parameters


def _largest(values: Tensor) -> np.ndarray:
    return np.array(float(values.max()) if len(values) else 0.0)


def weighted_mean(rows: Tensor, mass: Tensor, clients: Clients) -> Tensor:
    """sum_i w_i rows_i with w_i proportional to ``mass``, zeros without any; collective."""
    whole = total(clients, torch.cat([rows.double() * mass[:, None], mass[:, None]], 1))
    found = whole[:-1] / whole[-1] if float(whole[-1]) > 0 else torch.zeros_like(whole[:-1])
    return found.to(rows)


def spread(optima: Tensor, mass: Tensor, clients: Clients) -> float:
    """V = sum_i w_i ||x_i - x_avg||^2 with w_i proportional to ``mass``; collective."""
    away = (optima - weighted_mean(optima, mass, clients)).double().square().sum(1)
    return float(weighted_mean(away[:, None], mass, clients)[0])


def _or_ones(smoothness: Tensor) -> Tensor:
    """L_i, or ones where it is unknown."""
    return torch.where(smoothness > 0, smoothness, torch.ones_like(smoothness))
