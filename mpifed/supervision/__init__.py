"""Processes that watch ranks, how a rank ends, and requests to stop."""
