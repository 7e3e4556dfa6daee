"""Who makes, removes, lists, measures and empties directories of file systems.

``pool`` and ``pods`` do it by worker pods; ``program`` runs in such a pod, and is kept free of the Kubernetes
client. ``mounted`` does it in this pod, where the file system is mounted. Both use ``file_system``.

They do not decide: whether a directory may be removed is decided in ``guards``, and asked once more by the
``confirm`` of each order.
"""
