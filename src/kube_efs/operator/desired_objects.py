"""The desired objects, from the administrator's settings and the properties of the cluster. No I/O."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from kube_efs.operator import injection
from kube_efs.operator.cluster_csi_driver import LogLevel
from kube_efs.operator.conditions import Component
from kube_efs.operator.extras import Extras, optional_objects
from kube_efs.operator.kinds import WORKLOADS
from kube_efs.operator.manifests import Manifest, RenderOptions, render_asset, render_manifests
from kube_efs.operator.platforms import Platform
from kube_efs.operator.tls_profiles import TlsProfile

# The namespace is the operator's own, and so another program owns it.
_LEFT_OUT: Final = frozenset({"Namespace"})
_BY_COMMAND: Final = {"controller": Component.CONTROLLER, "tunnel": Component.TUNNEL, "node": Component.NODE}
_BY_KIND: Final = {
    "ServiceMonitor": Component.MONITOR,
    "PodMonitor": Component.MONITOR,
    "PrometheusRule": Component.MONITOR,
    "CredentialsRequest": Component.CREDENTIALS,
}
# Tunnels before what mounts through them, and before the controller that gives them their targets.
_ORDER: Final = (
    Component.STATIC,
    Component.CREDENTIALS,
    Component.MONITOR,
    Component.TUNNEL,
    Component.NODE,
    Component.CONTROLLER,
)
_TOKEN_PATH: Final = "/var/run/secrets/openshift/serviceaccount/token"  # noqa: S105 - a path
_TAGS: Final = "KUBE_EFS_ACCESS_POINT_TAGS"
MANUAL: Final = "Manual"
# With this tag the cluster's end is the end of what it has made (OpenShift's installer).
OWNED_BY: Final = "kubernetes.io/cluster/"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """What the cluster is like.

    ``proxy`` has the variables of a proxy. ``ca_version`` and ``credentials_version`` are the versions of
    the ConfigMap and the Secret, empty when there are none. ``credentials_mode`` is None where nothing
    makes credentials for those who ask. ``tls`` is for what is served. With ``cluster_id`` access points
    are tagged. ``nodes`` counts those that can take the controller. ``extras`` come from the operator's
    settings.
    """

    proxy: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    ca_version: str = ""
    credentials_version: str = ""
    credentials_mode: str | None = None
    role_arn: str = ""
    tls: TlsProfile = field(default_factory=TlsProfile)
    cluster_id: str = ""
    nodes: int = 2
    extras: Extras = field(default_factory=Extras)

    @property
    def asks_for_credentials(self) -> bool:
        """Whether the cluster is to make credentials; in manual mode only for a role that is named."""
        return self.credentials_mode is not None and (self.credentials_mode != MANUAL or bool(self.role_arn))


def desired_objects(
    options: RenderOptions, facts: ClusterFacts, log_level: LogLevel = LogLevel.NORMAL
) -> tuple[Manifest, ...]:
    """Every object, in the order in which a cluster can take them."""
    rendered = [one for one in render_manifests(options) if one["kind"] not in _LEFT_OUT]
    additions = [*_additions(options, facts), *rendered]
    finished = [_finish(one, options, facts, log_level) for one in additions]
    return tuple(sorted(finished, key=lambda one: _ORDER.index(component_of(one))))


def component_of(manifest: Manifest) -> Component:
    """The component that an object belongs to; a workload's is known from its command."""
    if manifest["kind"] in WORKLOADS:
        containers = manifest["spec"]["template"]["spec"]["containers"]
        return _BY_COMMAND.get((containers[0].get("args") or [""])[0], Component.STATIC)
    return _BY_KIND.get(manifest["kind"], Component.STATIC)


def _additions(options: RenderOptions, facts: ClusterFacts) -> Iterator[Manifest]:
    values: dict[str, object] = {"namespace": options.namespace}
    is_openshift = options.platform is Platform.OPENSHIFT
    yield from render_asset("controller-metrics-tls" if is_openshift else "controller-metrics", values)
    yield from render_asset("rules", values)
    yield from optional_objects(facts.extras, options.namespace)
    if is_openshift:
        yield from render_asset("trusted-ca", values)
    if facts.asks_for_credentials:
        role = facts.role_arn or None
        token_path = _TOKEN_PATH if role else None
        yield from render_asset("credentials-request", {**values, "role_arn": role, "token_path": token_path})


def _finish(manifest: Manifest, options: RenderOptions, facts: ClusterFacts, log_level: LogLevel) -> Manifest:
    if manifest["kind"] not in WORKLOADS:
        return injection.labelled(manifest)
    component, namespace = component_of(manifest), options.namespace
    told = facts.extras.variables.get(component, {})
    manifest = injection.with_environment(manifest, told)
    marks = {}
    if facts.ca_version:
        manifest = injection.with_trusted_ca(manifest)
        marks[injection.mark_key(namespace, injection.TRUSTED_CA, "configmap")] = facts.ca_version
    manifest = injection.with_environment(manifest, facts.proxy)
    # A new tunnel pod interrupts its node's mounts, so how much is logged must not make one.
    if component is not Component.TUNNEL and log_level is not LogLevel.NORMAL:
        manifest = injection.with_environment(manifest, {"LOGGING_LEVEL": log_level.name_here})
    if component is Component.CONTROLLER:
        manifest = injection.with_replicas(manifest, max(1, min(2, facts.nodes)))
        if options.platform is Platform.OPENSHIFT:
            manifest = injection.with_metrics_certificate(manifest, facts.tls)
        if facts.cluster_id:
            owned = f"{OWNED_BY}{facts.cluster_id}:owned"
            tags = f"{told.get(_TAGS, '')} {owned}".strip()
            manifest = injection.with_environment(manifest, {_TAGS: tags})
        if facts.credentials_mode is not None or facts.credentials_version:
            manifest = injection.with_credentials(manifest)
        if facts.credentials_version:
            key = injection.mark_key(namespace, injection.CREDENTIALS_SECRET, "secret")
            marks[key] = facts.credentials_version
    return injection.labelled(injection.with_spec_hash(injection.with_marks(manifest, marks)))
