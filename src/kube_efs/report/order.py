"""The orders of ``kube-efs top``, without the modules that read a cluster: ``--help`` needs only these."""

from enum import StrEnum


class Order(StrEnum):
    """Which volumes are first."""

    SIZE = "size"
    GROWTH = "growth"
    TRAFFIC = "traffic"
    CONNECTIONS = "connections"
