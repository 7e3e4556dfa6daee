"""The protocol of the tunnel agent's socket.

``make proto`` generates all files here from the ``.proto`` file.
"""
