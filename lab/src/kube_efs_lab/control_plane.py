"""What an embedded cluster runs on: a Kubernetes API, and the controllers that act on it."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from lightkube import AsyncClient
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, ServiceAccount

from kube_efs.kube.errors import translated
from kube_efs.model.names import NEW_INSTALLATION
from kube_efs_lab.manifests import CSI_DRIVER, SHARED_VOLUMES, apply
from tinykube.api.server import ApiServer
from tinykube.controllers.running import run_controllers
from tinykube.kubelet.container_runner import NotRunning
from tinykube.kubelet.kubelet import Kubelet
from tinykube.kubelet.processes import RunningCommand


class ControlPlane(Protocol):
    """A Kubernetes control plane while its context is open."""

    @property
    def kubeconfig(self) -> Path:
        """The administrator's way to the API; written once it is open."""
        ...

    async def __aenter__(self) -> Self:
        """Start it; returns once the API answers."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End everything that was started."""

    async def install(self, client: AsyncClient, namespace: str) -> None:
        """Make what kube-efs needs before its processes start: the namespace, accounts, permissions."""

    async def kubeconfig_of(self, account: str) -> Path:
        """How a process of that service account reaches the API."""

    async def run_controllers(self, client: AsyncClient, *, node: str) -> None:
        """Do what the control plane's own processes leave undone, until cancelled."""

    def take_logs_from(self, kubelet: Kubelet) -> None:
        """Answer for logs of pods, and commands in them, with what this kubelet has."""


class EmbeddedControlPlane:
    """The embedded API server ``api`` with the embedded controllers; every process is the administrator."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self._pods = _PodsLater()
        self.api = ApiServer(pod_logs=self._pods, pod_commands=self._pods)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.api)
        self.kubeconfig.parent.mkdir(parents=True, exist_ok=True)
        self.api.write_kubeconfig(self.kubeconfig)
        self._stack.callback(self.kubeconfig.unlink, missing_ok=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def install(self, client: AsyncClient, namespace: str) -> None:
        """Make the namespace and what the driver's users need; nobody is refused anything here."""
        with translated(f"namespace {namespace}"):
            await client.create(Namespace(metadata=ObjectMeta(name=namespace)))
        # The kubelet requests tokens of it for the volumes of worker pods.
        account = ObjectMeta(name=NEW_INSTALLATION.names.worker_account, namespace=namespace)
        with translated(f"service account {NEW_INSTALLATION.names.worker_account}"):
            await client.create(ServiceAccount(metadata=account))
        await apply(client, [CSI_DRIVER, SHARED_VOLUMES])

    async def kubeconfig_of(self, account: str) -> Path:
        """The administrator's."""
        return self.kubeconfig

    async def run_controllers(self, client: AsyncClient, *, node: str) -> None:
        """Bind, protect, schedule and collect."""
        await run_controllers(client, node=node)

    def take_logs_from(self, kubelet: Kubelet) -> None:
        """Have the kubelet answer ``kubectl logs`` and ``kubectl exec``."""
        self._pods.kubelet = kubelet


class _PodsLater:
    """Logs of pods and commands in them, as soon as there is a kubelet: the API server starts before it."""

    def __init__(self) -> None:
        self.kubelet: Kubelet | None = None

    async def read(
        self, namespace: str, name: str, container: str, *, follow: bool, tail_lines: int | None
    ) -> AsyncGenerator[bytes, None]:
        if self.kubelet is not None:
            chunks = self.kubelet.read(namespace, name, container, follow=follow, tail_lines=tail_lines)
            async with aclosing(chunks):
                async for chunk in chunks:
                    yield chunk

    def run_command(
        self, namespace: str, name: str, container: str, argv: tuple[str, ...]
    ) -> AbstractAsyncContextManager[RunningCommand]:
        if self.kubelet is None:
            raise NotRunning(f'container "{container}" is not running')
        return self.kubelet.run_command(namespace, name, container, argv)
