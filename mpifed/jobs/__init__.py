"""SLURM jobs: ``python -m mpifed.jobs``, explained in docs/slurm.md."""
