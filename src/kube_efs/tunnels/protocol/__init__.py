"""What the tunnel agent and those who ask it for tunnels say to each other on its socket.

Everything here but the ``.proto`` file is generated from it: ``make proto``.
"""
