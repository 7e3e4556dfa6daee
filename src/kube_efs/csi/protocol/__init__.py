"""CSI and the kubelet's plugin registration as they are on the wire: messages, and stubs of their services.

``make proto`` generates everything here except the ``.proto`` files. The services themselves belong to
``csi``.
"""
