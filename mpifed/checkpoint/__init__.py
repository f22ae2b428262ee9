"""Checkpoints: one HDF5 file, the same for any number of ranks."""
