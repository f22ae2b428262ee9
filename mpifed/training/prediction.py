"""Labels, tags, numbers and probabilities of the outputs of a trained module."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from mpifed.data.base import Description

# Samples that a module is given at once.
BATCH = 1024


@torch.no_grad()
def outputs_of(module: nn.Module, x: Tensor) -> Tensor:
    """Return a module's outputs for inputs (B, *input_shape)."""
    return torch.cat([module(part) for part in x.split(BATCH)])


def probabilities_of(outputs: Tensor, data: Description) -> np.ndarray:
    """Return the probability of each class or tag, (B, ..., classes)."""
    if outputs.shape[-1] == 1 or data.task == "multi_label":
        yes = torch.sigmoid(outputs)
        both = outputs.shape[-1] == 1 and data.task == "classification"
        return (torch.cat([torch.sigmoid(-outputs), yes], -1) if both else yes).numpy()
    return torch.softmax(outputs, -1).numpy()


def predictions_of(outputs: Tensor, data: Description) -> np.ndarray:
    """Return the likeliest label of each sample or position, by its name if it has one; whether it
    has each tag; or the numbers of a regression.
    """
    if data.task == "regression":
        return (outputs[:, 0] if outputs.shape[-1] == 1 else outputs).numpy()
    if data.task == "multi_label":
        return (outputs > 0).numpy()
    binary = data.n_outputs == 1
    labels = (outputs[..., 0] > 0 if binary else outputs.argmax(-1)).long().numpy()
    return np.array(data.class_names)[labels] if data.class_names else labels
