"""kube-efs brought into a cluster as the page on installing says it."""

import asyncio
import sys
from pathlib import Path

from tests.conformance.kubectl import Kubectl

NAMESPACE = "openshift-efs-stunnel"
MANAGER, TUNNEL, WORKER, NODE = "efs-manager", "efs-stunnel", "efs-worker", "efs-csi-node"
# What classes of the CSI driver name in these tests.
REFERENCES = ("--secret", "default/role", "--config-map", "default/file-systems")
OPTIONS = ("--for", "openshift", "--csi", *REFERENCES)

_RENDER_SECONDS = 60.0
_rendered: dict[tuple[str, ...], str] = {}
_CONSTRAINTS = Path(__file__).with_name("security-context-constraints-crd.yaml")


async def render(*arguments: str) -> str:
    """The output of ``kube-efs render``, which is asked once for the same."""
    if arguments not in _rendered:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "kube_efs", "render", *arguments, stdout=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(_RENDER_SECONDS):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0
        _rendered[arguments] = output.decode()
    return _rendered[arguments]


async def add_openshift_kinds(kubectl: Kubectl) -> None:
    """Give the cluster OpenShift's own kind."""
    await kubectl("apply", "-f", str(_CONSTRAINTS))
    await kubectl("wait", "crd", "--all", "--for=condition=Established", "--timeout=20s")


async def install(kubectl: Kubectl) -> None:
    """Give the cluster OpenShift's own kind, then kube-efs."""
    await add_openshift_kinds(kubectl)
    await kubectl("apply", "--validate=strict", "-f", "-", stdin=await render(*OPTIONS))
