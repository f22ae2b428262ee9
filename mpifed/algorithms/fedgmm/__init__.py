"""FedGMM (Wu et al. 2023): the method, its Gaussians, and the posterior of both."""
