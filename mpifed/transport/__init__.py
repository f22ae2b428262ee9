"""Optimal transport maps as gradients of convex networks: losses, benchmarks with known maps."""
