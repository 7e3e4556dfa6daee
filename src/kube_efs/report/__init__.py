"""What a cluster's EFS storage looks like right now, for users and programs.

Reads a cluster through its API only and changes nothing: file systems, mount targets, ports, volumes and
the tunnels of each node. How the answer is laid out on a terminal is here too; which cluster to ask is
the command line's business.
"""
