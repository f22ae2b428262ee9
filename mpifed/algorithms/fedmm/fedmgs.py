"""FedMGS: federated matrix factorisation by sharing statistics (Wang and Chang 2022).

    min over W, H_i of sum_i mu_i (1 / m_i) [ 1/2 ||X_i - W H_i||^2 + R(H_i) ] + eta ||W||^2

Every client improves its codes H_i by projected gradient steps with the W that it receives. Sampled
clients send A_i = H_i H_i' / m_i and B_i = X_i H_i' / m_i, which are FedMM's statistics. The server
keeps the last ones of all clients and improves W by gradient steps. Unlike FedMM it has neither
compression nor control variates nor a step size on the statistics, and codes are kept between
rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt
from torch import Tensor

from mpifed import state
from mpifed.method import (
    Algorithm,
    Clients,
    Draws,
    Exchange,
    LocalSolver,
    Predictor,
    Requirement,
    ServerChannel,
)
from mpifed.model import NoModel

CodePenalty = Literal["ridge", "nonnegative", "one_hot"]


@dataclass(frozen=True)
class FedMGSState:
    """Dictionary, codes and statistics, all float64; p inputs, K atoms."""

    atoms: Tensor = state.server()
    codes: Tensor = state.client()
    sent: Tensor = state.client()
    total: Tensor = state.server()


class FedMGS(Algorithm[ServerChannel]):
    """FedMGS: matrix factorisation; codes stay with clients, statistics are shared.

    Parameters
    ----------
    n_atoms : int
        Number of columns of W, the dictionary that clients share.
    code_steps : int
        Gradient steps Q1 on the codes H in a round.
    atom_steps : int
        Gradient steps Q2 on W in a round.
    codes : {'ridge', 'nonnegative', 'one_hot'}
        Penalty R(H): ``code_penalty`` / 2 ||H||^2, the same with H >= 0, or the relaxation of
        k-means, which adds ``one_hot_penalty`` / 2 ((1'h)^2 - ||h||^2) for every sample.
    code_penalty : float
        Weight of ||H||^2 / 2.
    atom_penalty : float
        Weight eta of ||W||^2.
    one_hot_penalty : float
        Weight of the relaxation, for ``codes: one_hot``.
    senders : int, optional
        Clients that send in a round; None is all of them. All compute in every round.
    client_weights : {'uniform', 'samples'}
        The mu_i: 1 / n or m_i / m.
    """

    requires = (
        Requirement({"participation": 1.0}, "where algorithm.senders of all clients send"),
        Requirement({"device": ("auto", "cpu")}, "which computes on the CPU"),
        Requirement({"participation.late": "miss"}, "which takes no steps that could be cut"),
    )
    aggregates = "sums"
    local_options = ()
    compressors = "none"
    tasks = ("unlabelled",)
    columns = ("objective",)
    step_option = "scale of the data"

    def __init__(
        self,
        model: NoModel,
        local: LocalSolver,
        *,
        n_atoms: Annotated[int, Ge(1)] = 15,
        code_steps: Annotated[int, Ge(1)] = 10,
        atom_steps: Annotated[int, Ge(1)] = 10,
        codes: CodePenalty = "ridge",
        code_penalty: Annotated[float, Ge(0)] = 0.1,
        atom_penalty: Annotated[float, Ge(0)] = 0.2,
        one_hot_penalty: Annotated[float, Gt(0)] = 1.0,
        senders: Annotated[int, Ge(1)] | None = None,
        client_weights: Literal["uniform", "samples"] = "uniform",
    ) -> None:
        self.data = model.data
        self.n_atoms, self.code_steps, self.atom_steps = n_atoms, code_steps, atom_steps
        self.codes, self.code_penalty, self.atom_penalty = codes, code_penalty, atom_penalty
        self.crossing = one_hot_penalty if codes == "one_hot" else 0.0
        self.n_senders, self.by_samples = senders, client_weights == "samples"

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> FedMGSState:
        p, k = int(np.prod(self.data.input_shape)), self.n_atoms
        atoms = torch.from_numpy(draws.stream("atoms").normal(size=(p, k)))
        longest = int(self.data.n_train.max())
        codes = torch.zeros(len(clients), k, longest, dtype=torch.float64)
        for row, (client, count) in enumerate(zip(clients.ids, clients.n_train, strict=True)):
            drawn = np.abs(draws.stream("codes", int(client)).normal(size=(k, int(count))))
            codes[row, :, :count] = torch.from_numpy(drawn)
        blank = torch.zeros(len(clients), k + p, k, dtype=torch.float64)
        return FedMGSState(atoms, codes, blank, blank.new_zeros(k + p, k))

    def round(
        self, state: FedMGSState, clients: Clients, channel: ServerChannel, draws: Draws
    ) -> FedMGSState:
        channel.broadcast(state.atoms)
        codes, now = state.codes.clone(), state.sent.clone()
        for row, x in enumerate(_shards(clients)):
            m = x.shape[1]
            codes[row, :, :m] = self.improved_codes(state.atoms, codes[row, :, :m], x)
            now[row] = _statistics(codes[row, :, :m], x)
        chosen = self.sampled(clients, draws)
        is_chosen = torch.from_numpy(chosen[clients.ids])
        among = channel.among(chosen)
        arrived = among.send(now[is_chosen])
        moved = among.sum(arrived - state.sent[is_chosen], self.weights(clients)[is_chosen])
        sent = state.sent.clone()
        sent[is_chosen] = arrived
        summed = state.total + moved
        return FedMGSState(self.improved_atoms(state.atoms, summed), codes, sent, summed)

    def sampled(self, clients: Clients, draws: Draws) -> np.ndarray:
        """Draw the clients that send in this round."""
        federation = clients.federation
        chosen = np.zeros(federation.n_clients, bool)
        everyone = federation.training
        count = len(everyone) if self.n_senders is None or draws.round == 1 else self.n_senders
        order = draws.stream("senders").permutation(len(everyone))
        chosen[everyone[order[:count]]] = True
        return chosen

    def weights(self, clients: Clients) -> Tensor:
        """Return mu_i, float64 (clients,)."""
        return clients.average_weights(self.by_samples)

    def improved_codes(self, atoms: Tensor, codes: Tensor, x: Tensor) -> Tensor:
        """Make Q1 projected gradient steps on the codes of one client."""
        gram = atoms.T @ atoms
        gram += self.code_penalty * torch.eye(len(gram), dtype=gram.dtype)
        gram += self.crossing * (1 - torch.eye(len(gram), dtype=gram.dtype))
        target = atoms.T @ x
        size = 1 / float(torch.linalg.matrix_norm(gram, 2))
        for _ in range(self.code_steps):
            codes = codes - size * (gram @ codes - target)
            if self.codes != "ridge":
                codes = codes.clamp(min=0)
        return codes

    def improved_atoms(self, atoms: Tensor, summed: Tensor) -> Tensor:
        """Make Q2 gradient steps on W."""
        k = self.n_atoms
        gram = summed[:k] + 2 * self.atom_penalty * torch.eye(k, dtype=summed.dtype)
        size = 1 / float(torch.linalg.matrix_norm(gram, 2))
        for _ in range(self.atom_steps):
            atoms = atoms - size * (atoms @ gram - summed[k:])
        return atoms

    def learnt(self, state: FedMGSState, exchange: Exchange) -> dict[str, Tensor]:
        """``dictionary`` W (p, K); codes are not shown."""
        return {"dictionary": state.atoms}

    def deploy(self, state: FedMGSState, clients: Clients, draws: Draws) -> Predictor:
        """Return that there is nothing to predict with."""
        return Predictor(None)

    def measure(
        self, state: FedMGSState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> dict[str, float | None]:
        """The objective with the present codes; collective."""
        means = torch.zeros(len(clients), 1, dtype=torch.float64)
        for row, x in enumerate(_shards(clients)):
            h = state.codes[row, :, : x.shape[1]]
            crossing = self.crossing * (h.sum(0).square().sum() - h.square().sum())
            penalties = self.code_penalty * h.square().sum() + crossing
            means[row] = ((x - state.atoms @ h).square().sum() + penalties) / (2 * x.shape[1])
        risk = float(clients.total(means, self.weights(clients))[0])
        return {"objective": risk + self.atom_penalty * float(state.atoms.square().sum())}

    def payload(self) -> int:
        return (self.n_atoms + int(np.prod(self.data.input_shape))) * self.n_atoms


def _shards(clients: Clients) -> list[Tensor]:
    """X_i of each client, float64 (p, m_i)."""
    train = clients.shards.train
    return [train.x[train.rows_of(row)].flatten(1).double().T for row in clients.rows]


def _statistics(codes: Tensor, x: Tensor) -> Tensor:
    """[H H'; X H'] / m, (K + p, K)."""
    return torch.cat([codes, x]) @ codes.T / codes.shape[1]
