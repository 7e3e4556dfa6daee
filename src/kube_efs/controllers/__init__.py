"""The process ``kube-efs controller``: watches, queues and leadership around the engine.

Handlers are thin: they turn events into values and values into calls. Rules belong to ``model`` and
``provisioning``.
"""
