"""Components: their base classes, their names in a configuration, and their options."""
