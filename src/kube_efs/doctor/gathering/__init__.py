"""Reads the facts from the Kubernetes API, AWS and this machine, and changes nothing.

Whether a fact is a problem is for ``checks`` to decide.
"""
