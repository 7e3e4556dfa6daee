"""A cluster on Kubernetes' own processes, with kube-efs under its own service accounts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import yaml
from aiohttp import web
from lightkube import ApiError, AsyncClient
from lightkube.resources.core_v1 import Node, NodeStatus
from lightkube.types import PatchType

from kube_efs.operator.manifests import RenderOptions, render_manifests, text_of
from kube_efs.operator.platforms import Platform
from kube_efs_lab.control_plane import ControlPlane, EmbeddedControlPlane
from kube_efs_lab.manifests import apply
from kube_efs_lab.programs import NAMES, NODE
from kube_efs_lab.real_control_plane import ControlPlanes, RealControlPlane, ServiceAccountName
from tinykube.api.credentials import make_identity, write_kubeconfig
from tinykube.controllers.running import run_scheduler
from tinykube.kubelet.kubelet import Kubelet

# kube-efs's processes run beside the cluster, not in it.
_WORKLOADS = {"Deployment", "DaemonSet"}
_HOST = "127.0.0.1"
_LOOK_SECONDS = 0.05


class KubeletLogs:
    """The endpoint of a kubelet that a real API server asks for logs of pods; any client is welcome."""

    def __init__(self) -> None:
        self.kubelet: Kubelet | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        application = web.Application()
        application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._answer)
        runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=0)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, _HOST, 0, ssl_context=make_identity(_HOST).ssl_context()).start()
        self._port: int = runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def announce(self, client: AsyncClient, node: str) -> None:
        """Say in the Node where the endpoint is, once the kubelet has said the rest."""
        status = {
            # The API server would prefer the node's name, which nobody resolves.
            "addresses": [{"type": "InternalIP", "address": _HOST}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._port}},
        }
        while not await _has_addresses(client, node):  # noqa: ASYNC110 - asked from outside
            await asyncio.sleep(_LOOK_SECONDS)
        await client.patch(NodeStatus, node, {"status": status}, patch_type=PatchType.MERGE)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        lines = request.query.get("tailLines")
        if self.kubelet:
            chunks = self.kubelet.read(
                request.match_info["namespace"],
                request.match_info["pod"],
                request.match_info["container"],
                follow=request.query.get("follow") == "true",
                tail_lines=int(lines) if lines else None,
            )
            async with aclosing(chunks):
                async for chunk in chunks:
                    await response.write(chunk)
        await response.write_eof()
        return response


async def _has_addresses(client: AsyncClient, node: str) -> bool:
    try:
        found = await client.get(Node, node)
    except ApiError as error:
        if error.status.code == 404:
            return False
        raise
    return bool(found.status and found.status.addresses)


class RealPlane:
    """etcd, kube-apiserver and kube-controller-manager, with RBAC and what ``kube-efs render`` prints.

    The administrator's kubeconfig is written to ``kubeconfig``, if that is given, and removed at the end.
    """

    plane: RealControlPlane

    def __init__(self, planes: ControlPlanes, kubeconfig: Path | None = None) -> None:
        self._planes = planes
        self._kubeconfig = kubeconfig
        self._logs = KubeletLogs()
        self._stack = AsyncExitStack()

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self._kubeconfig or self.plane.admin_kubeconfig

    async def __aenter__(self) -> Self:
        self.plane = await self._planes.fresh()
        if self._kubeconfig is not None:
            write_kubeconfig(self._kubeconfig, self.plane.admin_kubeconfig.read_text(encoding="utf-8"))
            self._stack.callback(self._kubeconfig.unlink, missing_ok=True)
        await self._stack.enter_async_context(self._logs)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def install(self, client: AsyncClient, namespace: str) -> None:
        """Apply the rendered manifests, less the workloads."""
        manifests = render_manifests(
            RenderOptions(platform=Platform.KUBERNETES, namespace=namespace, create_namespace=True, csi=True)
        )
        kept = [manifest for manifest in manifests if manifest["kind"] not in _WORKLOADS]
        # Before its kubelet says so: the tokens of the accounts name it.
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
        await apply(client, [text_of(kept, as_json=False), yaml.safe_dump(node)])

    async def kubeconfig_of(self, account: str) -> Path:
        """With a token of that service account on the node, and no right but its own."""
        return await self.plane.kubeconfig(ServiceAccountName(NAMES.namespace, account), node=NODE)

    async def run_controllers(self, client: AsyncClient, *, node: str) -> None:
        """Only the scheduler is missing, and that the Node says where its logs are."""
        await self._logs.announce(client, node)
        await run_scheduler(client, node=node)

    def take_logs_from(self, kubelet: Kubelet) -> None:
        """The real API server finds them where the Node says that its kubelet is."""
        self._logs.kubelet = kubelet


@asynccontextmanager
async def plane_for(folder: Path, kubeconfig: Path, programs: Path | None) -> AsyncIterator[ControlPlane]:
    """What a cluster runs on, not started yet: Kubernetes' programs in that directory, or the embedded one.

    ``folder`` is for its files.
    """
    if programs is None:
        yield EmbeddedControlPlane(kubeconfig)
        return
    planes = ControlPlanes(folder / "control-plane", programs)
    try:
        yield RealPlane(planes, kubeconfig)
    finally:
        await planes.stop()
