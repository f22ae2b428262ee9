"""Averages of scores over clients, and their bottom decile."""

from __future__ import annotations

import numpy as np

from mpifed.config.configuration import ClientWeights
from mpifed.training.scores import VALIDATION_COLUMNS, ClientResults


def summarise(
    results: ClientResults, client_weights: ClientWeights = "scored"
) -> dict[str, float | None]:
    """Return the columns of metrics.csv that describe scores of clients."""
    seen = ~results.unseen
    tested = results.test_accuracy[seen & np.isfinite(results.test_accuracy)]

    def average(values: np.ndarray, counts: np.ndarray, among: np.ndarray) -> float | None:
        weights = {
            "scored": counts,
            "train": np.where(counts > 0, results.n_train, 0),
            "uniform": counts > 0,
        }[client_weights]
        return _average(values, weights, among)

    summary = {
        "train_loss": average(results.train_loss, results.n_train, seen),
        "train_accuracy": average(results.train_accuracy, results.n_train, seen),
        "test_loss": average(results.test_loss, results.n_test, seen),
        "test_accuracy": average(results.test_accuracy, results.n_test, seen),
        "test_accuracy_p10": bottom_decile(tested) if len(tested) else None,
        "test_accuracy_min": float(tested.min()) if len(tested) else None,
        "test_accuracy_std": float(tested.std()) if len(tested) else None,
    }
    samples = {"train": results.n_train, "test": results.n_test}
    if "n_validation" in results.more:
        samples["validation"] = results.more["n_validation"]
    for name in (*VALIDATION_COLUMNS, *(f"{split}_nll" for split in samples)):
        if name in results.more:
            summary[name] = average(results.more[name], samples[name.partition("_")[0]], seen)
    for name in results.more:
        if f"{name}_possible" in results.more:
            counts = results.more[f"{name}_possible"]
            summary[name] = average(results.more[name], counts, seen)
    if results.unseen.any():
        train = average(results.train_accuracy, results.n_train, results.unseen)
        test = average(results.test_accuracy, results.n_test, results.unseen)
        summary |= {"unseen_train_accuracy": train, "unseen_test_accuracy": test}
    return summary


def bottom_decile(accuracies: np.ndarray) -> float:
    """Return the ceil(T / 10)-th smallest of T values."""
    return float(np.sort(accuracies)[-(-len(accuracies) // 10) - 1])


def _average(values: np.ndarray, weights: np.ndarray, among: np.ndarray) -> float | None:
    scored = among & (weights > 0)
    if not scored.any() or np.isnan(values[scored]).all():
        return None
    return float((values[scored] * weights[scored]).sum() / weights[scored].sum())
