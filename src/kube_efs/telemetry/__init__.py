"""How the processes tell what they do: logs, metrics, and the health endpoint."""
