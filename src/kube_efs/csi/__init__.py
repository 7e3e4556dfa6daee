"""The CSI protocol: gRPC servers, and the services of ``efs.csi.aws.com`` behind them.

Messages end here: services turn them into values of ``model`` and back, ``interceptors`` turns errors into
status codes. How a volume is made belongs to ``provisioning``, how it is mounted to ``mounts``.
"""
