"""Tunnels on demand: their reservations on the disk, and their client certificates.

A reservation is a port that leads to a file system, and is kept until its holders release it. The socket for
the calls belongs to ``api``, the services of stunnel to ``plan`` and ``stunnel``.
"""
