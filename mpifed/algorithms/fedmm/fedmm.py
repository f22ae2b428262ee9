"""FedMM: federated majorise-minimise by aggregating surrogates (Dieuleveut et al. 2025, Alg. 2).

Clients compute statistics of their data under T(S). The server mixes them in the surrogates' own
space and maps the result back. Messages are compressed, clients take part at random, and control
variates V_i remove the differences between clients. Algorithm 4, which folds participation into
compression, is this with full participation and ``compression: {name: bernoulli, inner: ...}``.

Under gossip every client holds its S and neighbours mix them. This variant is mpifed's, not the
paper's: a client moves to S_i + gamma n mu_i (its statistics - S_i) and averages the result. Mixing
keeps the mean over clients, so that the factor n mu_i gives it the direction of a server; at a
fixed point sum mu_i S_i equals the clients' statistics, weighted alike.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from mpifed.algorithms.base import Algorithm, Predictor, step_scale
from mpifed.algorithms.fedmm.control_variates import largest_rate, refuse_under_gossip
from mpifed.algorithms.fedmm.facts import restore_facts, with_facts
from mpifed.algorithms.fedmm.failures import at_the_server, bounded, rows_or_nan, statistics_or_nan
from mpifed.algorithms.fedmm.measures import test_objective, training_objective
from mpifed.algorithms.fedmm.samples import (
    few_of,
    inputs_of,
    sample_of,
    samples_of_round,
)
from mpifed.algorithms.fedmm.state import FedMMState
from mpifed.algorithms.fedmm.step_rule import (
    DEFAULT_STEP,
    StepRule,
    describe_steps,
    gamma_of,
    refuse_long_steps,
)
from mpifed.algorithms.server_messages import message_variance
from mpifed.components.base import Compressors
from mpifed.components.registry import complete, find
from mpifed.components.schema import ComponentOf
from mpifed.data.base import Split
from mpifed.errors import InputError
from mpifed.exchange.base import Channel, Exchange, ServerChannel
from mpifed.federation.clients import Clients, Draws
from mpifed.local.solver import LocalSGD
from mpifed.models.none import NoModel
from mpifed.surrogates.base import MadeWithTarget
from mpifed.surrogates.contract import as_surrogate, check_returns

SECTION = "algorithm.surrogate"


class FedMM(Algorithm[Channel]):
    """FedMM: majorise-minimise with aggregation of surrogates, control variates, compression.

    Parameters
    ----------
    surrogate : str or mapping
        The problem (``mpifed/surrogates``) and its options.
    step_rule : {'constant', 'sqrt', 'inverse', 'inverse_kept'}
        gamma_t of round t, from 1, with beta = ``step``: beta, beta / sqrt(beta + t), 1 / t or
        1 / (t + 1). The second is that of the paper's experiments (section 6), the third
        forgets the first S, the fourth keeps it as one sample.
    step : float
        The beta of ``step_rule``.
    control_variate_rate : float
        Rate alpha of the control variates; 0 has none.
    batch : int, optional
        Samples that a client sees in a round. None takes its whole shard.
    online : bool
        Whether each round draws ``batch`` fresh samples from the data set's distribution.
    client_weights : {'uniform', 'samples'}
        The mu_i: 1 / n, as in all experiments of the paper, or m_i / m.
    """

    learns = "the parameters of a surrogate"
    sends = "a change of its statistic"
    aggregates = "sums"
    uses_model = False
    devices = ("cpu",)
    model_type = NoModel
    local_options = ()
    averages_by = None
    compressors: ClassVar[Compressors] = "unbiased"
    steps_without_clients = True
    tasks = ("unlabelled", "classification", "regression")
    columns: tuple[str, ...] = ("objective", "surrogate_update", "parameter_update")

    def __init__(
        self,
        model: NoModel,
        local: LocalSGD,
        *,
        surrogate: Annotated[Any, ComponentOf("surrogate")] = "dictionary",
        step_rule: StepRule = "sqrt",
        step: Annotated[float, Gt(0), Le(1)] = DEFAULT_STEP,
        control_variate_rate: Annotated[float, Ge(0), Le(1)] = 0.0,
        batch: Annotated[int, Ge(1)] | None = None,
        online: bool = False,
        client_weights: Literal["uniform", "samples"] = "uniform",
    ) -> None:
        asked = complete("surrogate", surrogate, SECTION)
        make = find("surrogate", asked.name)
        self.with_target = isinstance(make, MadeWithTarget)
        self.surrogate = as_surrogate(
            make(sample_of(model.data, self.with_target), **asked.options), make
        )
        self.step_rule, self.step = step_rule, step
        self.step_option, self.unused = describe_steps(step_rule, step)
        if model.data.task != "unlabelled" and not self.with_target:
            self.unused.append(
                f"surrogate {asked.name} describes the inputs alone: the targets of "
                f"'{model.data.source}' are not used"
            )
        self.rate, self.batch, self.online = control_variate_rate, batch, online
        self.by_samples = client_weights == "samples"
        if model.data.n_test.any():
            self.columns = (*self.columns, "test_objective")
        if online and batch is None:
            raise InputError(
                "algorithm.online is true, but algorithm.batch is empty; give a number"
            )

    @staticmethod
    def refuse(configuration: Any) -> str | None:
        """Return why these options do not fit together, or None."""
        gossips = configuration.exchange.name == "gossip"
        return refuse_under_gossip(configuration) if gossips else None

    # -- state

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> FedMMState:
        self.surrogate, known = with_facts(
            self.surrogate,
            clients,
            self.weights(clients),
            lambda i: inputs_of(clients.shards.train.of_client(clients.rows[i]), self.with_target),
        )
        if len(clients):
            few = inputs_of(few_of(clients), self.with_target)
            check_returns(self.surrogate, few, draws.stream("trial"))
        if self.by_samples and exchange.shared_is_rows:
            refuse_long_steps(clients.federation, self.gamma(1), self.step_option)
        theta = torch.from_numpy(self.surrogate.init(draws.stream("surrogate")))
        first = exchange.spread(self.first(theta))
        size = self.message_size()
        zeros = torch.zeros(len(clients), size, dtype=torch.float64)
        return FedMMState(first, first.clone(), zeros, zeros.new_zeros(size), known)

    def first(self, theta: Tensor) -> Tensor:
        """Return what is iterated, from theta_0: an S with T(S) = theta_0."""
        return self.surrogate.surrogate_of(theta)

    def message_size(self) -> int:
        """Return the numbers q in a message."""
        return self.surrogate.size

    def recall(self, state: FedMMState) -> None:
        """Give the surrogate the facts that the state has kept, as after a resume."""
        self.surrogate = restore_facts(self.surrogate, state.known)

    # -- rounds

    def round(
        self, state: FedMMState, clients: Clients, channel: Channel, draws: Draws
    ) -> FedMMState:
        self.recall(state)
        gamma = self.gamma(draws.round)
        start = channel.broadcast(state.surrogate)
        theta = self.shared_parameters(state.surrogate, start, channel.shared_is_rows)
        oracle = self.oracle(start, theta, clients, draws)
        weights = self.weights(clients)
        if not isinstance(channel, ServerChannel):
            scale = step_scale(clients, channel, "normalised" if self.by_samples else "none")
            size = gamma if scale is None else gamma * torch.from_numpy(scale)[:, None]
            moved = self.project(start + size * (oracle - start))
            mixed = channel.average(moved, weights, before=state.surrogate)
            return replace(state, surrogate=self.project(mixed), previous=start)
        p = clients.federation.inclusion
        arrived = channel.send(oracle.sub_(start).sub_(state.variates))  # Quant(Delta_i)
        summed = channel.sum(arrived, weights / p)
        direction = state.variate + summed  # H, with the V before this round
        (surrogate,) = channel.at_server(
            lambda: [self.project(state.surrogate + gamma * direction)]
        )
        return FedMMState(
            surrogate,
            state.surrogate,
            arrived.mul_(self.rate / p).add_(state.variates) if self.rate else state.variates,
            state.variate + self.rate * summed,
            state.known,
        )

    def gamma(self, round: int) -> float:
        """Return gamma_t of round t, counted from 1."""
        return gamma_of(self.step_rule, self.step, round)

    def shared_parameters(self, s: Tensor, start: Tensor, by_row: bool) -> Tensor:
        """Return T(S), (n_parameters,), or a row for each client's S in ``start``."""
        if not by_row:
            # Also on ranks without a client, so that a failure is the same on all ranks.
            return self.parameters(s)
        return rows_or_nan(self.surrogate.minimiser, start, self.surrogate.n_parameters)

    def oracle(self, start: Tensor, theta: Tensor, clients: Clients, draws: Draws) -> Tensor:
        """Return S_i, each client's mean statistics under theta: (clients, q)."""
        if not len(clients):
            return start.clone()
        return self.statistics(theta, self.samples(clients, draws))

    def statistics(self, theta: Tensor, split: Split) -> Tensor:
        """Return mean statistics of the clients of ``split``, (clients, q); NaN where they fail."""
        z = inputs_of(split, self.with_target)
        return statistics_or_nan(self.surrogate, z, theta, split.offsets)

    def samples(self, clients: Clients, draws: Draws) -> Split:
        """Return what each client sees this round."""
        return samples_of_round(clients, draws, self.batch, self.online)

    def project(self, s: Tensor) -> Tensor:
        """Return ``onto`` of s; s itself where it has no rows or is not finite."""
        return self.onto(s) if len(s) and bool(torch.isfinite(s).all()) else s

    def onto(self, s: Tensor) -> Tensor:
        """Return the nearest point of the surrogates' domain."""
        return self.surrogate.project(s)

    def weights(self, clients: Clients) -> Tensor:
        """Return mu_i, float64 (clients,)."""
        return clients.weights if self.by_samples else clients.equal_weights

    def mean(self, s: Tensor, exchange: Exchange) -> Tensor:
        """Return S, under gossip sum mu_i S_i; collective."""
        return exchange.mean(s, self.by_samples)

    def remarks(self, state: FedMMState, clients: Clients, exchange: Exchange) -> list[str]:
        """What Theorem 1 requires of the control variates' rate, and the facts about the data."""
        about = self.about(state)
        if exchange.shared_is_rows:
            return ["fedmm by gossip is a variant of mpifed's own, not of the paper", *about]
        omega = message_variance(exchange.compressor, clients.federation, self.message_size())
        return [*largest_rate(self.rate, omega), *about]

    def about(self, state: FedMMState) -> list[str]:
        """Return lines for the log on the facts about the data, and on what is not used."""
        self.recall(state)
        return [*self.unused, *self.surrogate.remarks()]

    # -- what is measured

    def parameters(self, s: Tensor) -> Tensor:
        """Return theta of what is iterated, (n_parameters,)."""
        with at_the_server("T(S)"):
            return self.surrogate.minimiser(s)

    def deploy(self, state: FedMMState, clients: Clients, draws: Draws) -> Predictor:
        """Nothing is predicted: theta describes the data."""
        return Predictor(None)

    def learnt(self, state: FedMMState, exchange: Exchange) -> dict[str, Tensor]:
        """theta, under gossip that of sum mu_i S_i, in the parts that the surrogate names."""
        self.recall(state)
        return self.surrogate.parts(self.parameters(self.mean(state.surrogate, exchange)))

    def measure(
        self, state: FedMMState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> dict[str, float | None]:
        """The objective on all training data, and the normalised updates of the last round."""
        self.recall(state)
        now, before = (self.mean(s, exchange) for s in (state.surrogate, state.previous))
        at = self.surrogate, self.parameters(now), clients
        value = training_objective(*at, self.weights(clients), self.with_target)
        found: dict[str, float | None] = {"objective": bounded(value)}
        if "test_objective" in self.columns:
            found["test_objective"] = test_objective(*at, self.by_samples, self.with_target)
        if draws.round:
            squared = self.gamma(draws.round) ** 2
            steps = self.updates(now, before, clients)
            found |= {name: value / squared for name, value in steps.items()}
        return found

    def updates(self, now: Tensor, before: Tensor, clients: Clients) -> dict[str, float]:
        """Return squared norms of the last move in the surrogates' and the parameters' space."""
        theta, theta_before = self.parameters(now), self.parameters(before)
        return {
            "surrogate_update": float((now - before).square().sum()),
            "parameter_update": float((theta - theta_before).square().sum()),
        }

    def payload(self) -> int:
        return self.message_size()
