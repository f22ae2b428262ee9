"""MPI behind a handful of verbs; ``over_mpi4py`` alone imports mpi4py."""
