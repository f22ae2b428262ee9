"""Supervisors that end a job when one of its ranks, hosts or launchers fails."""
