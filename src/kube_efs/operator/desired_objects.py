"""The objects that a cluster must have, from the operator's settings and the facts of the cluster. No I/O."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Self

from kube_efs.operator import injection
from kube_efs.operator.cluster_csi_driver import LogLevel
from kube_efs.operator.cluster_facts import CREDENTIALS_SECRET, TRUSTED_CA_CONFIG_MAP, ClusterFacts
from kube_efs.operator.kinds import WORKLOADS
from kube_efs.operator.manifests import Manifest, RenderOptions, render_asset, render_manifests
from kube_efs.operator.platforms import Platform
from kube_efs.settings import InstalledSettings

_TOKEN_PATH: Final = "/var/run/secrets/openshift/serviceaccount/token"  # noqa: S105 - a path
_TAGS: Final = "KUBE_EFS_ACCESS_POINT_TAGS"
# OpenShift's installer removes resources with this tag together with the cluster.
_OWNED_BY: Final = "kubernetes.io/cluster/"


class Component(StrEnum):
    """A component of the installation. Types of conditions begin with the value, a name of library-go."""

    TUNNEL = "AWSEFSDriverTunnelServiceController"
    NODE = "AWSEFSDriverNodeServiceController"
    CONTROLLER = "AWSEFSDriverControllerServiceController"
    STATIC = "CSIStaticResourceController"
    CREDENTIALS = "AWSEFSDriverCredentialsRequestController"
    MONITOR = "AWSEFSDriverServiceMonitorController"


_BY_COMMAND: Final = {
    "controller": Component.CONTROLLER,
    "tunnel": Component.TUNNEL,
    "node": Component.NODE,
}
_BY_KIND: Final = {
    "ServiceMonitor": Component.MONITOR,
    "PodMonitor": Component.MONITOR,
    "PrometheusRule": Component.MONITOR,
    "CredentialsRequest": Component.CREDENTIALS,
}
_BY_POD_LABEL: Final = {"efs-stunnel": Component.TUNNEL, "efs-csi-node": Component.NODE}
# The driver of the nodes mounts through the tunnels, and the controller assigns ports to them. Each is
# therefore applied after the components that it depends on.
_ORDER: Final = (
    Component.STATIC,
    Component.CREDENTIALS,
    Component.MONITOR,
    Component.TUNNEL,
    Component.NODE,
    Component.CONTROLLER,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """Variables for the installed processes, and the optional objects that these variables require.

    ``observes``: the controller measures usage or serves the status page, and needs the permissions for it.
    ``open_metrics``: the components whose metrics are reachable from other nodes, so Prometheus reads them.
    """

    variables: Mapping[Component, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    observes: bool = False
    open_metrics: frozenset[Component] = frozenset()

    @classmethod
    def from_settings(cls, settings: InstalledSettings) -> Self:
        """From the settings of the operator."""
        is_open = {Component.TUNNEL: settings.opens_tunnel, Component.NODE: settings.opens_node}
        return cls(
            variables={
                Component.CONTROLLER: settings.controller,
                Component.TUNNEL: settings.tunnel,
                Component.NODE: settings.node,
            },
            observes=settings.observes,
            open_metrics=frozenset(component for component in is_open if is_open[component]),
        )


# The operator can grant only permissions that it has, so its roles contain those of all optional objects.
ALL_OPTIONAL: Final = ProcessSettings(
    observes=True, open_metrics=frozenset({Component.TUNNEL, Component.NODE})
)


def component_of(manifest: Manifest) -> Component:
    """The component of an object; the command of its container determines that of a workload."""
    if manifest["kind"] in WORKLOADS:
        containers = manifest["spec"]["template"]["spec"]["containers"]
        return _BY_COMMAND.get((containers[0].get("args") or [""])[0], Component.STATIC)
    return _BY_KIND.get(manifest["kind"], Component.STATIC)


def desired_objects(
    options: RenderOptions,
    facts: ClusterFacts,
    processes: ProcessSettings,
    log_level: LogLevel = LogLevel.NORMAL,
) -> tuple[Manifest, ...]:
    """Every object, in the order in which the operator applies them.

    The Namespace is not among them. The operator runs in it, so it existed before and is not ours to remove.
    """
    values: dict[str, object] = {"namespace": options.namespace}
    is_openshift = options.platform is Platform.OPENSHIFT
    found = [
        *render_asset("controller-metrics-tls" if is_openshift else "controller-metrics", values),
        *render_asset("rules", values),
        *_optional_objects(processes, options.namespace),
    ]
    if is_openshift:
        found += render_asset("trusted-ca", values)
    if facts.requests_credentials:
        role = facts.role_arn or None
        of_role = {"role_arn": role, "token_path": _TOKEN_PATH if role else None}
        found += render_asset("credentials-request", {**values, **of_role})
    found += [one for one in render_manifests(options) if one["kind"] != "Namespace"]
    finished = [
        injection.with_managed_by(
            _adapted(one, options, facts, processes, log_level) if one["kind"] in WORKLOADS else one
        )
        for one in found
    ]
    return tuple(sorted(finished, key=lambda one: _ORDER.index(component_of(one))))


def unrequested_objects(processes: ProcessSettings, namespace: str) -> tuple[Manifest, ...]:
    """The optional objects that the settings do not require, and may have required before."""
    requested = [one["metadata"]["name"] for one in _optional_objects(processes, namespace)]
    everything = _optional_objects(ALL_OPTIONAL, namespace)
    return tuple(one for one in everything if one["metadata"]["name"] not in requested)


def _optional_objects(processes: ProcessSettings, namespace: str) -> Iterator[Manifest]:
    values = {"namespace": namespace}
    if processes.observes:
        yield from render_asset("observing-rbac", values)
    for monitor in render_asset("pod-monitors", values):
        if _BY_POD_LABEL[monitor["spec"]["selector"]["matchLabels"]["component"]] in processes.open_metrics:
            yield monitor


def _adapted(
    workload: Manifest,
    options: RenderOptions,
    facts: ClusterFacts,
    processes: ProcessSettings,
    log_level: LogLevel,
) -> Manifest:
    """The workload for this cluster.

    Each change of a pod template replaces pods. A new tunnel pod interrupts the mounts of its node, so only
    what tunnels need is added to theirs: neither the log level nor the credentials.
    """
    component, namespace = component_of(workload), options.namespace
    variables = processes.variables.get(component, {})
    workload = injection.with_environment(workload, variables)
    versions = {}
    if facts.trusted_ca_version:
        workload = injection.with_trusted_ca(workload)
        key = injection.dependency_key(namespace, TRUSTED_CA_CONFIG_MAP, "configmap")
        versions[key] = facts.trusted_ca_version
    workload = injection.with_environment(workload, facts.proxy)
    if component is not Component.TUNNEL and log_level is not LogLevel.NORMAL:
        workload = injection.with_environment(workload, {"LOGGING_LEVEL": log_level.logging_level})
    if component is Component.CONTROLLER:
        workload = injection.with_replicas(workload, max(1, min(2, facts.nodes)))
        if options.platform is Platform.OPENSHIFT:
            workload = injection.with_metrics_certificate(workload, facts.tls)
        if facts.cluster_id:
            tags = f"{variables.get(_TAGS, '')} {_OWNED_BY}{facts.cluster_id}:owned".strip()
            workload = injection.with_environment(workload, {_TAGS: tags})
        if facts.credentials_mode is not None or facts.credentials_version:
            workload = injection.with_credentials(workload)
        if facts.credentials_version:
            key = injection.dependency_key(namespace, CREDENTIALS_SECRET, "secret")
            versions[key] = facts.credentials_version
    return injection.with_spec_hash(injection.with_dependencies(workload, versions))
