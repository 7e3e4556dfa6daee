"""As many volumes as a large node has."""

import asyncio
import json
import time
from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path

from tests.kernel.guest.kernel import nfs_mount
from tests.kernel.guest.machine import Machine
from tests.kernel.guest.node import Node, start
from tests.kernel.guest.work import run, working

from kube_efs.model.csi.volume_handles import VolumeHandle
from kube_efs.model.efs.directories import parse_directory
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.tunnels.reservations import Holder

# An access point has a tunnel and an NFS server of its own, directories share one.
_ACCESS_POINTS = 12
_DIRECTORIES = 48
_AT_ONCE = 6
# The kernel waits again for about as long as the outage lasted, and guests are slow.
_WRITTEN_SECONDS = 120.0


async def sixty_volumes_continue_when_agent_and_stunnel_are_killed(machine: Machine) -> None:
    fs = await machine.create_file_system()
    volumes = _make_volumes(machine, fs)
    # Each probe of a tunnel is a TLS handshake with this very process.
    async with machine.node(KUBE_EFS_PROBE_INTERVAL_SECONDS="10") as node:
        targets = await _publish(node, volumes)
        holders = await _holders(node)
        assert (len(await node.tunnels()), len(holders)) == (_ACCESS_POINTS + 1, 60)
        before = {target: nfs_mount(target) for target in targets}
        async with working(targets[0] / "work", machine.efs.path(fs, "/0/work")) as work:
            await node.tunnel.kill()
            await _write(targets, "without-the-agent")
            await start(node.tunnel)
            await _write(targets, "with-the-next-one")
            # Nobody has so much as connected again.
            assert {target: nfs_mount(target) for target in targets} == before

            await node.tunnel.kill()
            node.kill_data_planes()
            await start(node.tunnel)
            began = time.monotonic()
            await _write(targets, "with-the-next-two")
            written = time.monotonic() - began
        assert await _holders(node) == holders
        starts, loads, served = _read_last_agent(node.tunnel.log_file)
        machine.tell(served_seconds=served, written_seconds=written, worker_waited_seconds=work.longest)
        # Each stunnel was started once, and has loaded all its tunnels at once.
        assert starts == len(loads)
        assert loads == [("stunnel-1.conf", _ACCESS_POINTS + 1), ("stunnel.conf", 1)]
    for directory in volumes:
        for name in ("without-the-agent", "with-the-next-one", "with-the-next-two"):
            assert machine.efs.path(fs, f"{directory}/{name}").read_text() == f"{name}\n"


def _make_volumes(machine: Machine, fs: FileSystemId) -> dict[str, VolumeHandle]:
    """Create volumes; returns them by directory."""
    volumes = {
        f"/{number}": machine.efs.create_access_point(fs, f"/{number}", uid=1001)
        for number in range(_ACCESS_POINTS)
    }
    for number in range(_ACCESS_POINTS, _ACCESS_POINTS + _DIRECTORIES):
        machine.efs.path(fs, f"/{number}").mkdir()
        directory = parse_directory(f"/{number}")
        volumes[f"/{number}"] = VolumeHandle(file_system_id=fs, directory=directory)
    return volumes


async def _publish(node: Node, volumes: Mapping[str, VolumeHandle]) -> list[Path]:
    """Publish each for its own pod, in this order."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def published(directory: str, volume: VolumeHandle) -> Path:
        async with slots:
            return await node.publish(volume, f"pod{directory}")

    return await asyncio.gather(*(published(*one) for one in volumes.items()))


async def _holders(node: Node) -> frozenset[Holder]:
    return frozenset(one for tunnel in await node.tunnels() for one in tunnel.holders)


async def _write(targets: Collection[Path], name: str) -> None:
    """Write a file of that name on each volume, concurrently."""
    each = " ".join(f"echo {name} >{target}/{name} &" for target in targets)
    await run("sh", "-c", f"{each} wait", seconds=_WRITTEN_SECONDS)


def _read_last_agent(log_file: Path) -> tuple[int, list[tuple[str, int]], float]:
    """The starts of stunnels by the last agent, their loads, and the seconds until the end of the last load.

    A load has the name of the configuration and the number of its tunnels.
    """
    entries = [json.loads(line) for line in log_file.read_text().splitlines() if line.startswith("{")]
    number = max(number for number, one in enumerate(entries) if one["event"] == "tunnel-agent-started")
    entries = entries[number:]
    loads = [one for one in entries if one["event"] == "stunnel-configured"]
    began, ended = (datetime.fromisoformat(one["timestamp"]) for one in (entries[0], loads[-1]))
    return (
        sum(one["event"] == "stunnel-started" for one in entries),
        sorted((one["configuration"], one["tunnels"]) for one in loads),
        (ended - began).total_seconds(),
    )
