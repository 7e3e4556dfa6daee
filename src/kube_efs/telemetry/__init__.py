"""Logs, metrics, and the health endpoint of the processes."""
