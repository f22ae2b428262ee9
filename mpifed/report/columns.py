"""The columns of metrics.csv that reports know, with their titles in tables and figures."""

from __future__ import annotations

from dataclasses import dataclass

# What is drawn and tabulated; metrics.csv has more columns, and algorithms add their own.
COLUMNS = (
    "round",
    "seconds",
    "train_loss",
    "test_accuracy",
    "test_accuracy_p10",
    "up_bits",
    "down_bits",
    "consensus_distance",
)


@dataclass(frozen=True)
class Measure:
    """The title and scale of a column."""

    title: str
    short: str
    log: bool = True
    factor: float = 1.0


# Columns that validation and some algorithms add.
MEASURES = {
    "validation_loss": Measure("Validation loss, average over clients", "Validation loss"),
    "validation_accuracy": Measure(
        "Validation accuracy, average over clients (%)", "Validation accuracy (%)", False, 100.0
    ),
    "validation_recall_at_5": Measure(
        "Validation recall at 5, over all clients (%)", "Validation recall at 5 (%)", False, 100.0
    ),
    "train_nll": Measure("Training negative log-likelihood", "Train NLL", log=False),
    "test_nll": Measure("Test negative log-likelihood", "Test NLL", log=False),
    "validation_nll": Measure("Validation negative log-likelihood", "Validation NLL", log=False),
    "objective": Measure("Objective on the training data", "Objective"),
    "test_objective": Measure("Objective on the test data", "Test objective"),
    "surrogate_update": Measure("Squared update of surrogates, over γ²", "Surrogate update"),
    "parameter_update": Measure("Squared update of parameters, over γ²", "Parameter update"),
    "simulated_seconds": Measure(
        "Seconds of the simulated federation", "Simulated seconds", log=False
    ),
    "staleness_mean": Measure(
        "Mean staleness of what was mixed, in computations", "Mean staleness", log=False
    ),
    "staleness_max": Measure(
        "Largest staleness of what was mixed, in computations", "Largest staleness", log=False
    ),
    "epsilon": Measure("Epsilon of differential privacy", "Epsilon", log=False),
    "l2_uvp": Measure("L2-UVP: unexplained variance of the map (%)", "L2-UVP (%)"),
    "cosine": Measure("Cosine of the map with the optimal one", "Cosine", log=False),
}

# Words in the names of columns whose best value is the largest; others have the least.
LARGER_IS_BETTER = ("accuracy", "recall", "cosine")


def larger_is_better(column: str) -> bool:
    """Return whether the best value of ``column`` is the largest one."""
    return any(word in column for word in LARGER_IS_BETTER) and not column.endswith("_std")
