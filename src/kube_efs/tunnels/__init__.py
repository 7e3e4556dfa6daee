"""The tunnels of one node: the desired tunnels, their mount targets, and their state.

``agent`` and ``plan`` decide what the one stunnel of the node serves. Its process is in ``stunnel``, what is
promised to mounts in ``on_demand``, how they ask in ``api``, the kernel's sockets in ``sockets``. Knows
nothing of claims or volumes.
"""
