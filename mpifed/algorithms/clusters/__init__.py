"""Methods that find clusters of clients or of samples, and learn a model for each."""
