"""The command ``kube-efs top``."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Final

from lightkube import AsyncClient
from lightkube.config.kubeconfig import SingleConfig
from rich.console import Group, RenderableType
from rich.live import Live

from kube_efs.kube.client import connect
from kube_efs.kube.installations import find_installation
from kube_efs.model.names import Names, NameSet
from kube_efs.model.sizes import format_size
from kube_efs.report.formatting import format_growth
from kube_efs.report.loads import VolumeLoad, volume_loads
from kube_efs.report.options import VolumeOrder
from kube_efs.report.reading import read_cluster
from kube_efs.report.tables import line_of, make_console, table_of
from kube_efs.signals import run_until_stopped
from kube_efs.telemetry.logging import configure

# A user waits for the answer.
_PATIENCE_SECONDS: Final = 3.0
_UNKNOWN: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopOptions:
    """What is shown: ``limit`` volumes (0: all), again every ``watch_seconds`` unless that is None.

    With ``claims_in``, only volumes of claims in this namespace.
    """

    order: VolumeOrder
    claims_in: str | None
    limit: int
    as_json: bool
    watch_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """The volumes, the time, and the time of the oldest status of a node; empty without one."""

    time: str
    nodes_since: str
    volumes: tuple[VolumeLoad, ...]


async def show_top(
    config: SingleConfig, options: TopOptions, *, namespace: str | None, name_set: NameSet | None
) -> None:
    """Write the volumes that hold or carry most to standard output, perhaps until Ctrl-C.

    Raises KubeError when the cluster does not answer.
    """
    configure("WARNING")
    console = make_console()
    async with connect(config, patience_seconds=_PATIENCE_SECONDS) as client:
        names = await find_installation(client, namespace, name_set)
        if options.watch_seconds is None:
            found = await _read(client, names, options)
            if options.as_json:
                console.out(json.dumps(asdict(found), indent=2))
            else:
                console.print(render_top(found.volumes, nodes_since=found.nodes_since, limit=options.limit))
            return
        seconds = options.watch_seconds

        async def watch() -> None:
            with Live(console=console, auto_refresh=False) as live:
                while True:
                    found = await _read(client, names, options)
                    if options.as_json:
                        console.out(json.dumps(asdict(found)))
                    else:
                        shown = render_top(found.volumes, nodes_since=found.nodes_since, limit=options.limit)
                        live.update(shown, refresh=True)
                    await asyncio.sleep(seconds)

        await run_until_stopped(watch())


async def _read(client: AsyncClient, names: Names, options: TopOptions) -> _Reading:
    report = await read_cluster(client, names, with_pods=True)
    loads = volume_loads(report, options.order)
    if options.claims_in:
        loads = tuple(one for one in loads if one.volume.is_of(options.claims_in))
    return _Reading(
        time=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        nodes_since=min((node.time for node in report.nodes if node.time), default=""),
        volumes=loads,
    )


def render_top(loads: Sequence[VolumeLoad], *, nodes_since: str, limit: int) -> RenderableType:
    """The first volumes, the pods that use them, and what the figures mean."""
    shown = loads[:limit] if limit else loads
    columns = ["claim", "used", "a day", "sent", "received", "conns", "nodes", "pods"]
    rows = [
        (
            one.volume.claim or one.volume.name,
            _size(one.volume.usage.used_bytes if one.volume.usage else None),
            format_growth(one.volume),
            _size(one.sent_bytes) + ("*" if one.shares_tunnel and one.sent_bytes is not None else ""),
            _size(one.received_bytes),
            str(one.connections),
            str(len(one.nodes)),
            _UNKNOWN if one.pods is None else str(len(one.pods)),
        )
        for one in shown
    ]
    parts: list[RenderableType] = [table_of("Volumes", columns, rows)]
    pods = [
        (f"{pod.namespace}/{pod.name}", pod.node or _UNKNOWN, one.volume.claim)
        for one in shown
        for pod in one.pods or ()
    ]
    if pods:
        parts.append(table_of("Pods with these volumes", ["pod", "node", "claim"], pods))
    return Group(*parts, *(line_of(note, style="dim") for note in _notes(loads, shown, nodes_since)))


def _notes(loads: Sequence[VolumeLoad], shown: Sequence[VolumeLoad], nodes_since: str) -> list[str]:
    notes = []
    if len(shown) < len(loads):
        notes.append(f"{len(loads) - len(shown)} more volumes; --limit 0 shows all")
    if nodes_since:
        notes.append(f"bytes and connections since each agent started, as of {nodes_since} or later")
    if any(one.shares_tunnel and one.sent_bytes is not None for one in shown):
        notes.append("* of all volumes that share the tunnel")
    if any(one.pods is None for one in shown):
        notes.append("pods: this account may not list them")
    if shown and not any(one.volume.usage for one in shown):
        notes.append("sizes: not measured; see KUBE_EFS_USAGE_INTERVAL_SECONDS")
    return notes


def _size(size: int | None) -> str:
    return _UNKNOWN if size is None else format_size(size)
