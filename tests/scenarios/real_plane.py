"""A real control plane for the scenarios: Kubernetes' own processes, and kube-efs under its own accounts."""

from pathlib import Path
from types import TracebackType
from typing import Self

import yaml
from lightkube import AsyncClient
from tests.conformance.control_plane import RealControlPlane, ServiceAccountName
from tests.conformance.installing import NAMESPACE, render
from tests.conformance.kubectl import Kubectl

from kube_efs.local.controllers.running import run_scheduler
from kube_efs.local.kubelet.kubelet import Kubelet

# kube-efs's processes run beside the cluster, not in it.
_WORKLOADS = {"Deployment", "DaemonSet"}


class RealPlane:
    """etcd, kube-apiserver and kube-controller-manager, with RBAC and what ``kube-efs render`` prints."""

    def __init__(self, folder: Path) -> None:
        self.plane = RealControlPlane(folder / "control-plane")

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.plane.admin_kubeconfig

    async def __aenter__(self) -> Self:
        await self.plane.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.plane.__aexit__(kind, error, trace)

    async def install(self, _client: AsyncClient, namespace: str) -> None:
        """Apply the rendered manifests, less the workloads."""
        assert namespace == NAMESPACE
        manifests = yaml.safe_load_all(await render("--for", "kubernetes"))
        kept = [manifest for manifest in manifests if manifest["kind"] not in _WORKLOADS]
        kubectl = Kubectl(self.plane.admin_kubeconfig)
        await kubectl("apply", "--validate=strict", "-f", "-", stdin=yaml.safe_dump_all(kept))

    async def kubeconfig_of(self, account: str) -> Path:
        """With a token of that service account, and no right but its own."""
        return await self.plane.kubeconfig(ServiceAccountName(NAMESPACE, account))

    async def run_controllers(self, client: AsyncClient, *, node: str) -> None:
        """Only the scheduler is missing."""
        await run_scheduler(client, node=node)

    def take_logs_from(self, kubelet: Kubelet) -> None:
        """Nobody asks a real API server for these logs: it would want the kubelet's HTTPS endpoint."""
