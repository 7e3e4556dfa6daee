"""The TCP sockets of this node as the kernel reports them, and what several readings prove.

Only looks: nothing here opens, closes or connects anything that lasts.
"""
