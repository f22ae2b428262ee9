"""Global model."""
