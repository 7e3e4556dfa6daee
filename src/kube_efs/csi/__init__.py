"""The CSI protocol: gRPC servers, and the services of ``efs.csi.aws.com`` behind them.

Messages end here: services turn them into values of ``model`` and back, ``interceptors`` turns errors into
status codes. ``node`` and ``mounting`` are what happens on a node. How a volume is made belongs to
``provisioning``, what mounts and what is mounted to ``mounts``, tunnels to ``tunnels``.
"""
