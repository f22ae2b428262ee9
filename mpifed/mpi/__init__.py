"""MPI behind a small set of operations; ``over_mpi4py`` alone imports mpi4py."""
