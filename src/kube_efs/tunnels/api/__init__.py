"""The agent's socket: how other processes of the node ask for tunnels on demand, both sides of it.

Messages become values here and nowhere else. What is promised belongs to ``on_demand``.
"""
