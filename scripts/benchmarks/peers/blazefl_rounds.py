"""FedAvg of BlazeFL, by its trainer that trains one client after the other."""

import sys
from enum import StrEnum

from blazefl.contrib.fedavg import FedAvgBaseClientTrainer, FedAvgBaseServerHandler
from torch.utils.data import DataLoader, TensorDataset
from workload import BATCH, MODELS, RATE, asked

federation, module, rounds = asked()
clients = len(federation.clients)
Workload = StrEnum("Workload", {name.upper(): name for name in MODELS})


class Selector:
    """The models by name."""

    def select_model(self, model_name):
        """Return a new model."""
        return MODELS[model_name]()


class Samples:
    """The samples of each client."""

    def get_dataset(self, type_, cid):
        """Return the samples of one client."""
        return TensorDataset(*federation.clients[cid])

    def get_dataloader(self, type_, cid, batch_size, generator=None):
        """Return the minibatches of one client."""
        samples = self.get_dataset(type_, cid)
        return DataLoader(samples, batch_size, shuffle=True, generator=generator)


shared = {"model_selector": Selector(), "model_name": Workload(sys.argv[2]), "dataset": Samples()}
shared |= {"num_clients": clients, "device": "cpu", "batch_size": BATCH, "seed": 0}
server = FedAvgBaseServerHandler(**shared, global_round=rounds, sample_ratio=1.0)
trainer = FedAvgBaseClientTrainer(**shared, epochs=1, lr=RATE)
while not server.if_stop():
    trainer.local_process(server.downlink_package(), server.sample_clients())
    for package in trainer.uplink_package():
        server.load(package)
print(f"accuracy {federation.accuracy(server.model):.4f}")
