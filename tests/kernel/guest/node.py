"""A node of a cluster: the processes ``kube-efs tunnel`` and ``kube-efs node``, and calls of a kubelet."""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import grpc
import grpc.aio
import psutil
from prometheus_client.parser import text_string_to_metric_families
from tests.kernel.guest.efs import GuestEfs
from tests.kernel.guest.work import run

from fake_efs.process import Starter
from kube_efs.csi.protocol import csi_pb2 as csi
from kube_efs.csi.protocol.csi_pb2_grpc import NodeStub
from kube_efs.model.csi.volume_handles import VolumeHandle
from kube_efs.model.names import OPENSHIFT_EFS_STUNNEL
from kube_efs.mounts.mountinfo import read_mountinfo
from kube_efs.tunnels.api.client import TunnelOnDemand, connect_tunnels
from kube_efs.tunnels.options import relay_socket
from kube_efs.tunnels.sockets.ports import listening_ports
from kube_efs.tunnels.stunnel.assignment import shard_number
from kube_efs_lab.program import Program

IDLE_SECONDS = 10.0
_CALL_SECONDS = 120.0
_START_SECONDS = 120.0
_ATTEMPTS = 20
_PAUSE_SECONDS = 1.0
_INHERITED = frozenset({"HOME", "LANG", "PATH", "PYTHONDONTWRITEBYTECODE"})

Modes = csi.VolumeCapability.AccessMode


class Node:
    """The node while its context is open; at the end no mount and no process is left.

    Logs are in ``logs``, everything else in ``folder``. ``settings`` override those of both processes.
    """

    def __init__(
        self,
        folder: Path,
        logs: Path,
        efs: GuestEfs,
        kubeconfig: Path,
        settings: Mapping[str, str],
    ) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.conf = self.state / "stunnel.conf"
        self.reservations = self.state / "stunnel.demands.json"
        self.pods = folder / "pods"
        self._socket = folder / "tunnel.sock"
        common = {
            **{name: value for name, value in os.environ.items() if name in _INHERITED},
            "KUBECONFIG": str(kubeconfig),
            "POD_NAMESPACE": OPENSHIFT_EFS_STUNNEL.namespace,
            "NODE_NAME": "node-1",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": efs.metadata.url,
            "KUBE_EFS_HEALTH_HOST": "127.0.0.1",
            "KUBE_EFS_HEALTH_PORT": "0",
            "KUBE_EFS_TUNNEL_SOCKET": str(self._socket),
        }
        tunnel = {
            "STUNNEL_CONF_PATH": str(self.conf),
            "KUBE_EFS_CA_FILE": str(efs.ca_file),
            "KUBE_EFS_PROBE_INTERVAL_SECONDS": "2",
            "KUBE_EFS_TUNNEL_IDLE_SECONDS": f"{IDLE_SECONDS:g}",
        }
        driver = {"CSI_ENDPOINT": f"unix://{folder}/csi.sock", "KUBE_EFS_REMOVE_STARTUP_TAINT": "false"}
        self.tunnel = Program("tunnel", {**common, **tunnel, **settings}, logs / "tunnel.log")
        self.driver = Program("node", {**common, **driver, **settings}, logs / "node.log")
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.state.mkdir(parents=True)
        # A disk of its own, which can be full.
        await run("mount", "-t", "tmpfs", "-o", "size=4m", "state", str(self.state))
        self.pods.mkdir()
        channel = grpc.aio.insecure_channel(f"unix:{self.folder}/csi.sock")
        # In quotes: stubs have types for type checkers only.
        self._stub: Any = NodeStub(await self._stack.enter_async_context(channel))
        self.tunnels_client = await self._stack.enter_async_context(connect_tunnels(self._socket))
        self._stack.push_async_callback(self._clean)
        try:
            for program in (self.tunnel, self.driver):
                await start(program)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def publish(
        self,
        volume: VolumeHandle,
        name: str,
        *,
        read_only: bool = False,
        flags: Sequence[str] = (),
        context: Mapping[str, str] | None = None,
        mode: Modes.Mode.ValueType = Modes.MULTI_NODE_MULTI_WRITER,
    ) -> Path:
        """Publish the volume for the pod of that name; returns the target.

        Retries as a kubelet does while the node is unavailable. Raises grpc.aio.AioRpcError.
        """
        target = self.pods / name / "mount"
        request = csi.NodePublishVolumeRequest(
            volume_id=str(volume),
            target_path=str(target),
            volume_capability=csi.VolumeCapability(
                mount=csi.VolumeCapability.MountVolume(mount_flags=flags),
                access_mode=Modes(mode=mode),
            ),
            readonly=read_only,
            volume_context=context or {},
        )
        for attempt in range(_ATTEMPTS):
            try:
                await self._stub.NodePublishVolume(request, timeout=_CALL_SECONDS, wait_for_ready=True)
                break
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE or attempt + 1 == _ATTEMPTS:
                    raise
            await asyncio.sleep(_PAUSE_SECONDS)
        return target

    async def unpublish(self, volume: VolumeHandle, target: Path) -> None:
        """Unpublish the volume, as after the end of the pod; raises grpc.aio.AioRpcError."""
        request = csi.NodeUnpublishVolumeRequest(volume_id=str(volume), target_path=str(target))
        await self._stub.NodeUnpublishVolume(request, timeout=_CALL_SECONDS, wait_for_ready=True)

    async def replace_tunnel_agent(self, starter: Starter | None = None, /, **settings: str) -> None:
        """Replace the tunnel agent by one with these other settings, or by one that is started otherwise."""
        await self.tunnel.stop()
        self.tunnel = self.tunnel.replica(self.tunnel.log_file, settings, starter=starter)
        await start(self.tunnel)

    async def tunnels(self) -> tuple[TunnelOnDemand, ...]:
        """The tunnels on demand."""
        return await self.tunnels_client.tunnels()

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric of the tunnel agent over samples with these labels."""
        url = f"{self.tunnel.health_url}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            text = await answer.text()
        families = text_string_to_metric_families(text)
        samples = (sample for family in families for sample in family.samples)
        return sum(one.value for one in samples if one.name == name and labels.items() <= one.labels.items())

    def data_planes(self) -> dict[Path, int]:
        """The pid of each stunnel by its configuration, and of the relay by its socket."""
        found = {Path(command[-1]): pid for pid, command in _commands() if command[1:]}
        return {path: pid for path, pid in sorted(found.items()) if self._is_of_data_plane(path)}

    def _is_of_data_plane(self, path: Path) -> bool:
        return path == relay_socket(self.conf) or shard_number(self.conf, path) is not None

    def data_plane_at(self, port: int) -> int:
        """The pid of the stunnel or relay that listens on the port."""
        [pid] = [pid for pid in self.data_planes().values() if port in listening_ports(pid)]
        return pid

    def kill_data_planes(self) -> None:
        """Kill all stunnels, and the relay."""
        for pid in self.data_planes().values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def _clean(self) -> None:
        for entry in read_mountinfo():
            if entry.mount_point.is_relative_to(self.pods):
                await run("umount", "-f", "-l", str(entry.mount_point))
        for program in (self.driver, self.tunnel):
            await program.stop()
        self.kill_data_planes()


async def start(program: Program) -> None:
    """Start the process, and wait until it is ready, also on a slow guest."""
    await program.start(timeout_seconds=_START_SECONDS)
    await program.ready(timeout_seconds=_START_SECONDS)


def defunct_children(pid: int) -> list[str]:
    """The names of the process's defunct children."""
    children = psutil.Process(pid).children(recursive=True)
    return [one.name() for one in children if one.status() == psutil.STATUS_ZOMBIE]


def _commands() -> list[tuple[int, list[str]]]:
    found = []
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if process.name.isdigit():
                command = (process / "cmdline").read_bytes().decode().rstrip("\0").split("\0")
                found.append((int(process.name), command))
    return found
