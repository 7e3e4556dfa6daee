"""The objects that a cluster must have, from the operator's settings and the facts of the cluster. No I/O."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Self

from kube_efs.model.csi.access_point_tags import Tag, parse_tags, render_tags
from kube_efs.model.errors import InvalidSetting
from kube_efs.model.names import NameSet
from kube_efs.operator import injection
from kube_efs.operator.cluster_csi_driver import LogLevel
from kube_efs.operator.cluster_facts import CREDENTIALS_SECRET, TRUSTED_CA_CONFIG_MAP, InstallationFacts
from kube_efs.operator.kinds import WORKLOADS
from kube_efs.operator.manifests import (
    STORAGE_CLASS,
    Manifest,
    RenderOptions,
    render_asset,
    render_manifests,
    values_of,
)
from kube_efs.operator.platforms import Platform
from kube_efs.settings.base import Environment
from kube_efs.settings.controller import ControllerSettings
from kube_efs.settings.installed import InstalledSettings
from kube_efs.settings.loading import load
from kube_efs.settings.node import NodeSettings
from kube_efs.settings.operator import OperatorSettings
from kube_efs.settings.tunnel import TunnelSettings

_TOKEN_PATH: Final = "/var/run/secrets/openshift/serviceaccount/token"  # noqa: S105 - a path
_TAGS: Final = "KUBE_EFS_ACCESS_POINT_TAGS"
_FOR_POD_TOKENS: Final = frozenset({"tokenRequests", "requiresRepublish"})
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """The times of a Lease, in seconds, as OpenShift's operators set them for all processes.

    With them, the holder survives an API server that is unavailable for a minute. The price is a longer
    wait after a crash of the holder.
    """

    duration: int
    renew_deadline: int
    retry_period: int

    @property
    def variables(self) -> Mapping[str, str]:
        """The variables of the controller."""
        return {
            "KUBE_EFS_LEASE_DURATION_SECONDS": str(self.duration),
            "KUBE_EFS_LEASE_RENEW_SECONDS": str(self.renew_deadline),
            "KUBE_EFS_LEASE_RETRY_SECONDS": str(self.retry_period),
        }


LEASE: Final = LeaseTimes(duration=137, renew_deadline=107, retry_period=26)
LEASE_OF_SINGLE_CONTROL_PLANE: Final = LeaseTimes(duration=270, renew_deadline=240, retry_period=60)

_BY_COMMAND: Final = {
    "controller": Component.CONTROLLER,
    "tunnel": Component.TUNNEL,
    "node": Component.NODE,
}
_SETTINGS: Final[Mapping[Component, type[Environment]]] = {
    Component.CONTROLLER: ControllerSettings,
    Component.TUNNEL: TunnelSettings,
    Component.NODE: NodeSettings,
}
_BY_KIND: Final = {
    "ServiceMonitor": Component.MONITOR,
    "PodMonitor": Component.MONITOR,
    "PrometheusRule": Component.MONITOR,
    "CredentialsRequest": Component.CREDENTIALS,
}
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
    facts: InstallationFacts,
    processes: ProcessSettings,
    log_level: LogLevel = LogLevel.NORMAL,
    volume_metrics: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Manifest, ...]:
    """Every object, in the order in which the operator applies them.

    ``log_level`` and ``volume_metrics`` are those of the ClusterCSIDriver.

    The Namespace is not among them. The operator runs in it, so it existed before and is not ours to remove.
    """
    values = values_of(options)
    is_openshift = options.platform is Platform.OPENSHIFT
    found = [
        *render_asset("controller-metrics-tls" if is_openshift else "controller-metrics", values),
        *render_asset("rules", values),
        *render_asset("controller-disruption-budget", values),
        *_optional_objects(processes, options),
    ]
    if is_openshift:
        found += render_asset("trusted-ca", values)
    if facts.requests_credentials:
        role = facts.role_arn or None
        of_role = {"role_arn": role, "token_path": _TOKEN_PATH if role else None}
        found += render_asset("credentials-request", {**values, **of_role})
    found += [one for one in render_manifests(options) if one["kind"] != "Namespace"]
    of_driver = {Component.NODE: volume_metrics} if volume_metrics else {}
    if log_level is not LogLevel.NORMAL:
        level = {"LOGGING_LEVEL": log_level.logging_level}
        of_driver = {Component.NODE: {**level, **volume_metrics}, Component.CONTROLLER: level}
    finished = [
        injection.with_managed_by(
            _adapted(one, options, facts, processes, of_driver) if one["kind"] in WORKLOADS else one
        )
        for one in found
    ]
    return tuple(sorted(finished, key=lambda one: _ORDER.index(component_of(one))))


def installation_options(settings: OperatorSettings, platform: Platform, names: NameSet) -> RenderOptions:
    """The installation that the settings of the operator describe; raises InvalidSetting."""
    return RenderOptions(
        platform=platform,
        names=names,
        namespace=settings.namespace,
        image=settings.image,
        region=settings.region,
        fips=settings.uses_fips_endpoints,
        csi=True,
        csi_only=settings.csi_only,
        kubelet_folder=settings.kubelet_folder,
    )


def check_settings(settings: OperatorSettings, platform: Platform = Platform.KUBERNETES) -> None:
    """Raise InvalidSetting if an installed process would not start with the variables of its manifest.

    Each variable is valid by itself, but they may not fit together.
    """
    options = installation_options(settings, platform, settings.name_set)
    for one in desired_objects(options, InstallationFacts(), ProcessSettings.from_settings(settings)):
        if one["kind"] not in WORKLOADS:
            continue
        component = component_of(one)
        (container,) = one["spec"]["template"]["spec"]["containers"]
        # Those without a value are from the pod, such as its name.
        variables = {entry["name"]: entry.get("value", "of-the-pod") for entry in container["env"]}
        try:
            load(_SETTINGS[component], variables)
        except InvalidSetting as error:
            name = f"KUBE_EFS_{container['args'][0].upper()}_SETTINGS"
            problem = f"makes settings that kube-efs {container['args'][0]} does not accept: {error}"
            raise InvalidSetting(problem, field=name) from error


def without_pod_tokens(desired: Iterable[Manifest]) -> tuple[Manifest, ...]:
    """The objects while pods of an older driver run: the AWS driver refuses volumes with tokens of pods."""
    return tuple(
        {**one, "spec": {name: one["spec"][name] for name in one["spec"] if name not in _FOR_POD_TOKENS}}
        if one["kind"] == "CSIDriver"
        else one
        for one in desired
    )


def unrequested_objects(processes: ProcessSettings, options: RenderOptions) -> tuple[Manifest, ...]:
    """The optional objects that the settings do not require, and may have required before."""
    requested = [one["metadata"]["name"] for one in _optional_objects(processes, options)]
    everything = _optional_objects(ALL_OPTIONAL, options)
    classes = render_asset(STORAGE_CLASS, values_of(options)) if options.csi_only else ()
    return (*(one for one in everything if one["metadata"]["name"] not in requested), *classes)


def _optional_objects(processes: ProcessSettings, options: RenderOptions) -> Iterator[Manifest]:
    values, names = values_of(options), options.names.names
    components = {names.tunnel: Component.TUNNEL, names.node: Component.NODE}
    if processes.observes:
        yield from render_asset("observing-rbac", values)
    for monitor in render_asset("pod-monitors", values):
        if components[monitor["spec"]["selector"]["matchLabels"]["component"]] in processes.open_metrics:
            yield monitor


def _adapted(
    workload: Manifest,
    options: RenderOptions,
    facts: InstallationFacts,
    processes: ProcessSettings,
    of_driver: Mapping[Component, Mapping[str, str]],
) -> Manifest:
    """The workload for this cluster; ``of_driver`` are variables from the ClusterCSIDriver.

    Each change of a pod template replaces pods. A new tunnel pod interrupts the mounts of its node, so only
    what tunnels need is added to theirs: neither the log level nor the credentials.
    """
    component, namespace = component_of(workload), options.namespace
    variables = processes.variables.get(component, {})
    is_openshift = options.platform is Platform.OPENSHIFT
    if component is Component.CONTROLLER and is_openshift:
        lease = LEASE_OF_SINGLE_CONTROL_PLANE if facts.has_single_control_plane else LEASE
        # Each is valid only together with the other two.
        if not lease.variables.keys() & variables.keys():
            variables = {**lease.variables, **variables}
    workload = injection.with_environment(workload, variables)
    annotations = _pod_annotations(_required_constraints(options).get(component))
    workload = injection.with_pod_annotations(workload, annotations)
    versions = {}
    if facts.trusted_ca_version:
        workload = injection.with_trusted_ca(workload)
        key = injection.dependency_key(namespace, TRUSTED_CA_CONFIG_MAP, "configmap")
        versions[key] = facts.trusted_ca_version
    workload = injection.with_environment(workload, facts.proxy)
    workload = injection.with_environment(workload, of_driver.get(component, {}))
    if component is Component.CONTROLLER:
        workload = injection.with_replicas(workload, facts.controller_replicas)
        if is_openshift:
            workload = injection.with_metrics_certificate(workload, facts.tls)
        tags = _access_point_tags(facts, variables.get(_TAGS, ""))
        workload = injection.with_environment(workload, {_TAGS: tags})
        if facts.credentials_mode is not None or facts.credentials_version:
            workload = injection.with_credentials(workload)
        if facts.credentials_version:
            key = injection.dependency_key(namespace, CREDENTIALS_SECRET, "secret")
            versions[key] = facts.credentials_version
    return injection.with_spec_hash(injection.with_dependencies(workload, versions))


def _required_constraints(options: RenderOptions) -> Mapping[Component, str]:
    """The constraints of OpenShift that admit the pods; restricted-v2 is its own.

    The operator always installs the CSI driver, whose tunnels use directories of the node.
    """
    if options.platform is not Platform.OPENSHIFT:
        return {}
    names = options.names.names
    return {
        Component.TUNNEL: f"{names.tunnel}-csi",
        Component.NODE: names.node,
        Component.CONTROLLER: "restricted-v2",
    }


def _pod_annotations(constraints: str | None) -> dict[str, str]:
    """What OpenShift must know about the pods."""
    if constraints is None:
        return {}
    return {
        # Another constraint with a higher priority could change the user or deny a directory of the node.
        "openshift.io/required-scc": constraints,
        "target.workload.openshift.io/management": '{"effect": "PreferredDuringScheduling"}',
    }


def missing_ownership_tag(facts: InstallationFacts, processes: ProcessSettings) -> str:
    """Why access points do not get the ownership tag, and the remedy; empty if they get it, or need none."""
    of_settings = processes.variables.get(Component.CONTROLLER, {}).get(_TAGS, "")
    key = f"{_OWNED_BY}{facts.cluster_id}"
    if not facts.cluster_id or any(
        one.key == key for one in parse_tags(_access_point_tags(facts, of_settings))
    ):
        return ""
    return (
        f"access points do not get the tag {key}, because EFS does not accept it together with those of"
        f" {_TAGS}; use fewer tags, or a valid KUBE_EFS_CLUSTER_ID"
    )


def _access_point_tags(facts: InstallationFacts, of_settings: str) -> str:
    """The tags of the settings, the ownership tag, and those of the cluster, as far as EFS accepts them."""
    tags = {tag.key: tag for tag in parse_tags(of_settings)}
    if facts.cluster_id:
        tags = _with_tag(tags, Tag(key=f"{_OWNED_BY}{facts.cluster_id}", value="owned"))
    for tag in facts.resource_tags:
        if tag.key not in tags:
            tags = _with_tag(tags, tag)
    return render_tags(tags.values())


def _with_tag(tags: dict[str, Tag], tag: Tag) -> dict[str, Tag]:
    """With that tag, if the controller accepts it. With one tag that is not valid, it would not start."""
    more = {**tags, tag.key: tag}
    with suppress(InvalidSetting):
        parse_tags(render_tags(more.values()))
        return more
    return tags
