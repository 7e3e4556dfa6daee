"""The embedded node with a real API server: tokens of that server in its pods, and for CSI drivers."""

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest
from lightkube.codecs import from_dict
from lightkube.resources.core_v1 import Pod
from tests.conformance.programs import PROGRAMS

from kube_efs.aws.credential_sources import ServiceAccountIdentity
from kube_efs.csi.pod_tokens import read_identity, read_pod_tokens
from kube_efs.kube.client import connect, load_config
from kube_efs.model.volumes import DRIVER
from kube_efs.operator.desired_objects import without_pod_tokens
from kube_efs.operator.manifests import RenderOptions, render_manifests
from kube_efs.operator.platforms import Platform
from kube_efs_lab.csi_calls import CsiCalls
from kube_efs_lab.real_control_plane import RealControlPlane
from tinykube.kubelet.kubelet import Kubelet, Mounters
from tinykube.kubelet.nfs import KernelNfs
from tinykube.kubelet.node import NodeDescription
from tinykube.kubelet.pod_tokens import PodTokens
from tinykube.kubelet.pods import read_pod

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
            deadline = time.monotonic() + 60
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


async def test_driver_finds_the_service_account_in_tokens_of_the_pod(tmp_path: Path) -> None:
    async with (
        RealControlPlane(tmp_path / "plane", PROGRAMS) as plane,
        connect(load_config(plane.admin_kubeconfig)) as client,
    ):
        [driver] = [
            one
            for one in render_manifests(RenderOptions(platform=Platform.KUBERNETES, csi=True))
            if one["kind"] == "CSIDriver"
        ]
        # The fields can be added to a driver that exists, as in an upgrade.
        for manifest in (*without_pod_tokens([driver]), driver):
            await client.apply(from_dict(dict(manifest)), field_manager="test", force=True)
        containers = [{"name": "main", "image": "any"}]
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "asks", "namespace": "default"},
            "spec": {"nodeName": "node-1", "containers": containers},
        }
        pod = read_pod(await client.create(cast("Pod", Pod.from_dict(body))))

        context = await PodTokens(client).context(pod, DRIVER)

        assert context.again
        tokens = read_pod_tokens(context.attributes, {})
        assert (tokens.namespace, tokens.service_account) == ("default", "default")
        assert tokens.secret_sts != tokens.secret_pod_identity
        account = ServiceAccountIdentity(namespace="default", name="default")
        assert await read_identity(client, tokens) == account
