"""FedAvg as a loop over clients in one process, as PFLlib has it."""

import copy

import torch
from workload import asked, local_epoch

federation, server, rounds = asked()
total = sum(len(y) for _, y in federation.clients)
for _ in range(rounds):
    mean = {name: torch.zeros_like(value) for name, value in server.state_dict().items()}
    for x, y in federation.clients:
        own = copy.deepcopy(server)
        local_epoch(own, x, y)
        for name, value in own.state_dict().items():
            mean[name] += len(y) / total * value
    server.load_state_dict(mean)
print(f"accuracy {federation.accuracy(server):.4f}")
