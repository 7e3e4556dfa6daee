"""Every environment variable of the long-running processes, with its default, range and meaning.

Each process has a class, with shared base classes. ``scripts/settings_table.py`` generates
``docs/settings.md`` from this package. Variables without the prefix ``KUBE_EFS_`` have the names of
openshift-efs-stunnel, efs-provisioner, the tools of AWS, and Kubernetes. An empty variable counts as not set.
Options of single commands belong to the command line.
"""

from kube_efs.settings.base import DEFAULT_NAMESPACE, AwsSettings, CommonSettings, own_image
from kube_efs.settings.controller import (
    DEFAULT_LEASE,
    DEFAULT_PROVISIONER,
    ControllerSettings,
    efs_provisioner_defaults,
)
from kube_efs.settings.directories import BackendName, DirectoryProvisionerSettings
from kube_efs.settings.installed import InstalledSettings
from kube_efs.settings.loading import load
from kube_efs.settings.node import NodeSettings
from kube_efs.settings.operator import OperatorSettings
from kube_efs.settings.tunnel import TunnelSettings

__all__ = [
    "DEFAULT_LEASE",
    "DEFAULT_NAMESPACE",
    "DEFAULT_PROVISIONER",
    "AwsSettings",
    "BackendName",
    "CommonSettings",
    "ControllerSettings",
    "DirectoryProvisionerSettings",
    "InstalledSettings",
    "NodeSettings",
    "OperatorSettings",
    "TunnelSettings",
    "efs_provisioner_defaults",
    "load",
    "own_image",
]
