"""Files: YAML, JSON, HDF5 and tensors, and how each is read with care and written at once."""
