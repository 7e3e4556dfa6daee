"""The rules of the driver ``efs.csi.aws.com``: parameters, handles, mount options, access points.

Requests are parsed and checked here, once. The refusals are those of ``errors``, each with its gRPC code.
Claims of the other provisioners do not belong here.
"""
