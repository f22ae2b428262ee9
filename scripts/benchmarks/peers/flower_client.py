"""What a worker of Flower's simulation runs: one client's epoch, on samples read once a worker."""

import functools
import os

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from workload import MODELS, Federation, local_epoch

client_app = ClientApp()
read = functools.cache(Federation)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train one client."""
    torch.set_num_threads(1)
    path, workload = os.environ["PEER_ASKED"].split("|")
    model = MODELS[workload]()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = read(path).clients[int(context.node_config["partition-id"])]
    local_epoch(model, x, y)
    content = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": len(y)}),
    }
    return Message(content=RecordDict(content), reply_to=message)
