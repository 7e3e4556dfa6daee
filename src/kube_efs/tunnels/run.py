"""The process ``kube-efs tunnel``: the agent, its ConfigMap, its published status, its health endpoint.

The location of the node is stored on its disk. Mounts wait for a restarted agent, and instance metadata may
not answer while all processes of a node start. The location of a node never changes, so the stored one is
valid.
"""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path

import structlog
from lightkube import AsyncClient
from lightkube.resources.core_v1 import ConfigMap
from prometheus_client import CollectorRegistry

from kube_efs.aws.credential_sources import CredentialOptions, ProfileFiles
from kube_efs.aws.location import NodeLocation as InstanceLocation
from kube_efs.aws.location import resolve_location, until_valid
from kube_efs.aws.metadata import InstanceMetadata
from kube_efs.kube.client import connect, load_config
from kube_efs.kube.events import EventRecorder
from kube_efs.kube.watching import follow, only_object
from kube_efs.model.efs.ids import Region, ZoneName, parse_region, parse_subnet_id, parse_zone_name
from kube_efs.model.efs.targets import CONFIG_MAP_KEY, CONFIG_MAP_NAME, ZONES_KEY
from kube_efs.model.errors import AwsError, InvalidSetting, InvalidValue
from kube_efs.settings import TunnelSettings
from kube_efs.signals import run_until_stopped
from kube_efs.telemetry.duties import Duties
from kube_efs.telemetry.health import Health, HealthServer
from kube_efs.telemetry.metrics import ApiServerMetrics, TunnelMetrics, new_registry
from kube_efs.tunnels.agent import TargetDocuments, TunnelAgent
from kube_efs.tunnels.files import write_atomically
from kube_efs.tunnels.mount_targets import NodeLocation
from kube_efs.tunnels.notifications import MountTargetNotification, notify_by_events
from kube_efs.tunnels.options import ClientInfo, OnDemandOptions, TunnelOptions
from kube_efs.tunnels.reservations import PortRange
from kube_efs.tunnels.sockets.detection import IdlePolicy
from kube_efs.tunnels.status import TunnelsStatus
from kube_efs.tunnels.status_config_map import publish_status

log = structlog.get_logger()

COMPONENT = "kube-efs-tunnel"


async def run_tunnel(settings: TunnelSettings) -> None:
    """Run until SIGTERM or SIGINT; raises InvalidSetting and StunnelMissing at the start."""
    await run_until_stopped(_run(settings))
    log.info("tunnel-agent-stopped", node=settings.node_name)


async def _run(settings: TunnelSettings) -> None:
    node, registry = settings.node_name, new_registry()
    async with (
        connect(load_config(settings.kubeconfig), metrics=ApiServerMetrics(registry)) as client,
        EventRecorder(client, component=COMPONENT, host=node) as recorder,
    ):
        await _serve(settings, client, registry, notify_by_events(recorder, node))


async def _serve(
    settings: TunnelSettings,
    client: AsyncClient,
    registry: CollectorRegistry,
    notify: Callable[[MountTargetNotification], None],
) -> None:
    shown = _HealthState()
    health = HealthServer(
        settings.health_host,
        settings.health_port,
        registry,
        liveness=shown.liveness,
        readiness=shown.readiness,
        pages={"/tunnels": lambda: asdict(shown.status())},
    )
    duties = Duties(registry)
    # Before the agent exists: to find the location may take long, and the kubelet checks the health then too.
    async with health:
        metrics = TunnelMetrics(registry)
        agent = shown.agent = TunnelAgent(await _options(settings), metrics, notify=notify, duties=duties)
        log.info("tunnel-agent-started", node=settings.node_name, health_port=health.port)
        publishing = asyncio.create_task(
            duties.keep("status publishing", lambda: _publish(client, agent, settings))
        )
        try:
            await agent.run(_Documents(client, settings.namespace))
        finally:
            publishing.cancel()
            await asyncio.gather(publishing, return_exceptions=True)


@dataclass(slots=True)
class _HealthState:
    """The answers of the health endpoint, also before the agent exists."""

    agent: TunnelAgent | None = None

    def liveness(self) -> Health:
        return self.agent.liveness() if self.agent else Health()

    def readiness(self) -> Health:
        return (
            self.agent.readiness()
            if self.agent
            else Health.failing("the location of the node is not known yet")
        )

    def status(self) -> TunnelsStatus:
        return self.agent.status() if self.agent else TunnelsStatus()


async def _publish(client: AsyncClient, agent: TunnelAgent, settings: TunnelSettings) -> None:
    await publish_status(
        client,
        agent.status,
        namespace=settings.namespace,
        node=settings.node_name,
        interval_seconds=min(1.0, settings.probe_interval_seconds),
    )


async def _options(settings: TunnelSettings) -> TunnelOptions:
    location = await _find_location(settings)
    return TunnelOptions(
        region=location.region,
        dns_suffix=settings.dns_suffix,
        location=NodeLocation(
            subnets=frozenset(location.subnets),
            zone=location.zone,
            zone_id=settings.zone_id or (ZoneName(location.zone_id) if location.zone_id else None),
        ),
        stunnel_path=settings.stunnel_path,
        conf_path=settings.stunnel_conf_path,
        ca_file=settings.ca_file,
        state_dir=settings.state_dir,
        probe_interval_seconds=settings.probe_interval_seconds,
        connect_timeout_seconds=settings.connect_timeout_seconds,
        on_demand=_on_demand_options(settings, location.region),
    )


async def _find_location(settings: TunnelSettings) -> InstanceLocation:
    """The location of this node; settings have priority over metadata and over the stored location."""
    conf = settings.stunnel_conf_path
    path = (settings.state_dir or conf.parent) / f"{conf.stem}.place.json"
    async with InstanceMetadata(settings.metadata_endpoint) as metadata:

        async def request() -> InstanceLocation:
            return await resolve_location(
                metadata, region=settings.region, zone=settings.zone, subnets=settings.subnets
            )

        location = await until_valid(lambda: find_location(path, request))
    return replace(
        location,
        region=settings.region or location.region,
        zone=settings.zone or location.zone,
        subnets=tuple(settings.subnets) or location.subnets,
        zone_id=None if settings.zone else location.zone_id,
    )


async def find_location(path: Path, request: Callable[[], Awaitable[InstanceLocation]]) -> InstanceLocation:
    """The location from ``request``, or the stored one if the request fails.

    Raises InvalidSetting and AwsError, as ``request`` does, if no location is stored at ``path``.
    """
    known = await asyncio.to_thread(_load_location, path)
    try:
        location = await request()
    except (InvalidSetting, AwsError) as error:
        if known is None:
            raise
        log.warning("stored-location-used", region=known.region, zone=known.zone, reason=str(error))
        return known
    if location != known:
        await asyncio.to_thread(_save_location, path, location)
    return location


def _load_location(path: Path) -> InstanceLocation | None:
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        return InstanceLocation(
            region=parse_region(state["region"]),
            zone=parse_zone_name(state["zone"]),
            subnets=tuple(map(parse_subnet_id, state["subnets"])),
            zone_id=parse_zone_name(state["zone_id"]) if state["zone_id"] else None,
            instance_id=state["instance_id"],
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, InvalidValue) as error:
        log.warning("stored-location-ignored", path=str(path), reason=str(error) or type(error).__name__)
        return None


def _save_location(path: Path, location: InstanceLocation) -> None:
    try:
        write_atomically(path, json.dumps(asdict(location)))
    except OSError as error:
        log.warning("location-not-saved", path=str(path), reason=error.strerror)


def _on_demand_options(settings: TunnelSettings, region: Region) -> OnDemandOptions | None:
    if settings.tunnel_socket is None:
        return None
    first, last = settings.tunnel_ports
    return OnDemandOptions(
        socket_path=settings.tunnel_socket,
        node=settings.node_name,
        credentials=CredentialOptions(
            region=region,
            files=ProfileFiles.of(os.environ),
            environment=os.environ,
            metadata_endpoint=settings.metadata_endpoint,
        ),
        client_info=ClientInfo.of("k8s", version("kube-efs")),
        ports=PortRange(first=first, last=last),
        idle=IdlePolicy(seconds=settings.tunnel_idle_seconds),
    )


@dataclass(frozen=True, slots=True)
class _Documents(AsyncIterable[TargetDocuments]):
    """The documents of the ConfigMap: for each iteration the current one, then each change."""

    client: AsyncClient
    namespace: str

    def __aiter__(self) -> AsyncGenerator[TargetDocuments, None]:
        return _documents(self.client, self.namespace)


async def _documents(client: AsyncClient, namespace: str) -> AsyncGenerator[TargetDocuments, None]:
    """The documents; a deleted ConfigMap is no document, so the nodes continue with the last one."""
    fields = {"metadata.name": CONFIG_MAP_NAME}
    async for change in follow(client, ConfigMap, namespace=namespace, fields=fields):
        found = only_object(change)
        if found is None:
            log.warning("targets-missing", config_map=CONFIG_MAP_NAME, namespace=namespace)
            continue
        data = found.data or {}
        yield TargetDocuments(targets=data.get(CONFIG_MAP_KEY, ""), zones=data.get(ZONES_KEY, ""))
