"""The kinds of cluster that kube-efs is installed on."""

from enum import StrEnum


class Platform(StrEnum):
    """A kind of cluster, as far as installation differs."""

    KUBERNETES = "kubernetes"
    OPENSHIFT = "openshift"
