"""Volumes of ``efs.csi.aws.com``, for the engine (``claims``) and for csi-provisioner (``volumes`` alone).

A volume is an access point (``access_points``, ``known_access_points``, in one of the ``accounts``) or a
directory (``directories``).
The gRPC service of csi-provisioner belongs to ``kube_efs.csi``.
"""
