"""The CSI driver on a control plane: its controller, csi-provisioner, and an AWS account."""

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from xml.etree import ElementTree

from tests.conformance.programs import PROGRAMS
from tests.scenarios.forking import fork_module
from tests.scenarios.steps import eventually

from fake_efs.aws_api import CREDENTIALS, AwsApi, Credentials
from fake_efs.process import ChildProcess
from fake_efs.service import EmbeddedEfs
from kube_efs_lab.program import Program

REGION = "us-east-1"


class Driver:
    """``kube-efs controller`` for volumes of the CSI driver; it writes only to ``folder``.

    It has the permissions of ``kubeconfig``, and its Lease in ``namespace``. csi-provisioner has the
    permissions of ``administrator``.
    """

    def __init__(
        self,
        kubeconfig: Path,
        aws: AwsApi | EmbeddedEfs,
        folder: Path,
        *,
        administrator: Path | None = None,
        namespace: str = "default",
        credentials: Credentials = CREDENTIALS,
    ) -> None:
        self.folder = folder
        self.socket = folder / "csi.sock"
        self._administrator = administrator or kubeconfig
        self._environment = {
            "PATH": os.environ["PATH"],
            "KUBECONFIG": str(kubeconfig),
            "POD_NAMESPACE": namespace,
            "POD_NAME": "controller",
            "AWS_ENDPOINT_URL": aws.endpoint_url,
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": credentials.access_key_id,
            "AWS_SECRET_ACCESS_KEY": credentials.secret_access_key,
            "KUBE_EFS_BACKENDS": "csi",
            "KUBE_EFS_HEALTH_HOST": "127.0.0.1",
            "KUBE_EFS_HEALTH_PORT": "0",
            "PROVISION_BACKOFF_INTERVAL": "1",
            # csi-sanity requests another size under a name that is in use; only a tag shows the size.
            "KUBE_EFS_VOLUME_TAGS": "true",
        }

    @asynccontextmanager
    async def without_sidecar(self) -> AsyncGenerator[Program, None]:
        """The controller serves claims itself while the context is open."""
        async with self._running("built-in", {}) as program:
            yield program

    @asynccontextmanager
    async def on_its_socket(self, *, backends: str = "csi") -> AsyncGenerator[Program, None]:
        """The controller serves its socket while the context is open."""
        settings = {"CSI_ENDPOINT": f"unix://{self.socket}", "KUBE_EFS_BACKENDS": backends}
        async with self._running("socket", settings) as program:
            await eventually(self._is_served, what="the socket is served")
            yield program

    @asynccontextmanager
    async def with_sidecar(self) -> AsyncGenerator[Program, None]:
        """csi-provisioner serves claims through the socket while the context is open."""
        options = ("--feature-gates=Topology=true", "--extra-create-metadata", "--worker-threads=100")
        async with self.on_its_socket() as program, self._sidecar("csi-provisioner", *options):
            yield program

    @asynccontextmanager
    async def with_sidecars(self) -> AsyncGenerator[Program, None]:
        """The same with csi-resizer, which serves claims that request more."""
        async with self.with_sidecar() as program, self._sidecar("csi-resizer"):
            yield program

    @asynccontextmanager
    async def _sidecar(self, name: str, *options: str) -> AsyncGenerator[None, None]:
        process = await ChildProcess.start(
            str(PROGRAMS / name),
            f"--csi-address={self.socket}",
            f"--kubeconfig={self._administrator}",
            "--v=2",
            "--timeout=15s",
            "--retry-interval-start=200ms",
            *options,
            log_file=self.folder / f"{name}.log",
        )
        try:
            yield
        finally:
            await process.stop(timeout_seconds=5)

    async def _is_served(self) -> bool:
        return await asyncio.to_thread(self.socket.is_socket)

    @asynccontextmanager
    async def _running(self, name: str, settings: Mapping[str, str]) -> AsyncGenerator[Program, None]:
        environment, log_file = {**self._environment, **settings}, self.folder / f"{name}.log"
        program = Program("controller", environment, log_file, starter=fork_module)
        await program.start()
        try:
            await program.ready()
            yield program
        finally:
            await program.stop()


async def sanity(
    folder: Path, *, controller: Path, node: Path, parameters: Mapping[str, str]
) -> dict[str, str]:
    """The outcome of each test of csi-sanity: passed, or the reason why it was skipped or failed.

    Volumes are mounted below ``folder``.
    """
    volume = folder / "volume.yaml"
    volume.write_text("".join(f'{key}: "{value}"\n' for key, value in parameters.items()))
    report = folder / "junit.xml"
    process = await ChildProcess.start(
        str(PROGRAMS / "csi-sanity"),
        f"--csi.endpoint=unix://{node}",
        f"--csi.controllerendpoint=unix://{controller}",
        f"--csi.mountdir={folder / 'mount'}",
        f"--csi.stagingdir={folder / 'staging'}",
        f"--csi.testvolumeparameters={volume}",
        f"--csi.junitfile={report}",
        "--ginkgo.no-color",
        log_file=folder / "csi-sanity.log",
    )
    async with asyncio.timeout(240):
        await process.wait()
    return {case.attrib["name"]: _outcome(case) for case in ElementTree.parse(report).iter("testcase")}


def _outcome(case: ElementTree.Element) -> str:
    for kind in ("failure", "error", "skipped"):
        found = case.find(kind)
        if found is not None:
            return f"{kind}: {found.attrib.get('message', '')}"
    return "passed"
