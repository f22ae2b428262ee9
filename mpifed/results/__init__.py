"""What a run leaves on disk: its directory, metrics, clients, summary and configuration."""
