"""Reads the facts from the Kubernetes API, AWS and this machine, and changes nothing."""
