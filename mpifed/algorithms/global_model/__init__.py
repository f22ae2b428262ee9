"""Methods that learn one model for all clients, and training alone as their counterpart."""
