"""Jobs of clusters: ``python -m mpifed.jobs``, explained in docs/slurm.md and docs/clusters.md."""
