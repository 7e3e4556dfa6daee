"""The settings that the long-running processes share: the log, their identity and location."""

import socket
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, FilePath
from pydantic_settings import BaseSettings, SettingsConfigDict

from kube_efs.model.efs.ids import Region, ZoneName, parse_region, parse_zone_name
from kube_efs.model.names import UNNAMED_INSTALLATION, Names, NameSet
from kube_efs.settings.fields import CommaList, DnsName, LabelName, TrueOrFalse, matching, parsed, setting

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


class Environment(BaseSettings):
    """Settings that are read once from the environment of the process."""

    model_config = SettingsConfigDict(
        frozen=True, case_sensitive=True, env_ignore_empty=True, validate_by_name=True, validate_by_alias=True
    )

    @classmethod
    def gaps(cls, given: Mapping[str, object]) -> list[str]:
        """The problems of missing variables; the given ones may be invalid."""
        return []


class CommonSettings(Environment):
    """The settings of every long-running process of kube-efs."""

    logging_level: Annotated[str, AfterValidator(_level)] = setting(
        "LOGGING_LEVEL", "INFO", "Level of the least severe messages in the log.", accepts=", ".join(_LEVELS)
    )
    health_host: str = setting(
        "KUBE_EFS_HEALTH_HOST",
        "0.0.0.0",  # noqa: S104 — the kubelet and Prometheus connect from outside of the pod
        "Address that serves `/healthz`, `/readyz` and `/metrics`.",
        accepts="an address of this host",
    )
    kubeconfig: FilePath | None = setting(
        "KUBECONFIG",
        None,
        "Kubeconfig of the cluster.",
        accepts="a file that exists",
        shown="the pod's service account",
    )
    namespace: LabelName = setting(
        "POD_NAMESPACE",
        _own_namespace,
        "Namespace of the ConfigMap, the root claims, the worker pods and the Lease.",
        accepts="a namespace's name",
        shown=f"the service account's, else `{DEFAULT_NAMESPACE}`",
    )
    # Manifests of versions that had these names only do not set the variable.
    name_set: NameSet = setting(
        "KUBE_EFS_NAMES",
        UNNAMED_INSTALLATION,
        "Names of the objects of this installation, as in `kube-efs render --names`.",
        accepts="`kube-efs`, `openshift-efs-stunnel` or `aws-efs-csi-driver`",
    )
    identity: DnsName = setting(
        "POD_NAME",
        socket.gethostname,
        "Name of this process in Leases and events.",
        accepts="a pod's name",
        shown="the host's name",
    )
    node_name: DnsName = setting(
        "NODE_NAME",
        socket.gethostname,
        "Name of the node that this process runs on.",
        accepts="a node's name",
        shown="the host's name",
    )

    @property
    def names(self) -> Names:
        """The names of the installation of this process, with its namespace."""
        return replace(self.name_set.names, namespace=self.namespace)


class AwsSettings(Environment):
    """The location of this process in AWS; without a setting, ``kube_efs.location`` finds it."""

    region: Annotated[Region, parsed(parse_region)] | None = setting(
        "AWS_REGION",
        None,
        "Region of the file systems.",
        accepts="a name such as `us-east-1`",
        shown="the node's",
    )
    zone: Annotated[ZoneName, parsed(parse_zone_name)] | None = setting(
        "KUBE_EFS_ZONE",
        None,
        "Availability zone of this node.",
        accepts="a name such as `us-east-1a`",
        shown="the node's",
    )
    zone_id: Annotated[ZoneName, parsed(parse_zone_name)] | None = setting(
        "KUBE_EFS_ZONE_ID",
        None,
        "ID of this node's availability zone, for file systems of other accounts.",
        accepts="an ID such as `use1-az1`",
        shown="the node's",
    )
    subnets: CommaList = setting(
        "KUBE_EFS_SUBNETS",
        (),
        "Subnets of this node, the preferred one first.",
        accepts="IDs such as `subnet-0a1b2c3d`, with commas between them",
        shown="instance metadata",
    )
    endpoint_url: Annotated[str, matching(r"https?://[^\s/]+(/\S*)?", "is not a URL")] | None = setting(
        "AWS_ENDPOINT_URL",
        None,
        "Address of the AWS APIs, for private endpoints and for tests.",
        accepts="an http or https URL",
        shown="AWS's own",
    )
    metadata_endpoint: Annotated[str, matching(r"https?://\S+", "is not a URL")] = setting(
        "AWS_EC2_METADATA_SERVICE_ENDPOINT",
        "http://169.254.169.254",
        "Address of the instance metadata service.",
        accepts="an http or https URL",
    )
    uses_fips_endpoints: TrueOrFalse = setting(
        "AWS_USE_FIPS_ENDPOINT",
        False,
        "Whether calls to AWS use FIPS endpoints. Tunnels are then in FIPS mode, too.",
        accepts="true or false",
        shown="`false`",
    )
    dns_suffix: DnsName | None = setting(
        "EFS_DNS_SUFFIX",
        None,
        "Domain in the names of file systems: `<id>.efs.<region>.<suffix>`.",
        accepts="a domain such as `amazonaws.com`",
        shown="the region's",
    )
