"""The process ``kube-efs node`` and a kubelet: registration, restart, kill, stop."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import aiohttp
import grpc.aio
import pytest
from lightkube import AsyncClient
from lightkube.models.core_v1 import NodeSpec, Taint
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Node
from tests.collector import Collector, collecting

from fake_efs.errors import PlatformError
from fake_efs.instance_metadata import Instance, InstanceMetadata, NetworkInterface
from kube_efs.csi.protocol import csi_pb2 as csi
from kube_efs.csi.protocol import registration_pb2 as reg
from kube_efs.csi.protocol.csi_pb2_grpc import IdentityStub, NodeStub
from kube_efs.csi.protocol.registration_pb2_grpc import RegistrationStub
from kube_efs.csi.startup_taint import STARTUP_TAINT
from kube_efs.model.efs.ids import Region, SubnetId, ZoneName
from kube_efs_lab.program import Program
from tinykube.api import ApiServer

Eventually = Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]
INSTANCE = Instance(
    instance_id="i-0123456789abcdef0",
    account_id="123456789012",
    region=Region("us-east-1"),
    zone=ZoneName("us-east-1a"),
    zone_id="use1-az6",
    interfaces=(
        NetworkInterface(
            mac="02:00:7f:10:00:01", subnet_id=SubnetId("subnet-1"), vpc_id="vpc-1", address="10.0.0.1"
        ),
    ),
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory with a short name, because paths of sockets are limited."""
    with tempfile.TemporaryDirectory(prefix="node-") as name:
        (Path(name) / "registry").mkdir()
        yield Path(name)


@pytest.fixture
def environment(folder: Path) -> dict[str, str]:
    return {
        "CSI_ENDPOINT": f"unix://{folder}/csi.sock",
        "DRIVER_REG_SOCK_PATH": f"{folder}/csi.sock",
        "KUBE_EFS_REGISTRATION_FOLDER": f"{folder}/registry",
        "KUBE_EFS_TUNNEL_SOCKET": f"{folder}/nobody.sock",
        "KUBE_EFS_HEALTH_HOST": "127.0.0.1",
        "KUBE_EFS_HEALTH_PORT": "0",
        "NODE_NAME": "node-1",
        "HOME": str(folder),
    }


@pytest.fixture
async def program(folder: Path, environment: dict[str, str]) -> AsyncIterator[Program]:
    metadata = InstanceMetadata(INSTANCE)
    await metadata.start()
    environment["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = metadata.url
    program = Program("node", environment, folder / "log")
    try:
        yield program
    finally:
        await program.stop()
        await metadata.stop()


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    async with collecting() as collector:
        yield collector


class Kubelet:
    """Finds the socket of the driver, registers it, and calls it."""

    def __init__(self, folder: Path) -> None:
        self.registry = folder / "registry" / "efs.csi.aws.com-reg.sock"

    async def register(self, *, error: str = "") -> csi.NodeGetInfoResponse:
        async with AsyncExitStack() as stack:
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"unix:{self.registry}"))
            stub = RegistrationStub(channel)
            info = await stub.GetInfo(reg.InfoRequest(), timeout=30)
            assert (info.type, info.name) == ("CSIPlugin", "efs.csi.aws.com")
            driver = await stack.enter_async_context(grpc.aio.insecure_channel(f"unix:{info.endpoint}"))
            node: csi.NodeGetInfoResponse = await NodeStub(driver).NodeGetInfo(
                csi.NodeGetInfoRequest(), timeout=30
            )
            assert (await IdentityStub(driver).Probe(csi.ProbeRequest(), timeout=30)).ready.value
            status = reg.RegistrationStatus(plugin_registered=not error, error=error)
            await stub.NotifyRegistrationStatus(status, timeout=30)
        return node


async def started(program: Program, folder: Path, eventually: Eventually) -> Kubelet:
    """Start the driver; returns the kubelet when it sees the socket for the registration."""
    kubelet = Kubelet(folder)
    await program.start()
    await eventually(lambda: asyncio.to_thread(kubelet.registry.is_socket))
    return kubelet


def names_below(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


async def page(program: Program, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"{program.health_url}{path}") as answer:
        return answer.status, await answer.text()


async def test_kubelet_registers_the_driver_and_gets_node_id_and_zone(
    program: Program, folder: Path, eventually: Eventually
) -> None:
    kubelet = await started(program, folder, eventually)
    assert await page(program, "/readyz") == (
        503,
        '{"ok": false, "reasons": ["the kubelet has not registered the driver yet"]}',
    )

    info = await kubelet.register()

    await program.ready()
    assert info.node_id == "i-0123456789abcdef0"
    assert info.accessible_topology.segments == {"topology.kubernetes.io/zone": "us-east-1a"}
    assert (await page(program, "/healthz"))[0] == 200
    assert (
        'kube_efs_csi_calls_total{code="OK",method="/csi.v1.Node/NodeGetInfo"} 1.0'
        in ((await page(program, "/metrics"))[1])
    )


async def test_startup_taint_is_removed_after_the_registration(
    program: Program,
    folder: Path,
    environment: dict[str, str],
    api_server: ApiServer,
    kube: AsyncClient,
    eventually: Eventually,
) -> None:
    environment["KUBECONFIG"] = str(folder / "kubeconfig")
    (folder / "kubeconfig").write_text(api_server.kubeconfig())
    taints = [Taint(key=key, effect="NoExecute") for key in (STARTUP_TAINT, "dedicated")]
    await kube.create(Node(metadata=ObjectMeta(name="node-1"), spec=NodeSpec(taints=taints)))

    async def keys() -> set[str]:
        node = await kube.get(Node, "node-1")
        return {taint.key for taint in (node.spec and node.spec.taints) or []}

    async def is_only_dedicated() -> bool:
        return await keys() == {"dedicated"}

    kubelet = await started(program, folder, eventually)
    assert (await page(program, "/healthz"))[0] == 200
    assert await keys() == {"dedicated", STARTUP_TAINT}
    await kubelet.register()
    await eventually(is_only_dedicated)


async def test_stopped_node_driver_leaves_no_socket_behind(
    program: Program, folder: Path, eventually: Eventually
) -> None:
    await started(program, folder, eventually)
    async with asyncio.timeout(5):
        assert await program.stop() == 0
    assert await asyncio.to_thread(names_below, folder) == ["log", "registry"]


async def test_restarted_node_driver_is_registered_again(
    program: Program, folder: Path, eventually: Eventually
) -> None:
    kubelet = Kubelet(folder)
    for _ in range(2):
        await program.start()
        await eventually(lambda: asyncio.to_thread(kubelet.registry.is_socket))
        assert (await kubelet.register()).node_id == "i-0123456789abcdef0"
        await program.ready()
        await program.kill()
        kubelet.registry.unlink()  # so that the next one's is waited for


async def test_driver_shows_a_new_socket_after_a_failed_registration(
    program: Program, folder: Path, eventually: Eventually
) -> None:
    """Older kubelets repeat no registration, for example one for which the API server did not answer."""
    kubelet = await started(program, folder, eventually)
    shown = kubelet.registry.stat().st_ctime_ns
    await kubelet.register(error="error updating CSINode: connection refused")

    def is_shown_again() -> bool:
        # Its name was removed and given again.
        with suppress(FileNotFoundError):
            return kubelet.registry.stat().st_ctime_ns != shown
        return False

    await eventually(lambda: asyncio.to_thread(is_shown_again))
    assert (await page(program, "/readyz"))[0] == 503
    await kubelet.register()
    await program.ready()


async def test_zone_that_differs_from_the_label_of_the_node_does_not_keep_the_driver_away(
    program: Program, folder: Path, eventually: Eventually
) -> None:
    kubelet = await started(program, folder, eventually)
    refused = 'detected topology value collision: driver reported "us-east-1a" but existing label is "rack-1"'
    assert (await kubelet.register(error=refused)).accessible_topology.segments
    assert not (await kubelet.register()).accessible_topology.segments
    await program.ready()


async def test_settings_take_precedence_over_instance_metadata(
    program: Program, environment: dict[str, str], folder: Path, eventually: Eventually
) -> None:
    environment |= {"KUBE_EFS_ZONE": "us-east-1f", "KUBE_EFS_VOLUME_ATTACH_LIMIT": "20"}
    kubelet = await started(program, folder, eventually)
    info = await kubelet.register()
    assert info.accessible_topology.segments == {"topology.kubernetes.io/zone": "us-east-1f"}
    assert info.max_volumes_per_node == 20


async def test_node_without_an_instance_id_does_not_start(
    program: Program, environment: dict[str, str]
) -> None:
    environment["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = "http://127.0.0.1:9"
    # Its health endpoint may be open before it ends.
    with suppress(PlatformError):
        await program.start()
    assert await program.ended() == 2
    assert "NODE_NAME: 'node-1' cannot be identified" in program.log_file.read_text()


async def test_unreachable_collector_delays_no_call_and_is_one_line_of_the_log(
    program: Program, environment: dict[str, str], folder: Path, eventually: Eventually
) -> None:
    environment |= {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_BSP_SCHEDULE_DELAY": "50"}
    await program.start()
    kubelet = Kubelet(folder)
    await eventually(lambda: asyncio.to_thread(kubelet.registry.is_socket))
    async with grpc.aio.insecure_channel(f"unix:{folder}/csi.sock") as channel:
        for _ in range(200):
            await NodeStub(channel).NodeGetInfo(csi.NodeGetInfoRequest(), timeout=5)
        await eventually(lambda: asyncio.to_thread(has_line, folder / "log", "traces-not-sent"))
        for _ in range(200):
            await NodeStub(channel).NodeGetInfo(csi.NodeGetInfoRequest(), timeout=5)
    async with asyncio.timeout(5):
        assert await program.stop() == 0
    log = (folder / "log").read_text()
    assert log.count("traces-not-sent") == 1
    assert "opentelemetry" not in log
    assert "Traceback" not in log


def has_line(log: Path, event: str) -> bool:
    return f'"{event}"' in log.read_text()


_SECRET = "aB3dE5gH7j" * 70


async def test_secrets_of_requests_and_environment_never_leave_the_process(
    program: Program,
    environment: dict[str, str],
    folder: Path,
    eventually: Eventually,
    collector: Collector,
) -> None:
    """At level DEBUG, at which libraries log too, and in every field of a request."""
    environment |= {
        **collector.environment,
        "LOGGING_LEVEL": "DEBUG",
        "DB_PASS": "environment-passw0rd",
        "REDIS_AUTH": f"x{_SECRET}",
    }
    await program.start()
    kubelet = Kubelet(folder)
    await eventually(lambda: asyncio.to_thread(kubelet.registry.exists))
    mount = csi.VolumeCapability.MountVolume(mount_flags=[f"password={_SECRET}", "iam"])
    mode = csi.VolumeCapability.AccessMode(mode=csi.VolumeCapability.AccessMode.MULTI_NODE_MULTI_WRITER)
    whole = csi.NodePublishVolumeRequest(
        volume_id="fs-0123456789abcdef0",
        target_path=f"{folder}/pods/1/volumes/mount",
        volume_capability=csi.VolumeCapability(mount=mount, access_mode=mode),
        volume_context={"mounttargetip": "127.0.0.1"},
        secrets={"externalId": f"x {_SECRET} y"},
    )
    requests = []
    for name, value in {
        "volume_id": f"fs-0123456789abcdef0:token={_SECRET}",
        "target_path": f"/pods/SECRET={_SECRET}",
    }.items():
        requests.append(csi.NodePublishVolumeRequest())
        requests[-1].CopyFrom(whole)
        setattr(requests[-1], name, value)
    for context in (
        {"DB_PASS": _SECRET},
        {"environment-passw0rd": "x"},
        {"mounttargetip": f"IQoJb3JpZ2luX2Vj{_SECRET}"},
        {"csi.storage.k8s.io/serviceAccount.tokens": f'{{"sts.amazonaws.com": {{"token": "{_SECRET}"}}}}'},
        {"again": f"x {_SECRET} y"},
        {"huge": "z" * 1_000_000},
    ):
        requests.append(csi.NodePublishVolumeRequest())
        requests[-1].CopyFrom(whole)
        requests[-1].volume_context.update(context)
    told = []
    async with grpc.aio.insecure_channel(f"unix:{folder}/csi.sock") as channel:
        for request in requests:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await NodeStub(channel).NodePublishVolume(request, timeout=60)
            told.append(caught.value.details() or "")
    _, metrics = await page(program, "/metrics")
    await program.stop()
    assert len(collector.named("csi.NodePublishVolume")) == len(requests)
    told += [body.decode(errors="replace") for body in collector.raw]

    log = (folder / "log").read_text()
    assert log.count("call-refused") == len(requests)
    for text in (*told, metrics, log):
        assert "aB3dE5gH" not in text
        assert "environment-passw0rd" not in text
    assert max(map(len, log.splitlines())) < 80_000


async def test_error_at_the_start_contains_no_secret(
    program: Program, environment: dict[str, str], folder: Path
) -> None:
    environment |= {"KUBE_EFS_TUNNEL_SOCKET": "", "CSI_ENDPOINT": f"tcp://user:{_SECRET}@nowhere:x"}
    # It ends before or after its health endpoint is found.
    with suppress(PlatformError):
        await program.start()
    with pytest.raises(PlatformError, match="has ended"):
        await program.ready()

    log = (folder / "log").read_text()
    assert "CSI_ENDPOINT" in log or "endpoint" in log
    assert "aB3dE5gH" not in log
