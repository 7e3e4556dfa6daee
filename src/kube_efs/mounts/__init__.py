"""What is mounted on this machine, as the kernel tells it.

Knows nothing of claims, volumes or tunnels.
"""
