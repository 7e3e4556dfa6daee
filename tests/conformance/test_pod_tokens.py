"""The embedded node with a real API server: programs in its pods have tokens of that server."""

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path

import pytest
from lightkube.codecs import from_dict
from lightkube.resources.core_v1 import Pod
from tests.conformance.programs import PROGRAMS

from kube_efs.kube.client import connect, load_config
from kube_efs_lab.csi_calls import CsiCalls
from kube_efs_lab.real_control_plane import RealControlPlane
from tinykube.kubelet.kubelet import Kubelet, Mounters
from tinykube.kubelet.nfs import KernelNfs
from tinykube.kubelet.node import NodeDescription

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="the kubelet makes namespaces and mounts: root only"
)
SCRIPT = "kubectl auth whoami -o jsonpath={.status.userInfo.username}"


async def test_program_in_a_pod_has_its_service_account(tmp_path: Path) -> None:
    async with (
        RealControlPlane(tmp_path / "plane", PROGRAMS) as plane,
        connect(load_config(plane.admin_kubeconfig)) as client,
    ):
        kubelet = Kubelet(
            client,
            node=NodeDescription(name="node-1"),
            root=tmp_path / "kubelet",
            mounters=Mounters(nfs=KernelNfs(), csi=CsiCalls()),
        )
        running = asyncio.create_task(kubelet.run())
        try:
            main = {"name": "main", "image": "any", "command": ["sh", "-c", SCRIPT]}
            spec = {"nodeName": "node-1", "restartPolicy": "Never", "containers": [main]}
            metadata = {"name": "asks", "namespace": "default"}
            body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
            await client.create(from_dict(body))
            deadline = time.monotonic() + 30
            while (found := await client.get(Pod, "asks", namespace="default")).status.phase != "Succeeded":  # type: ignore[union-attr]
                assert time.monotonic() < deadline, found.status
                await asyncio.sleep(0.05)
            log = kubelet.read("default", "asks", "main", follow=False, tail_lines=None)
            said = b"".join([chunk async for chunk in log]).decode()
            assert said == "system:serviceaccount:default:default"
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
