"""The process ``kube-efs controller``: watches, queues, events and leadership around the engine.

``process`` builds the parts of every replica, and ``leading`` those of the leader. One module for each kind
of watched object turns changes into values, and values into calls.

Decisions about claims, volumes and data belong to ``provisioning``, rules without I/O to ``model``, and
general calls to the Kubernetes API to ``kube``.
"""
