"""The CSI protocol: gRPC servers, and the services of ``efs.csi.aws.com`` behind them.

Messages end here: services convert them to values of ``model`` and back, ``interceptors`` converts errors to
status codes. ``node`` and ``node_volumes`` publish volumes on a node. How a volume is created belongs to
``provisioning``, the programs that mount and the mount table to ``mounts``, tunnels to ``tunnels``.
"""
