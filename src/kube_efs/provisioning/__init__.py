"""From a claim to a volume, and from a Released volume to nothing.

The engine decides what is done and in which order, for every kind of volume alike. ``guards`` decides whether
data may go. ``volume_index`` and ``gid_ledger`` are what is known of the cluster. ``backends`` has one module
for each kind of volume, ``workers`` makes and removes directories. ``docs/design.md`` lists the files in the
order in which they are read. Apart from all this, ``shared_volumes`` takes the steps of a SharedVolume.

Watches, queues, leadership and events belong to ``controllers``; rules without I/O belong to ``model``.
"""
