"""FLIX: mixtures of local optima and a global model (Gasanov et al. 2021)."""
