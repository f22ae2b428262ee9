"""Corrections of gossip: what clients send and keep, so that unlike data do not bias the result."""
