"""The current state of a cluster's EFS storage, for users and programs.

Reads file systems, mount targets, ports, volumes and the tunnels of each node from the Kubernetes API, and
changes nothing. Its tables for a terminal are also here. The command line selects the cluster, and what is
wrong with it belongs to ``doctor``.
"""
