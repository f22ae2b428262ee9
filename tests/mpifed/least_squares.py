"""Least squares among clients of unequal n_t, as arrays for a method written out in numpy."""

from __future__ import annotations

import numpy as np
from convex import problem_of

SIZES = (4, 9, 2, 6, 12)


class LeastSquares:
    """f_t(w) = |x_t w - y_t|^2 / (2 n_t); half of the clients take part in a round."""

    def __init__(self, sizes=SIZES, d=3, seed=0, participation=0.5):
        draw = np.random.default_rng(seed)
        self.xs = [draw.normal(size=(m, d)) for m in sizes]
        self.ys = [x @ draw.normal(size=d) + draw.normal(size=len(x)) for x in self.xs]
        self.shares = np.array(sizes) / sum(sizes)
        self.data = problem_of(self.xs, self.ys, participation=participation)

    def risk(self, t, w):
        return np.square(self.xs[t] @ w - self.ys[t]).mean() / 2

    def gradient(self, t, w):
        return self.xs[t].T @ (self.xs[t] @ w - self.ys[t]) / len(self.ys[t])

    def starts(self, run):
        """The models before round 1, as arrays."""
        return run.state.model.numpy()[0].copy()
