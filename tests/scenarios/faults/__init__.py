"""Scenarios on one cluster whose controller uses the API server through a proxy."""
