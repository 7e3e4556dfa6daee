"""Workers create, copy, remove, list and measure directories of file systems, and empty the trash.

``pool`` and ``pods`` use worker pods. ``program`` runs in such a pod, without the Kubernetes client.
``mounted`` works in this pod, if the file system is mounted in it. ``program`` and ``mounted`` use
``file_system``.

Workers decide nothing: ``guards`` decides whether a directory may be removed. The ``confirm`` of each order
checks that again.
"""
