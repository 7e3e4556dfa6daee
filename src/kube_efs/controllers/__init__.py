"""The process ``kube-efs controller``: watches, queues, events and leadership around the engine.

``process`` puts the parts together, ``leading`` those that only the leader has. Then one module for each kind
of object that is watched: it turns changes into values, and values into calls.

Decisions about claims, volumes and data belong to ``provisioning``, rules without I/O to ``model``, and calls
of the Kubernetes API that others need too to ``kube``.
"""
