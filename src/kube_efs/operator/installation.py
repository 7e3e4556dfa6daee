"""The desired objects, from the administrator's settings and the properties of the cluster. No I/O."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from kube_efs.operator import injecting
from kube_efs.operator.conditions import Part
from kube_efs.operator.driver import LogLevel
from kube_efs.operator.extras import Extras, extra_objects
from kube_efs.operator.kinds import WORKLOADS
from kube_efs.operator.manifests import Manifest, RenderOptions, render_asset, render_manifests
from kube_efs.operator.platforms import Platform
from kube_efs.operator.tls_profiles import TlsTerms

# The namespace is the operator's own, and so another program owns it.
_LEFT_OUT: Final = frozenset({"Namespace"})
_BY_COMMAND: Final = {"controller": Part.CONTROLLER, "tunnel": Part.TUNNEL, "node": Part.NODE}
_BY_KIND: Final = {
    "ServiceMonitor": Part.MONITOR,
    "PodMonitor": Part.MONITOR,
    "PrometheusRule": Part.MONITOR,
    "CredentialsRequest": Part.CREDENTIALS,
}
# Tunnels before what mounts through them, and before the controller that gives them their targets.
_ORDER: Final = (Part.STATIC, Part.CREDENTIALS, Part.MONITOR, Part.TUNNEL, Part.NODE, Part.CONTROLLER)
_TOKEN_PATH: Final = "/var/run/secrets/openshift/serviceaccount/token"  # noqa: S105 - a path
_TAGS: Final = "KUBE_EFS_ACCESS_POINT_TAGS"
MANUAL: Final = "Manual"
# With this tag the cluster's end is the end of what it has made (OpenShift's installer).
OWNED_BY: Final = "kubernetes.io/cluster/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
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
    tls: TlsTerms = field(default_factory=TlsTerms)
    cluster_id: str = ""
    nodes: int = 2
    extras: Extras = field(default_factory=Extras)

    @property
    def asks_for_credentials(self) -> bool:
        """Whether the cluster is to make credentials; in manual mode only for a role that is named."""
        return self.credentials_mode is not None and (self.credentials_mode != MANUAL or bool(self.role_arn))


def wanted_objects(
    options: RenderOptions, around: Surroundings, log_level: LogLevel = LogLevel.NORMAL
) -> tuple[Manifest, ...]:
    """Every object, in the order in which a cluster can take them."""
    rendered = [one for one in render_manifests(options) if one["kind"] not in _LEFT_OUT]
    additions = [*_additions(options, around), *rendered]
    finished = [_finish(one, options, around, log_level) for one in additions]
    return tuple(sorted(finished, key=lambda one: _ORDER.index(part_of(one))))


def part_of(manifest: Manifest) -> Part:
    """The part that an object belongs to; a workload's is known from its command."""
    if manifest["kind"] in WORKLOADS:
        containers = manifest["spec"]["template"]["spec"]["containers"]
        return _BY_COMMAND.get((containers[0].get("args") or [""])[0], Part.STATIC)
    return _BY_KIND.get(manifest["kind"], Part.STATIC)


def _additions(options: RenderOptions, around: Surroundings) -> Iterator[Manifest]:
    values: dict[str, object] = {"namespace": options.namespace}
    is_openshift = options.platform is Platform.OPENSHIFT
    yield from render_asset("controller-metrics-tls" if is_openshift else "controller-metrics", values)
    yield from render_asset("rules", values)
    yield from extra_objects(around.extras, options.namespace)
    if is_openshift:
        yield from render_asset("trusted-ca", values)
    if around.asks_for_credentials:
        role = around.role_arn or None
        token_path = _TOKEN_PATH if role else None
        yield from render_asset("credentials-request", {**values, "role_arn": role, "token_path": token_path})


def _finish(
    manifest: Manifest, options: RenderOptions, around: Surroundings, log_level: LogLevel
) -> Manifest:
    if manifest["kind"] not in WORKLOADS:
        return injecting.labelled(manifest)
    part, namespace = part_of(manifest), options.namespace
    told = around.extras.variables.get(part, {})
    manifest = injecting.with_environment(manifest, told)
    marks = {}
    if around.ca_version:
        manifest = injecting.with_trusted_ca(manifest)
        marks[injecting.mark_key(namespace, injecting.TRUSTED_CA, "configmap")] = around.ca_version
    manifest = injecting.with_environment(manifest, around.proxy)
    # A new tunnel pod interrupts its node's mounts, so how much is logged must not make one.
    if part is not Part.TUNNEL and log_level is not LogLevel.NORMAL:
        manifest = injecting.with_environment(manifest, {"LOGGING_LEVEL": log_level.name_here})
    if part is Part.CONTROLLER:
        manifest = injecting.with_replicas(manifest, max(1, min(2, around.nodes)))
        if options.platform is Platform.OPENSHIFT:
            manifest = injecting.with_metrics_certificate(manifest, around.tls)
        if around.cluster_id:
            owned = f"{OWNED_BY}{around.cluster_id}:owned"
            tags = f"{told.get(_TAGS, '')} {owned}".strip()
            manifest = injecting.with_environment(manifest, {_TAGS: tags})
        if around.credentials_mode is not None or around.credentials_version:
            manifest = injecting.with_credentials(manifest)
        if around.credentials_version:
            key = injecting.mark_key(namespace, injecting.CREDENTIALS_SECRET, "secret")
            marks[key] = around.credentials_version
    return injecting.labelled(injecting.with_spec_hash(injecting.with_marks(manifest, marks)))
