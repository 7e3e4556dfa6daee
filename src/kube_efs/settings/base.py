"""The settings that the long-running processes share: the log, their identity and location."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from kube_efs.model.efs.ids import Region, SubnetId, ZoneName, parse_region, parse_zone_name
from kube_efs.model.names import UNNAMED_INSTALLATION, Names, NameSet
from kube_efs.settings.fields import (
    found,
    matching,
    one_of,
    read_dns_name,
    read_label,
    read_subnets,
    read_true_or_false,
    setting,
    switch,
)

DEFAULT_NAMESPACE = UNNAMED_INSTALLATION.names.namespace
_SERVICE_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def _own_namespace() -> str:
    try:
        return _SERVICE_ACCOUNT_NAMESPACE.read_text(encoding="utf-8").strip()
    except OSError:
        return DEFAULT_NAMESPACE


def own_image() -> str:
    """The image of this version, for every process of kube-efs."""
    return f"quay.io/kube-efs/kube-efs:{version('kube-efs')}"


def _level(text: str) -> str:
    level = "WARNING" if text.upper() == "WARN" else text.upper()
    if level not in _LEVELS:
        raise ValueError("is not a valid level")
    return level


def _read_file(text: str) -> Path:
    # Of pathlib, the same raises OSError for a name that is too long.
    if not os.path.isfile(text):  # noqa: PTH113
        raise ValueError("does not point to a file")
    return Path(text)


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Settings that are read once from the environment of the process: ``loading.load``."""

    @classmethod
    def gaps(cls, given: Mapping[str, str]) -> list[str]:
        """The problems of missing variables; the given ones may be invalid."""
        return []

    def faults(self) -> list[str]:
        """The problems of valid values that do not fit together."""
        return []


@dataclass(frozen=True, kw_only=True)
class CommonSettings(Environment):
    """The settings of every long-running process of kube-efs."""

    logging_level: str = setting(
        "LOGGING_LEVEL",
        "INFO",
        "Level of the least severe messages in the log.",
        read=_level,
        accepts=", ".join(_LEVELS),
    )
    health_host: str = setting(
        "KUBE_EFS_HEALTH_HOST",
        "0.0.0.0",  # noqa: S104 — the kubelet and Prometheus connect from outside of the pod
        "Address that serves `/healthz`, `/readyz` and `/metrics`; `0.0.0.0` is every address, also of IPv6.",
        read=str,
        accepts="an address of this host",
    )
    kubeconfig: Path | None = setting(
        "KUBECONFIG",
        None,
        "Kubeconfig of the cluster.",
        read=_read_file,
        accepts="a file that exists",
        shown="the pod's service account",
    )
    namespace: str = found(
        "POD_NAMESPACE",
        _own_namespace,
        "Namespace of the ConfigMap, the root claims, the worker pods and the Lease.",
        read=read_label,
        accepts="a namespace's name",
        shown=f"the service account's, else `{DEFAULT_NAMESPACE}`",
    )
    # Manifests of versions that had these names only do not set the variable.
    name_set: NameSet = setting(
        "KUBE_EFS_NAMES",
        UNNAMED_INSTALLATION,
        "Names of the objects of this installation, as in `kube-efs render --names`.",
        read=one_of(NameSet),
        accepts="`kube-efs`, `openshift-efs-stunnel` or `aws-efs-csi-driver`",
    )
    identity: str = found(
        "POD_NAME",
        socket.gethostname,
        "Name of this process in Leases and events.",
        read=read_dns_name,
        accepts="a pod's name",
        shown="the host's name",
    )
    node_name: str = found(
        "NODE_NAME",
        socket.gethostname,
        "Name of the node that this process runs on.",
        read=read_dns_name,
        accepts="a node's name",
        shown="the host's name",
    )

    @property
    def names(self) -> Names:
        """The names of the installation of this process, with its namespace."""
        return replace(self.name_set.names, namespace=self.namespace)


@dataclass(frozen=True, kw_only=True)
class AwsSettings(Environment):
    """The location of this process in AWS; without a setting, ``kube_efs.location`` finds it."""

    region: Region | None = setting(
        "AWS_REGION",
        None,
        "Region of the file systems.",
        read=parse_region,
        accepts="a name such as `us-east-1`",
        shown="the node's",
    )
    zone: ZoneName | None = setting(
        "KUBE_EFS_ZONE",
        None,
        "Availability zone of this node.",
        read=parse_zone_name,
        accepts="a name such as `us-east-1a`",
        shown="the node's",
    )
    zone_id: ZoneName | None = setting(
        "KUBE_EFS_ZONE_ID",
        None,
        "ID of this node's availability zone, for file systems of other accounts.",
        read=parse_zone_name,
        accepts="an ID such as `use1-az1`",
        shown="the node's",
    )
    subnets: tuple[SubnetId, ...] = setting(
        "KUBE_EFS_SUBNETS",
        (),
        "Subnets of this node, the preferred one first.",
        read=read_subnets,
        accepts="IDs such as `subnet-0a1b2c3d`, with commas between them",
        shown="instance metadata",
    )
    endpoint_url: str | None = setting(
        "AWS_ENDPOINT_URL",
        None,
        "Address of the AWS APIs, for private endpoints and for tests.",
        read=matching(r"https?://[^\s/]+(/\S*)?", "is not a URL"),
        accepts="an http or https URL",
        shown="AWS's own",
    )
    metadata_endpoint: str = setting(
        "AWS_EC2_METADATA_SERVICE_ENDPOINT",
        "http://169.254.169.254",
        "Address of the instance metadata service.",
        read=matching(r"https?://\S+", "is not a URL"),
        accepts="an http or https URL",
    )
    uses_fips_endpoints: bool = switch(
        "AWS_USE_FIPS_ENDPOINT",
        False,
        "Whether calls to AWS use FIPS endpoints. Tunnels are then in FIPS mode, too.",
        read=read_true_or_false,
    )
    dns_suffix: str | None = setting(
        "EFS_DNS_SUFFIX",
        None,
        "Domain in the names of file systems: `<id>.efs.<region>.<suffix>`.",
        read=read_dns_name,
        accepts="a domain such as `amazonaws.com`",
        shown="the region's",
    )
