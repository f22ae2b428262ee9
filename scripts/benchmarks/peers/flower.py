"""FedAvg of Flower, by its simulation on ray with one worker for each core."""

import os
import sys

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["PEER_ASKED"] = "|".join(sys.argv[1:3])  # for the workers

from flower_client import client_app
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from workload import asked

federation, model, rounds = asked()
clients, server_app = len(federation.clients), ServerApp()


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Run all rounds."""
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=clients)
    result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=rounds)
    model.load_state_dict(result.arrays.to_torch_state_dict())
    print(f"accuracy {federation.accuracy(model):.4f}", flush=True)


resources = {"num_cpus": 1, "num_gpus": 0.0}
run_simulation(server_app, client_app, clients, backend_config={"client_resources": resources})
