"""Scenarios that share one cluster, whose controller reaches the API server through a proxy."""
