"""Clients, the ranks that host them, and who takes part in a round."""
