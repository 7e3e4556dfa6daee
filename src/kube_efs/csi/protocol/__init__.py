"""CSI and the kubelet's plugin registration as they are on the wire: messages, and stubs of their services.

Everything here but the ``.proto`` files is generated from them: ``make proto``.
"""
