"""Methods that learn a model for each client."""
