"""What the data ask of a model's outputs."""

from __future__ import annotations

from mpifed.data.base import Description
from mpifed.errors import InputError


def refuse_sequences(data: Description, model: str) -> None:
    """Refuse data that have a target at each position, for models with one output a sample.

    Parameters
    ----------
    data : Description
        What the samples are.
    model : str
        Name of the model, for the message.

    Raises
    ------
    InputError
        Where the task is sequence.
    """
    if data.task == "sequence":
        raise InputError(
            f"model '{model}' gives one output for a sample, but the task of '{data.source}' is "
            "sequence; allowed: lstm, or a torch module"
        )
