"""The command as a plug-in of kubectl: ``kubectl efs``.

Here belongs what follows from kubectl: its contexts, namespaces and completion. What the commands do is in
``report``, ``doctor`` and ``migration``.
"""
