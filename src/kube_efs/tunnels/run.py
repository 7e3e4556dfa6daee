"""The process ``kube-efs tunnel``: the agent, its ConfigMap, its published status, its health endpoint.

The location of the node is stored on its disk. Mounts wait for a restarted agent, and neither the instance
metadata nor the API server may answer while all processes of a node start. The location of a node never
changes, so the stored one is valid.
"""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Final, cast

import structlog
from lightkube import AsyncClient
from lightkube.resources.core_v1 import ConfigMap
from prometheus_client import CollectorRegistry

from kube_efs.aws.credential_sources import CredentialOptions, ProfileFiles
from kube_efs.aws.metadata import InstanceMetadata
from kube_efs.kube.client import connect, load_config
from kube_efs.kube.events import EventRecorder
from kube_efs.kube.watching import follow, only_object
from kube_efs.location import LocationSources, Part, ProcessLocation, find_location
from kube_efs.model.efs.ids import Region, parse_region, parse_subnet_id, parse_zone_name
from kube_efs.model.efs.targets import CONFIG_MAP_KEY, S3_FILES_KEY, UNUSED_KEY, ZONES_KEY
from kube_efs.model.errors import InvalidValue
from kube_efs.model.names import Names
from kube_efs.settings.tunnel import TunnelSettings
from kube_efs.signals import run_until_stopped
from kube_efs.telemetry.duties import Duties
from kube_efs.telemetry.health import Health, HealthServer
from kube_efs.telemetry.metrics import ApiServerMetrics, TunnelMetrics, new_registry
from kube_efs.telemetry.traces import tracing
from kube_efs.tunnels.agent import TargetDocuments, TunnelAgent
from kube_efs.tunnels.authorities import find_hashed_directories
from kube_efs.tunnels.data_plane_choice import choose_data_plane
from kube_efs.tunnels.files import write_atomically
from kube_efs.tunnels.mount_targets import NodeLocation
from kube_efs.tunnels.notifications import Notification, notify_by_events
from kube_efs.tunnels.options import (
    AMAZON_CA_FILE,
    SYSTEM_CA_FILES,
    ClientInfo,
    OnDemandOptions,
    TunnelOptions,
)
from kube_efs.tunnels.relay.self_connection import kernel_tls_obstacle
from kube_efs.tunnels.reservations import PortRange
from kube_efs.tunnels.sockets.detection import IdlePolicy
from kube_efs.tunnels.status import LocationStatus, TunnelsStatus
from kube_efs.tunnels.status_config_map import publish_status
from kube_efs.tunnels.stunnel.fips import check_fips_mode, is_node_in_fips_mode
from kube_efs.tunnels.stunnel.process import find_stunnel

log = structlog.get_logger()

COMPONENT = "kube-efs-tunnel"
_ZONE_ID_SECONDS: Final = (10.0, 3600.0)


async def run_tunnel(settings: TunnelSettings) -> None:
    """Run until SIGTERM or SIGINT; raises InvalidSetting and StunnelMissing at the start."""
    with tracing("kube-efs-tunnel", node=settings.node_name):
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
    notify: Callable[[Notification], None],
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
        options = await _options(settings, client)
        agent = shown.agent = TunnelAgent(options, metrics, notify=notify, duties=duties)
        log.info("tunnel-agent-started", node=settings.node_name, health_port=health.port)
        tasks = [
            asyncio.create_task(duties.keep("status publishing", lambda: _publish(client, agent, settings))),
            asyncio.create_task(
                duties.keep(
                    "zone ID", lambda: find_zone_id(options.location, agent.set_location, settings, client)
                )
            ),
        ]
        try:
            await agent.run(_Documents(client, settings.names))
        finally:
            for task in tasks:
                task.cancel()
            # The end of the publishing removes the status, which needs the client.
            await asyncio.gather(*tasks, return_exceptions=True)


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
        names=settings.names,
        node=settings.node_name,
        interval_seconds=min(1.0, settings.probe_interval_seconds),
        spread_seconds=settings.probe_interval_seconds / 2,
    )


async def _options(settings: TunnelSettings, client: AsyncClient) -> TunnelOptions:
    async with InstanceMetadata(settings.metadata_endpoint) as metadata:
        location = await find_stored_location(_location_path(settings), settings, metadata, client)
    # find_location() returns nothing without the required part.
    region = cast("Region", location.region)
    fips_required_by = fips_mode_required_by(settings, node_is_in_it=is_node_in_fips_mode())
    options = TunnelOptions(
        region=region,
        dns_suffix=settings.dns_suffix,
        location=_node_location(location),
        shown_location=LocationStatus(
            region=region,
            region_source=location.region_source or "",
            zone=location.zone or "",
            zone_source=location.zone_source or "",
        ),
        stunnel_path=settings.stunnel_path,
        fips=bool(fips_required_by),
        conf_path=settings.stunnel_conf_path,
        ca_file=settings.ca_file,
        system_ca_file=next(filter(Path.is_file, SYSTEM_CA_FILES), SYSTEM_CA_FILES[0]),
        hashed_directories=await asyncio.to_thread(
            find_hashed_directories, (settings.ca_file or AMAZON_CA_FILE, *SYSTEM_CA_FILES)
        ),
        ca_directory=settings.ca_directory,
        state_dir=settings.state_dir,
        probe_interval_seconds=settings.probe_interval_seconds,
        connect_timeout_seconds=settings.connect_timeout_seconds,
        on_demand=_on_demand_options(settings, region),
    )
    data_plane = await choose_data_plane(
        settings.data_plane,
        fips_required_by=fips_required_by,
        socket_path=options.relay_socket,
        find_obstacle=kernel_tls_obstacle,
    )
    log.info("data-plane-chosen", data_plane=data_plane.name, reason=data_plane.reason)
    if fips_required_by:
        await check_fips_mode(find_stunnel(settings.stunnel_path), required_by=fips_required_by)
        log.info("fips-mode-used", required_by=fips_required_by)
    return replace(options, data_plane=data_plane)


def fips_mode_required_by(settings: TunnelSettings, *, node_is_in_it: bool) -> str:
    """What requires FIPS mode of the tunnels; empty if nothing does."""
    if settings.fips is not None:
        return "FIPS_ENABLED" if settings.fips else ""
    if settings.uses_fips_endpoints:
        return "AWS_USE_FIPS_ENDPOINT"
    return "the node (crypto.fips_enabled)" if node_is_in_it else ""


async def find_stored_location(
    path: Path, settings: TunnelSettings, metadata: InstanceMetadata, client: AsyncClient | None
) -> ProcessLocation:
    """The location of this node, which is stored at ``path`` for the next agent; raises InvalidSetting."""
    stored = await asyncio.to_thread(_load_location, path)
    sources = LocationSources(
        settings=settings, node_name=settings.node_name, metadata=metadata, client=client, stored=stored
    )
    wanted = (Part.ZONE, Part.ZONE_ID, Part.SUBNETS)
    location = await find_location(sources, required=Part.REGION, also=wanted)
    if location != stored:
        await asyncio.to_thread(_save_location, path, location)
    return location


async def find_zone_id(
    known: NodeLocation,
    set_location: Callable[[NodeLocation], None],
    settings: TunnelSettings,
    client: AsyncClient | None,
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Ask for the ID of the zone again until a source has it, with growing pauses.

    An agent starts without it, because most volumes do not need it.
    """
    pause, longest = _ZONE_ID_SECONDS
    while known.zone_id is None:
        await sleep(pause)
        pause = min(pause * 2, longest)
        async with InstanceMetadata(settings.metadata_endpoint) as metadata:
            found = await find_stored_location(_location_path(settings), settings, metadata, client)
        if found.zone_id is not None:
            # What only another source has stays: it may not have answered this time.
            now = _node_location(found)
            known = replace(now, subnets=now.subnets or known.subnets, zone=now.zone or known.zone)
            set_location(known)


def _location_path(settings: TunnelSettings) -> Path:
    conf = settings.stunnel_conf_path
    return (settings.state_dir or conf.parent) / f"{conf.stem}.place.json"


def _node_location(found: ProcessLocation) -> NodeLocation:
    return NodeLocation(subnets=frozenset(found.subnets), zone=found.zone, zone_id=found.zone_id)


def _load_location(path: Path) -> ProcessLocation | None:
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        return ProcessLocation(
            region=parse_region(state["region"]),
            zone=parse_zone_name(state["zone"]) if state["zone"] else None,
            zone_id=parse_zone_name(state["zone_id"]) if state["zone_id"] else None,
            subnets=tuple(map(parse_subnet_id, state["subnets"])),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, InvalidValue) as error:
        log.warning("stored-location-ignored", path=str(path), reason=str(error) or type(error).__name__)
        return None


def _save_location(path: Path, location: ProcessLocation) -> None:
    state = {
        "region": location.region,
        "zone": location.zone,
        "zone_id": location.zone_id,
        "subnets": location.subnets,
        # An earlier version needs this key.
        "instance_id": location.node_id,
    }
    try:
        write_atomically(path, json.dumps(state))
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
            pod_identity_endpoint=settings.pod_identity_endpoint,
        ),
        client_info=ClientInfo.of("k8s", version("kube-efs")),
        ports=PortRange(first=first, last=last),
        idle=IdlePolicy(seconds=settings.tunnel_idle_seconds),
    )


@dataclass(frozen=True, slots=True)
class _Documents(AsyncIterable[TargetDocuments]):
    """The documents of the ConfigMap: for each iteration the current one, then each change."""

    client: AsyncClient
    names: Names

    def __aiter__(self) -> AsyncGenerator[TargetDocuments, None]:
        return _documents(self.client, self.names)


async def _documents(client: AsyncClient, names: Names) -> AsyncGenerator[TargetDocuments, None]:
    """The documents; a deleted ConfigMap is no document, so the nodes continue with the last one."""
    fields = {"metadata.name": names.config_map}
    async for change in follow(client, ConfigMap, namespace=names.namespace, fields=fields):
        found = only_object(change)
        if found is None:
            # Expected in an installation with the CSI driver alone.
            log.info("targets-missing", config_map=names.config_map, namespace=names.namespace)
            continue
        data = found.data or {}
        yield TargetDocuments(
            targets=data.get(CONFIG_MAP_KEY, ""),
            zones=data.get(ZONES_KEY, ""),
            unused=data.get(UNUSED_KEY, ""),
            s3_files=data.get(S3_FILES_KEY, ""),
        )
