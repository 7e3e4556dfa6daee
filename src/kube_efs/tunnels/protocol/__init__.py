"""The protocol of the tunnel agent's socket: messages, and stubs of its service.

``make proto`` generates everything here except the ``.proto`` file. Both sides of the socket belong to
``tunnels.api``.
"""
