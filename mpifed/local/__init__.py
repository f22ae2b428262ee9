"""Local computations of clients: SGD, empirical risks and optima, for many clients at once."""
