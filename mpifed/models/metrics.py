"""Scores of predicted labels and probabilities: of one client's samples, or of all clients'.

A score is a function of some of these, which it names as its parameters: ``counts`` (classes,
classes), how often each label, by row, was predicted as each, by column; ``y_true`` and ``y_pred``
(n,), labels; ``y_score``, the probabilities (n, classes), or of label 1 (n,) where there are two.
It is NaN where it is not defined.
"""

from __future__ import annotations

import numpy as np


def balanced_accuracy(counts: np.ndarray) -> float:
    """Mean over classes of the share of their samples that is predicted right.

    Classes without a sample are left out.

    Parameters
    ----------
    counts : ndarray
        True labels by row, predicted ones by column, (classes, classes).

    Examples
    --------
    >>> balanced_accuracy(np.array([[8, 2], [1, 1]]))
    0.65
    """
    samples = counts.sum(axis=1)
    present = samples > 0
    return _mean(np.diag(counts)[present] / samples[present])


def f1(counts: np.ndarray) -> float:
    """F1 of label 1 where there are two labels, else its mean over classes (macro F1).

    F1 of a class is 2 TP / (2 TP + FP + FN), and 0 where it is predicted but no label. Classes that
    are neither a label nor predicted are left out.

    Parameters
    ----------
    counts : ndarray
        True labels by row, predicted ones by column, (classes, classes).

    Examples
    --------
    >>> f1(np.array([[8, 2], [1, 1]]))
    0.4
    """
    samples, predicted = counts.sum(axis=1), counts.sum(axis=0)
    present = samples + predicted > 0
    if len(counts) == 2:
        present[0] = False
    return _mean(2 * np.diag(counts)[present] / (samples + predicted)[present])


def auc(y_true: np.ndarray, y_score: np.ndarray) -> float:
    """Area under the ROC curve.

    It is the share of pairs of a sample of a class and one of another in which the former has the
    higher score, ties counting half. Of label 1 where there are two labels, else the mean over
    classes, each against all others. Classes without a sample, or without another class beside
    them, are left out.

    Parameters
    ----------
    y_true : ndarray
        Labels, int64 (n,).
    y_score : ndarray
        Probabilities (n, classes), or of label 1, (n,).

    Examples
    --------
    >>> auc(np.array([0, 0, 1, 1]), np.array([0.1, 0.4, 0.4, 0.8]))
    0.875
    """
    if y_score.ndim == 1:
        return _area(y_true == 1, y_score)
    areas = [_area(y_true == label, y_score[:, label]) for label in np.unique(y_true)]
    return _mean(np.array([area for area in areas if not np.isnan(area)]))


def confusion(counts: np.ndarray) -> np.ndarray:
    """How often each label is predicted as each, in clients.h5 alone.

    Parameters
    ----------
    counts : ndarray
        True labels by row, predicted ones by column, (classes, classes).

    Examples
    --------
    >>> confusion(np.array([[8, 2], [1, 1]])).tolist()
    [[8, 2], [1, 1]]
    """
    return counts


def _area(positive: np.ndarray, score: np.ndarray) -> float:
    """Return the area under the ROC curve of two classes, of whole numbers of pairs."""
    values, position = np.unique(score, return_inverse=True)
    ones = np.bincount(position[positive], minlength=len(values))
    zeros = np.bincount(position[~positive], minlength=len(values))
    below = np.cumsum(zeros) - zeros
    pairs = int(ones.sum()) * int(zeros.sum())
    return int((ones * (2 * below + zeros)).sum()) / (2 * pairs) if pairs else float("nan")


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")
