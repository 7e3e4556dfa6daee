"""The agent's socket, both sides: other processes of the node request tunnels on demand there.

Only this package converts messages to values. The reservations belong to ``on_demand``.
"""
