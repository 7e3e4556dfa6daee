"""Provisioning of volumes for claims, and removal of Released volumes.

The engine runs the same steps for every kind of volume. ``guards`` decides whether data may be removed.
``volume_index`` and ``gid_ledger`` contain what this process knows about the cluster. ``backends`` has a
module or a package for each kind of volume. ``workers`` creates and removes directories. ``docs/design.md``
lists the files in reading order. ``shared_volumes`` is independent of the rest: it runs the steps of a
SharedVolume.

Watches, queues, leadership and events belong to ``controllers``; rules without I/O belong to ``model``.
"""
