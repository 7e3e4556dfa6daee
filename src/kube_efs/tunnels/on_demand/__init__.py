"""Tunnels on demand: what is promised to mounts, on the disk and with certificates.

A promise is a port that leads to a file system, kept until its holders release it. How a promise is asked for
belongs to ``api``, how stunnel comes to serve it to ``plan`` and ``stunnel``.
"""
