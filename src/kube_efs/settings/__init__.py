"""Every environment variable of the long-running processes, with its default, range and meaning.

One class for each process, over bases that they share. ``docs/settings.md`` is made from this package
(``scripts/settings_table.py``). Variables without the prefix ``KUBE_EFS_`` have the names that
openshift-efs-stunnel, efs-provisioner, AWS's own tools and Kubernetes gave them. An empty variable counts
as not set.
"""

from kube_efs.settings.base import DEFAULT_NAMESPACE, AwsSettings, CommonSettings, own_image
from kube_efs.settings.controller import DEFAULT_LEASE, DEFAULT_PROVISIONER, ControllerSettings
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
    "load",
    "own_image",
]
