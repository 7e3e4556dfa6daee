"""The embedded cluster as one thing: an API server, its controllers, a node, an EFS, and kube-efs on them.

kube-efs runs as the two processes that it is in a real cluster. They are told where everything is by their
ordinary settings, and cannot tell the difference.
"""

import asyncio
import os
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog
from lightkube import AsyncClient

from kube_efs.kube.client import connect, load_config
from kube_efs.local.control_plane import ControlPlane, EmbeddedControlPlane
from kube_efs.local.efs.service import EmbeddedEfs
from kube_efs.local.node import IMAGE, make_kubelet
from kube_efs.local.ports import reserved_base_port
from kube_efs.local.program import Program
from kube_efs.model.ids import FileSystemId
from kube_efs.settings import DEFAULT_NAMESPACE

log = structlog.get_logger(__name__)

NODE = "embedded"
NAMESPACE = DEFAULT_NAMESPACE
DIRECTORY_PROVISIONER = "example.com/aws-efs"
_INHERITED = frozenset({"HOME", "LANG", "PATH", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "TMPDIR"})
# What people would wait for is made faster than it is at AWS's prices and scale.
_SETTINGS = {
    "LOGGING_LEVEL": "INFO",
    "EFS_POLLING_INTERVAL": "1",
    "PROVISION_BACKOFF_INTERVAL": "2",
    "KUBE_EFS_PROBE_INTERVAL_SECONDS": "1",
    "KUBE_EFS_HEALTH_HOST": "127.0.0.1",
    "KUBE_EFS_HEALTH_PORT": "0",
    "POD_NAMESPACE": NAMESPACE,
    "NODE_NAME": NODE,
    "WORKER_IMAGE": IMAGE,
    "KUBE_EFS_BACKENDS": "tunnel,directory,csi",
}


class EmbeddedCluster:
    """A cluster on loopback while its context is open; everything it writes is below ``folder``.

    ``file_systems`` are the names of those that are there at the start, ``file_system_ids`` their ids in
    this order. ``settings`` override those of kube-efs's processes. Opening raises PlatformError when
    this machine lacks something.
    """

    def __init__(
        self,
        folder: Path,
        *,
        file_systems: Sequence[str] = ("first", "second"),
        settings: Mapping[str, str] | None = None,
        control_plane: ControlPlane | None = None,
    ) -> None:
        self.folder = folder
        self.namespace = NAMESPACE
        self._control_plane = control_plane or EmbeddedControlPlane(folder / "kubeconfig")
        self.file_system_ids: tuple[FileSystemId, ...] = ()
        self._names = file_systems
        self._settings = dict(settings or {})
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        base_port = self._stack.enter_context(reserved_base_port())
        plane = await self._stack.enter_async_context(self._control_plane)
        self.efs = await self._stack.enter_async_context(EmbeddedEfs(self.folder / "efs"))
        self.client = await self._stack.enter_async_context(self.connect())
        kubelet = make_kubelet(
            self.client, self.efs, name=NODE, namespace=NAMESPACE, root=self.folder / "kubelet"
        )
        plane.take_logs_from(kubelet)
        self._run_in_background(plane.run_controllers(self.client, node=NODE))
        self._run_in_background(kubelet.run())
        await plane.install(self.client, NAMESPACE)
        creating = (self.efs.create_file_system(name) for name in self._names)
        self.file_system_ids = tuple(await asyncio.gather(*creating))
        self.controller, self.tunnel = await self._programs(base_port)
        self._stack.push_async_callback(self._stop_programs)
        await asyncio.gather(self.controller.start(), self.tunnel.start())
        await asyncio.gather(self.controller.ready(), self.tunnel.ready())

    def _run_in_background(self, part: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(part)
        task.add_done_callback(_report_failure)
        self._stack.push_async_callback(_end, task)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's way to the cluster."""
        return self._control_plane.kubeconfig

    def connect(self) -> AsyncClient:
        """A further client of the cluster; close it with ``async with``."""
        return connect(load_config(self.kubeconfig))

    async def _programs(self, base_port: int) -> tuple[Program, Program]:
        work = self.folder / "tunnel"
        work.mkdir(exist_ok=True)
        common = {
            # Nothing of the person's own AWS account, cluster or settings may reach these processes.
            **{name: value for name, value in os.environ.items() if name in _INHERITED},
            **self.efs.environment(),
            **_SETTINGS,
        }
        controller = {
            **common,
            "KUBECONFIG": str(await self._control_plane.kubeconfig_of("efs-manager")),
            "POD_NAME": "efs-manager-0",
            "BASE_STUNNEL_PORT": str(base_port),
            **self._directory_provisioner(),
        }
        tunnel = {
            **common,
            "KUBECONFIG": str(await self._control_plane.kubeconfig_of("efs-stunnel")),
            "POD_NAME": "efs-stunnel-0",
            "STUNNEL_CONF_PATH": str(work / "stunnel.conf"),
            "KUBE_EFS_CA_FILE": str(self.efs.ca_file),
        }
        return (
            Program("controller", {**controller, **self._settings}, self.folder / "controller.log"),
            Program("tunnel", {**tunnel, **self._settings}, self.folder / "tunnel.log"),
        )

    def _directory_provisioner(self) -> dict[str, str]:
        """The provisioner of efs-provisioner's examples, on the first file system."""
        if not self.file_system_ids:
            return {}
        return {"FILE_SYSTEM_ID": self.file_system_ids[0], "PROVISIONER_NAME": DIRECTORY_PROVISIONER}

    async def _stop_programs(self) -> None:
        await asyncio.gather(self.controller.stop(), self.tunnel.stop())


def _report_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("embedded-part-failed", part=task.get_coro(), exc_info=task.exception())


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
