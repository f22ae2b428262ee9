"""Personal."""
