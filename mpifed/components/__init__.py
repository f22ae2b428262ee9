"""Names of components become objects, and their signatures become options."""
