"""FedAvg of pfl-research, by its simulated backend in one process."""

import types

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from workload import BATCH, RATE, asked

federation, module, rounds = asked()


def loss(self: torch.nn.Module, x: object, y: object, is_eval: bool = False) -> object:
    """Return the loss of a minibatch."""
    return torch.nn.functional.cross_entropy(self(x), y)


module.loss = types.MethodType(loss, module)
module.metrics = lambda x, y: {"loss": Weighted(float(module.loss(x, y)) * len(y), len(y))}
users = list(range(len(federation.clients)))
data = FederatedDataset(
    lambda user: Dataset(raw_data=federation.clients[user]), MinimizeReuseUserSampler(users)
)
model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
FederatedAveraging().run(
    NNAlgorithmParams(
        central_num_iterations=rounds,
        evaluation_frequency=rounds + 1,
        train_cohort_size=len(users),
        val_cohort_size=0,
    ),
    SimulatedBackend(data, data, [WeightByDatapoints()]),
    model,
    NNTrainHyperParams(local_num_epochs=1, local_learning_rate=RATE, local_batch_size=BATCH),
)
print(f"accuracy {federation.accuracy(module):.4f}")
