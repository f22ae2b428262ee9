"""Templates of components of a user's own."""
