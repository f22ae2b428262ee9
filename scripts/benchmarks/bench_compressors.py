"""CPU seconds of the compressors, one JSON object a line.

python scripts/benchmarks/bench_compressors.py [--clients 50] [--size 301] [--dtype float64]
    [--repeats 200]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np
import torch

from mpifed.components.tables import COMPRESSORS
from mpifed.exchange.compression import Compressor, build
from mpifed.federation.clients import Draws


def cpu_seconds(compressor: Compressor, rows: torch.Tensor, repeats: int) -> float:
    """The median over ``repeats`` rounds, after one that is not counted."""
    ids, seconds = np.arange(len(rows)), []
    for k in range(repeats + 1):
        start = time.process_time()
        compressor(rows, Draws(0, k), ids)
        seconds.append(time.process_time() - start)
    return statistics.median(seconds[1:])


def main() -> None:
    """Prints one line for every compressor with its default options."""
    parser = argparse.ArgumentParser(description="CPU seconds of the compressors.")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--size", type=int, default=301)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float64")
    parser.add_argument("--repeats", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    x = np.random.default_rng(0).normal(size=(options.clients, options.size))
    rows = torch.from_numpy(x).to(getattr(torch, options.dtype))
    for name in COMPRESSORS:
        seconds = cpu_seconds(build(name), rows, options.repeats)
        line = {"name": f"compress_{name}", "value": seconds, "unit": "CPU seconds"}
        print(json.dumps({**line, "detail": vars(options)}))


if __name__ == "__main__":
    main()
