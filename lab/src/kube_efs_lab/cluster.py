"""The embedded cluster as one thing: an API server, its controllers, a node, an EFS, and kube-efs on them.

kube-efs runs as the three processes that it is in a real cluster. They get every address from their
ordinary settings, and cannot tell the difference.
"""

import asyncio
import tempfile
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import structlog
from lightkube import AsyncClient

from fake_efs.process import Starter, start_module
from fake_efs.service import EmbeddedEfs
from kube_efs.kube.client import connect, load_config
from kube_efs.model.efs.ids import FileSystemId
from kube_efs_lab.control_plane import ControlPlane, EmbeddedControlPlane
from kube_efs_lab.mounts_without_kernel import mount_program
from kube_efs_lab.node import PodDefaults, make_kubelet
from kube_efs_lab.programs import (
    NAMES,
    NODE,
    QUICK_SETTINGS,
    Folders,
    end_stunnel,
    make_programs,
    reserved_ports,
)
from tinykube.kubelet.kubelet import Kubelet
from tinykube.kubelet.nfs import kernel_has_nfs

log = structlog.get_logger(__name__)

T = TypeVar("T")
U = TypeVar("U")

_LAST_TURNS = 10
DIRECTORY_PROVISIONER = "example.com/aws-efs"


class EmbeddedCluster:
    """A cluster on loopback while its context is open; everything it writes is below ``folder``.

    ``file_systems`` are the names of those that are there at the start, ``file_system_ids`` their ids in
    this order. ``starter`` starts the processes that are programs in Python: moto's server and kube-efs's,
    whose settings ``settings`` override. Unless ``installed``, none of kube-efs's runs, nor is anything of it
    in the API: pods do, once somebody installs it. ``driver_policy`` is the text of kube-efs's IAM policy;
    without one it may call everything. The kubelet of a subclass without ``node_has_nfs`` refuses NFS
    volumes. Opening raises PlatformError when this machine lacks something.
    """

    node_has_nfs = True

    def __init__(
        self,
        folder: Path,
        *,
        file_systems: Sequence[str] = ("first", "second"),
        settings: Mapping[str, str] | None = None,
        control_plane: ControlPlane | None = None,
        installed: bool = True,
        starter: Starter = start_module,
        driver_policy: str | None = None,
    ) -> None:
        self.folder = folder
        self.names, self.namespace = NAMES, NAMES.namespace
        self._control_plane = control_plane or EmbeddedControlPlane(folder / "kubeconfig")
        self.file_system_ids: tuple[FileSystemId, ...] = ()
        self._names = file_systems
        self._settings = dict(settings or {})
        self._installed = installed
        self._starter = starter
        self._driver_policy = driver_policy
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
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
        # Connections that have been closed end in later turns of the loop, which stops perhaps now.
        for _ in range(_LAST_TURNS):
            await asyncio.sleep(0)

    async def _start(self) -> None:
        sockets = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="efs-"))
        self._folders = Folders(root=self.folder, sockets=Path(sockets))
        self._folders.make()
        ports = self._stack.enter_context(reserved_ports())
        plane, self.efs = await _together(
            self._stack.enter_async_context(self._control_plane),
            self._stack.enter_async_context(
                EmbeddedEfs(self.folder / "efs", starter=self._starter, driver_policy=self._driver_policy)
            ),
        )
        self.client = await self._stack.enter_async_context(self.connect())
        await asyncio.to_thread(kernel_has_nfs)  # which the kubelet is not to wait for
        mounting = await self._mount_program()
        kubelet = make_kubelet(
            self.client,
            self.efs,
            name=NODE,
            names=NAMES,
            root=self._folders.kubelet,
            defaults=None if self._installed else self._pod_defaults(ports, mounting),
            has_nfs=self.node_has_nfs,
        )
        plane.take_logs_from(kubelet)
        self._run_in_background(plane.run_controllers(self.client, node=NODE))
        if not self._installed:
            await self._create_file_systems()
            self._run_in_background(kubelet.run())
            return
        await _together(self._create_file_systems(), plane.install(self.client, self.namespace))
        await self._start_programs(kubelet, ports, mounting)

    async def _create_file_systems(self) -> None:
        creating = (self.efs.create_file_system(name) for name in self._names)
        self.file_system_ids = tuple(FileSystemId(made) for made in await asyncio.gather(*creating))

    def _pod_defaults(self, ports: Mapping[str, str], mounting: Path | None) -> PodDefaults:
        settings = {**QUICK_SETTINGS, **ports, **self._settings}
        return PodDefaults(host=self._folders.host, programs=mounting, settings=settings)

    async def _start_programs(
        self, kubelet: Kubelet, ports: Mapping[str, str], mounting: Path | None
    ) -> None:
        directories = {}
        if self.file_system_ids:  # the provisioner of efs-provisioner's examples, on the first file system
            first = self.file_system_ids[0]
            directories = {"FILE_SYSTEM_ID": first, "PROVISIONER_NAME": DIRECTORY_PROVISIONER}
        self.controller, self.tunnel, self.node = started = await make_programs(
            self._folders,
            self._control_plane,
            self.efs,
            mounting=mounting,
            settings={**ports, **directories, **self._settings},
            starter=self._starter,
        )
        # What ends first is pushed last: pods need the node to unmount, and the node the tunnels' agent.
        self._stack.push_async_callback(end_stunnel, self._folders)
        self._stack.push_async_callback(self.tunnel.stop)
        self._stack.push_async_callback(self.node.stop)
        self._run_in_background(kubelet.run())
        self._stack.push_async_callback(self.controller.stop)
        await asyncio.gather(*(program.start() for program in started))
        await asyncio.gather(*(program.ready() for program in started))

    def _run_in_background(self, part: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(part)
        task.add_done_callback(_report_failure)
        self._stack.push_async_callback(_end, task)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's way to the cluster."""
        return self._control_plane.kubeconfig

    @property
    def tunnel_socket(self) -> Path:
        """Where the node's tunnels are asked for."""
        return self._folders.tunnel_socket

    @property
    def driver_socket(self) -> Path:
        """Where the driver of the node serves the kubelet."""
        return self._folders.driver_socket

    @property
    def stunnel_conf(self) -> Path:
        """The configuration of the node's first stunnel; those of others are beside it."""
        return self._folders.stunnel_conf

    def connect(self) -> AsyncClient:
        """A further client of the cluster; close it with ``async with``."""
        return connect(load_config(self.kubeconfig))

    async def _mount_program(self) -> Path | None:
        """The directory of a program that mounts where the kernel cannot; None where it can."""
        if kernel_has_nfs():
            return None
        program = mount_program(self.efs, self._folders.tunnel_socket, self._folders.sockets / "mounts")
        return await self._stack.enter_async_context(program)


async def _together(one: Coroutine[Any, Any, T], other: Coroutine[Any, Any, U]) -> tuple[T, U]:
    """What both give; when one fails, the other has been cancelled before its error is raised."""
    tasks = asyncio.create_task(one), asyncio.create_task(other)
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _report_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("embedded-part-failed", part=task.get_coro(), exc_info=task.exception())


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
