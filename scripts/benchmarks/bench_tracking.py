"""What trackers cost: CPU seconds of rank 0 for a row, beside those of a recorded round."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bench_figures import cpu_seconds, engine, report

ROWS = 200


def tracker_share() -> None:
    """Percent of a recorded round of the released benchmark that each tracker takes."""
    from mpifed.config.configuration import resolve, to_mapping
    from mpifed.config.experiments import read_experiment
    from mpifed.errors import InputError
    from mpifed.trackers import TrackedRun
    from mpifed.tracking import EVERY, TRACKERS, check_tracker
    from mpifed.training.callbacks import recorded

    made = engine("synthetic-released", **{"data.n_test": 50})

    def round_and_row() -> dict[str, Any]:
        made.advance()
        return made.evaluated()[0]

    each = statistics.median(cpu_seconds(round_and_row, 5))
    row = recorded(round_and_row(), 1000).row
    values = {name: value for name, value in row.items() if value == value}
    together = max(1, int(EVERY / each))
    os.environ["WANDB_MODE"] = "offline"
    for name, (opened, _) in TRACKERS.items():
        try:
            check_tracker(name)
        except InputError as error:
            report("tracker_share", float("nan"), "%", tracker=name, missing=str(error))
            continue
        with tempfile.TemporaryDirectory() as folder:
            os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
            configuration = to_mapping(resolve(read_experiment("synthetic-released")))
            run = TrackedRun(Path(folder), "bench", configuration, 0, None, lambda known: None)
            began = time.process_time()
            tracker = opened(run)
            opening = time.process_time() - began
            tracker.send([(0, values)])
            began = time.process_time()
            for number in range(1, ROWS + 1, together):
                tracker.send([(number + at, values) for at in range(together)])
            cost = (time.process_time() - began) / ROWS
            tracker.close("finished")
        report(
            "tracker_share",
            round(100 * cost / each, 3),
            "% of a recorded round",
            tracker=name,
            columns=len(values),
            rows_at_once=together,
            row_ms=round(1000 * cost, 3),
            round_ms=round(1000 * each, 1),
            opening_s=round(opening, 2),
        )


BENCHMARKS = {"tracker_share": tracker_share}
