"""Checkpoints: one HDF5 file each, of the same form for any number of ranks."""
