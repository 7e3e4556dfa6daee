"""The kinds of cluster that kube-efs is installed on."""

from enum import StrEnum


class Platform(StrEnum):
    """A kind of cluster; each one needs other objects."""

    KUBERNETES = "kubernetes"
    OPENSHIFT = "openshift"
