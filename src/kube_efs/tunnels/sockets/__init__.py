"""The TCP sockets of this node as the kernel reports them, and what several readings prove.

This package only reads: what to do about an unused or hanging tunnel belongs to ``tunnels``.
"""
