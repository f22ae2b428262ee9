"""Benchmarks of optimal transport maps, and the losses and data of federated methods on them."""
