"""Requests that the Node service refuses, over gRPC, before it uses a mount or a tunnel."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs
from tests.unit.csi.served import Connect
from tests.unit.csi.tokens import token_context

from kube_efs.csi import run_node
from kube_efs.csi.file_counts import FileCounts
from kube_efs.csi.node import NodeOptions, NodeService, node_service
from kube_efs.csi.node_info import NodeInfo
from kube_efs.csi.node_volumes import NodeVolumes
from kube_efs.csi.protocol import csi_pb2 as csi
from kube_efs.csi.protocol.csi_pb2_grpc import NodeStub
from kube_efs.csi.statistics import Statistics
from kube_efs.model.csi.errors import VolumeMissing
from kube_efs.model.errors import (
    AwsDenied,
    KubeEfsError,
    MountFailed,
    NoTunnelPort,
    PlatformError,
    TunnelAgentUnavailable,
    TunnelNotReady,
    shown,
)
from kube_efs.mounts.table import MountTable
from kube_efs.mounts.usage import Usage
from kube_efs.telemetry.health import Heartbeat
from kube_efs.tunnels.api.client import TunnelOnDemand
from kube_efs.tunnels.reservations import Holder, TunnelSpec

FS, POINT = "fs-0123456789abcdef0", "fsap-0123456789abcdef0"
INVALID, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
Modes = csi.VolumeCapability.AccessMode


class Recorder:
    """A mounter and tunnel client that only record their calls."""

    def __init__(self) -> None:
        self.table = MountTable(read=lambda: (b"", True), ask=lambda _: False)
        self.calls: list[object] = []
        self.failures: dict[str, KubeEfsError] = {}

    def fail(self, call: str) -> None:
        if call in self.failures:
            raise self.failures[call]

    async def mount(self, source: str, target: Path, options: str) -> None:
        self.calls.append(("mount", source, target.name, options))
        self.fail("mount")

    async def unmount(self, target: Path, *, force: bool = False, lazy: bool = False) -> None:
        self.calls.append(("unmount", target.name))

    async def ensure(self, spec: TunnelSpec, holder: Holder) -> int:
        self.calls.append(("ensure", spec.address))
        self.fail("ensure")
        return 22049

    async def ensure_for_pod(self, spec: TunnelSpec, holder: Holder, token: str) -> int:
        self.calls.append(("ensure_for_pod", spec.iam, token))
        return 22049

    async def release(self, holder: Holder) -> None:
        self.calls.append(("release", holder))
        self.fail("release")

    async def tunnels(self) -> tuple[TunnelOnDemand, ...]:
        return ()

    async def reconcile(self, holders: object) -> frozenset[Holder]:
        self.calls.append(("reconcile", holders))
        return frozenset()


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
async def channel(connect: Connect, recorder: Recorder) -> AsyncIterator[grpc.aio.Channel]:
    node_info = NodeInfo(node_id="i-0a")
    volumes = NodeVolumes(recorder, recorder, node_info)
    node = NodeService(volumes, Statistics(refresh_seconds=60), node_info, NodeOptions())
    async with connect(node_service(node)) as channel:
        yield channel


@pytest.fixture
def stub(channel: grpc.aio.Channel) -> Any:
    return NodeStub(channel)


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


def wanted(target: Path | str, volume: str = FS, **fields: Any) -> csi.NodePublishVolumeRequest:
    mode = fields.pop("mode", Modes.MULTI_NODE_MULTI_WRITER)
    flags = fields.pop("flags", ())
    mount = csi.VolumeCapability.MountVolume(mount_flags=flags, fs_type="ext4")
    capability = csi.VolumeCapability(mount=mount, access_mode=Modes(mode=mode))
    if fields.pop("is_block", False):
        capability.block.SetInParent()
    return csi.NodePublishVolumeRequest(
        volume_id=volume,
        target_path=str(target),
        volume_capability=capability,
        volume_context=fields.pop("context", {}),
        **fields,
    )


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        pytest.param(wanted(""), "target_path: is missing", id="no target"),
        pytest.param(wanted("pods/x"), "target_path: 'pods/x' is not an absolute path", id="relative target"),
        pytest.param(
            csi.NodePublishVolumeRequest(volume_id=FS, target_path="/x/y"),
            "volume_capability: is missing",
            id="no capability",
        ),
        pytest.param(wanted("/x/y", mode=Modes.UNKNOWN), "access mode: 'UNKNOWN' is not", id="no mode"),
        pytest.param(
            wanted("/x/y", mode=Modes.MULTI_NODE_SINGLE_WRITER),
            "access mode: 'MULTI_NODE_SINGLE_WRITER' is not supported",
            id="single writer on many nodes",
        ),
        pytest.param(wanted("/x/y", is_block=True), "access type: 'block' is not supported", id="block"),
        pytest.param(wanted("/x/y", ""), "volume ID: is missing", id="no volume"),
        pytest.param(
            wanted("/x/y", "vol-1"), "volume ID: 'vol-1' is not a valid file system ID", id="no handle"
        ),
        pytest.param(wanted("/x/y", f"{FS}:/a:{POINT}:x"), "has too many fields", id="too many fields"),
        pytest.param(
            wanted("/x/y", context={"path": "/a"}),
            "volume attribute: 'path' is not supported; put the path into the volume handle",
            id="removed attribute",
        ),
        pytest.param(wanted("/x/y", context={"color": "red"}), "'color' is not supported", id="attribute"),
        pytest.param(
            wanted("/x/y", flags=["iam"], context={"authenticationSource": "pod"}),
            "tokens of the pod: are missing in the request; add tokenRequests",
            id="no tokens of the pod",
        ),
        pytest.param(
            wanted("/x/y", context={"authenticationSource": "pod", **token_context("team", "web")}),
            "authenticationSource: 'pod' needs iam",
            id="tokens of the pod without iam",
        ),
        pytest.param(
            wanted("/x/y", context={"EncryptInTransit": "yes"}),
            "encryptInTransit: 'yes'",
            id="invalid boolean",
        ),
        pytest.param(
            wanted("/x/y", context={"mounttargetip": "10.0.0"}), "mounttargetip: '10.0.0'", id="address"
        ),
        pytest.param(
            wanted("/x/y", context={"mounttargetipmap": "[1]"}),
            "is not a JSON object",
            id="invalid map",
        ),
        pytest.param(
            wanted("/x/y", context={"crossaccount": "true", "mounttargetip": "10.0.0.1"}),
            "exclude each other",
            id="another account and an address",
        ),
        pytest.param(
            wanted("/x/y", flags=["CrossAccount"]), "mountOptions: 'crossaccount' is not allowed", id="flag"
        ),
        pytest.param(
            wanted("/x/y", flags=["tls"], context={"encryptInTransit": "false"}),
            "mountOptions: 'tls' contradicts encryptInTransit: false",
            id="tls and notls",
        ),
        pytest.param(
            wanted("/x/y", f"{FS}::{POINT}", flags=["accesspoint=fsap-01234567"]),
            f"is not the access point in the volume handle, {POINT}",
            id="two access points",
        ),
        pytest.param(wanted("/x/y", flags=["port=1"]), "would bypass the tunnel", id="port"),
        pytest.param(
            wanted("/x/y", flags=["verify=0"]), "would weaken the verification", id="disabled verification"
        ),
        *(
            pytest.param(wanted("/x/y", handle), f"volume ID: {told}", id=f"handle {handle}")
            for handle, told in {
                "fs-1234567": "'fs-1234567' is not a valid file system ID",
                f"fs-{'0' * 41}": f"'fs-{'0' * 41}' is not a valid file system ID",
                "fs-ABCD1234": "'fs-ABCD1234' is not a valid file system ID",
                "efs:": "is not a valid file system ID",
                f"nfs:{FS}": f"'nfs:{FS}' has an unknown type",
                f"s4files:{FS}": f"'s4files:{FS}' has an unknown type",
                f"{FS}::fsap-1234567": "'fsap-1234567' is not a valid access point ID",
                f"{FS}::ap": "'ap' is not a valid access point ID",
                f"{FS}:/a\nb": "'/a\\nb' ",
            }.items()
        ),
        *(
            pytest.param(wanted("/x/y", context={key: value}), told, id=f"attribute {key} {value}")
            for key, value, told in [
                ("crossaccount", "no", "crossaccount: 'no' is not a boolean"),
                ("encryptInTransit", "", "encryptInTransit: is not a boolean"),
                ("mounttargetip", "fs.example", "mounttargetip: 'fs.example' is not an IP address"),
                ("mounttargetip", "", "mounttargetip: is not an IP address"),
                ("mounttargetipmap", "", "mounttargetipmap: is not a JSON object"),
                ("mounttargetipmap", '{"us-east-1a":"x"}', "mounttargetipmap: 'x' is not an IP address"),
                ("mounttargetipmap", '{"a b":"10.0.0.1"}', "mounttargetipmap: 'a b' is not valid"),
            ]
        ),
        pytest.param(
            wanted("/x/y", context={"mountTargetIp": "10.0.0.1", "mounttargetip": "10.0.0.2"}),
            "is given twice",
            id="attribute twice",
        ),
        *(
            pytest.param(wanted("/x/y", flags=[flag], context=context), f"mountOptions: {told}", id=flag)
            for flag, context, told in [
                ("capath=/tmp", {}, "'capath=/tmp' would weaken the verification of the server"),
                ("cafile=/a/../ca", {}, "'/a/../ca' is not a valid path"),
                ("azid=use1-az1", {}, "'azid=use1-az1' is not allowed"),
                ("netns=/proc/1/ns/net", {}, "'netns=/proc/1/ns/net' is not allowed"),
                ("notls", {}, "'notls' contradicts TLS"),
                ("tls,notls", {}, "'tls' contradicts notls"),
                ("ocsp,noocsp", {}, "'ocsp' contradicts noocsp"),
                ("tlsport=high", {}, "'tlsport=high' is not a valid port"),
                ("iam", {"encryptInTransit": "false"}, "'iam' needs TLS"),
                (f"accesspoint={POINT}", {"encryptInTransit": "F"}, f"'accesspoint={POINT}' needs TLS"),
                ("accesspoint=ap", {}, "'ap' is not a valid access point ID"),
                ("awsprofile=team", {}, "'awsprofile=team' needs iam"),
                ("region=US EAST", {}, "'US EAST' is not valid"),
                ("az=a/b", {}, "'a/b' is not valid"),
                ("rsize=1=2", {}, "'rsize=1=2' is malformed"),
                ("x=a\nverifyChain = no", {}, "'x=a\\nverifyChain = no' is malformed"),
            ]
        ),
        pytest.param(
            wanted("/x/y", flags=["mounttargetip=10.0.0.1"], context={"crossaccount": "true"}),
            "exclude each other",
            id="another account and an address by flag",
        ),
        pytest.param(
            wanted("/x/y", flags=["mounttargetip=10.0.0.1"], context={"mounttargetip": "10.0.0.2"}),
            "'mounttargetip=10.0.0.1' is not the address in the volume attributes, 10.0.0.2",
            id="two addresses",
        ),
    ],
)
async def test_invalid_publish_request_is_refused(
    stub: Any, recorder: Recorder, request_: csi.NodePublishVolumeRequest, told: str
) -> None:
    code, text = await refused(stub.NodePublishVolume(request_))
    assert code is INVALID
    assert told in text
    assert recorder.calls == []


@pytest.mark.parametrize(
    ("volume", "target", "told"),
    [
        pytest.param("", "/x/y", "volume_id: is missing", id="no volume"),
        pytest.param(FS, "", "target_path: is missing", id="no target"),
        pytest.param(FS, "/x/../y", "is not an absolute path below /", id="path with .."),
    ],
)
async def test_invalid_unpublish_request_is_refused(
    stub: Any, recorder: Recorder, volume: str, target: str, told: str
) -> None:
    request = csi.NodeUnpublishVolumeRequest(volume_id=volume, target_path=target)
    code, text = await refused(stub.NodeUnpublishVolume(request))
    assert code is INVALID
    assert told in text
    assert recorder.calls == []


@pytest.mark.parametrize(
    ("volume", "path", "code", "told"),
    [
        pytest.param("", "/x/y", INVALID, "volume_id: is missing", id="no volume"),
        pytest.param(FS, "", INVALID, "volume_path: is missing", id="no path"),
        pytest.param(FS, "x/y", NOT_FOUND, "volume_path: 'x/y' is not an absolute path", id="relative path"),
        pytest.param(
            FS, "/x/y", NOT_FOUND, "volume_path: '/x/y' has no volume mounted on it", id="missing path"
        ),
    ],
)
async def test_statistics_of_an_invalid_path_are_refused(
    stub: Any, volume: str, path: str, code: grpc.StatusCode, told: str
) -> None:
    request = csi.NodeGetVolumeStatsRequest(volume_id=volume, volume_path=path)
    got, text = await refused(stub.NodeGetVolumeStats(request))
    assert got is code
    assert told in text


async def test_files_of_a_volume_that_is_unpublished_meanwhile_are_not_counted(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be those of the node's disk, below the target."""
    mounted, counted = {Path("/x/y")}, []

    async def is_mounted(target: Path) -> bool:
        return target in mounted

    async def ask(target: Path) -> Usage:
        mounted.discard(target)
        return Usage(total_bytes=1, used_bytes=1, available_bytes=1)

    async def count(target: Path) -> int:
        counted.append(target)
        return 0

    volumes = NodeVolumes(recorder, recorder, NodeInfo(node_id="i-0a"))
    monkeypatch.setattr(volumes, "is_mounted", is_mounted)
    request = csi.NodeGetVolumeStatsRequest(volume_id=FS, volume_path="/x/y")
    async with FileCounts(refresh_seconds=60, rate_limit=1, count=count) as counts:
        statistics = Statistics(refresh_seconds=60, ask=ask)
        node = NodeService(volumes, statistics, NodeInfo(node_id="i-0a"), NodeOptions(), counts)
        with pytest.raises(VolumeMissing):
            await node.NodeGetVolumeStats(request, cast("Any", None))
        await asyncio.sleep(0)
    assert counted == []


async def test_figures_that_the_protocol_cannot_have_are_limited(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def is_mounted(_: Path) -> bool:
        return True

    async def ask(_: Path) -> Usage:
        return Usage(
            total_bytes=2**63,
            used_bytes=7,
            available_bytes=2**64,
            total_inodes=2**63,
            used_inodes=2**63,
            available_inodes=2**63 - 2,
        )

    volumes = NodeVolumes(recorder, recorder, NodeInfo(node_id="i-0a"))
    monkeypatch.setattr(volumes, "is_mounted", is_mounted)
    node = NodeService(
        volumes, Statistics(refresh_seconds=60, ask=ask), NodeInfo(node_id="i-0a"), NodeOptions()
    )
    request = csi.NodeGetVolumeStatsRequest(volume_id=FS, volume_path="/x/y")
    in_bytes, in_inodes = (await node.NodeGetVolumeStats(request, cast("Any", None))).usage
    most = 2**63 - 1
    assert (in_bytes.total, in_bytes.used, in_bytes.available) == (most, 7, most)
    assert (in_inodes.total, in_inodes.used, in_inodes.available) == (most, most, most - 1)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        pytest.param("x" * 256, "has a name longer than 255 bytes; give shorter names", id="long name"),
        pytest.param("x/" * 2048 + "x", "is longer than 4095 bytes; give a shorter path", id="long path"),
        pytest.param("link", "is a link; remove the link", id="link"),
        pytest.param("dangling", "is a link; remove the link", id="dangling link"),
        pytest.param("file/mount", "is below a file; remove the file", id="below a file"),
        pytest.param("circle/mount", "is below a link that leads back to itself", id="below a link loop"),
        pytest.param("a\0b", "has control characters; give a path of printable characters", id="NUL byte"),
    ],
)
async def test_target_that_cannot_be_a_directory_is_an_invalid_argument(
    stub: Any, recorder: Recorder, tmp_path: Path, name: str, told: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    before = names_in(tmp_path)
    target = f"{tmp_path}/{name}"

    for method, asked in (
        (stub.NodePublishVolume, wanted(target)),
        (stub.NodeUnpublishVolume, csi.NodeUnpublishVolumeRequest(volume_id=FS, target_path=target)),
    ):
        code, text = await refused(method(asked))
        assert code is INVALID
        assert text.startswith(f"target_path: {shown(target)} {told}")
        assert len(text) < 400
    request = csi.NodeGetVolumeStatsRequest(volume_id=FS, volume_path=target)
    code, text = await refused(stub.NodeGetVolumeStats(request))
    assert code is NOT_FOUND
    assert len(text) < 400

    assert [call for call in recorder.calls if isinstance(call, tuple) and call[0] != "release"] == []
    assert names_in(tmp_path) == before


@pytest.mark.parametrize("method", ["NodePublishVolume", "NodeUnpublishVolume", "NodeGetVolumeStats"])
async def test_request_with_invalid_utf_8_is_an_invalid_argument(
    channel: grpc.aio.Channel, method: str
) -> None:
    call: Any = channel.unary_unary(f"/csi.v1.Node/{method}")
    code, text = await refused(call(b"\x0a\x03/a\xff"))  # the first field of each is the volume id
    assert code is INVALID
    assert text.startswith("request: is malformed (")


async def test_file_at_the_target_is_refused_and_not_removed(stub: Any, tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.touch()
    code, text = await refused(stub.NodePublishVolume(wanted(target)))
    assert (code, text) == (INVALID, f"target_path: '{target}' is a file; remove it")
    request = csi.NodeUnpublishVolumeRequest(volume_id=FS, target_path=str(target))
    await stub.NodeUnpublishVolume(request)
    assert target.exists()


async def test_any_volume_id_can_be_unmounted(stub: Any, recorder: Recorder, tmp_path: Path) -> None:
    target = tmp_path / "x"
    request = csi.NodeUnpublishVolumeRequest(volume_id="of an older driver", target_path=str(target))
    await stub.NodeUnpublishVolume(request)
    assert recorder.calls == [("release", f"of%20an%20older%20driver {target}")]


async def test_options_without_effect_are_logged_and_harmless(
    stub: Any, recorder: Recorder, tmp_path: Path
) -> None:
    addresses = '{"us-east-1c":"10.0.0.3","us-east-1b":"10.0.0.2"}'
    with capture_logs() as logs:
        await stub.NodePublishVolume(
            wanted(tmp_path / "x", flags=["tlsport=20000"], context={"mounttargetipmap": addresses})
        )
    assert recorder.calls[0] == ("ensure", "10.0.0.2")
    told = {line["event"]: line for line in logs}
    assert told["mount-option-warning"]["reason"].startswith("mountOptions: 'tlsport=20000' has no effect")
    assert "mount-target-of-another-zone" in told


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        pytest.param(
            ("ensure", TunnelNotReady("was not ready within 20 s", field="tunnel", value="fs-1")),
            (grpc.StatusCode.UNAVAILABLE, "tunnel: 'fs-1' was not ready within 20 s"),
            id="tunnel not ready in time",
        ),
        pytest.param(
            ("ensure", NoTunnelPort("has no free port", field="KUBE_EFS_TUNNEL_PORTS")),
            (grpc.StatusCode.RESOURCE_EXHAUSTED, "KUBE_EFS_TUNNEL_PORTS: has no free port"),
            id="no port",
        ),
        pytest.param(
            ("ensure", AwsDenied("are not available", field="AWS credentials")),
            (grpc.StatusCode.PERMISSION_DENIED, "AWS credentials: are not available"),
            id="no credentials",
        ),
        pytest.param(
            ("mount", MountFailed("mount ended with status 32: access denied", field="target")),
            (grpc.StatusCode.INTERNAL, "target: mount ended with status 32: access denied"),
            id="no mount",
        ),
    ],
)
@pytest.mark.parametrize("is_agent_there", [True, False])
async def test_failed_publish_releases_its_tunnel(
    stub: Any,
    recorder: Recorder,
    tmp_path: Path,
    failure: tuple[str, KubeEfsError],
    told: tuple[grpc.StatusCode, str],
    is_agent_there: bool,
) -> None:
    call, error = failure
    recorder.failures[call] = error
    if not is_agent_there:
        recorder.failures["release"] = TunnelAgentUnavailable("is not there", field="tunnel agent")
    target = tmp_path / "x"

    assert await refused(stub.NodePublishVolume(wanted(target))) == told

    assert recorder.calls[-1] == ("release", f"{FS} {target}")
    assert not target.exists()


async def test_reconciliation_continues_after_a_failure() -> None:
    pauses: list[float] = []
    outcomes: list[KubeEfsError | None] = [PlatformError("no table"), TunnelNotReady("later"), None]

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if not outcomes:
            raise asyncio.CancelledError

    class Volumes:
        async def reconcile(self) -> None:
            if error := outcomes.pop(0):
                raise error

    heartbeat = Heartbeat("reconciliation", max_age_seconds=1)
    with pytest.raises(asyncio.CancelledError):
        await run_node._reconcile(cast("NodeVolumes", Volumes()), heartbeat, pause)
    # The agent needs two calls, a minute apart.
    assert pauses == [5.0, 5.0, 70.0]
    assert heartbeat.health().ok


@pytest.mark.parametrize("name", ["NodeStageVolume", "NodeUnstageVolume", "NodeExpandVolume"])
async def test_unsupported_methods_are_unimplemented(channel: grpc.aio.Channel, name: str) -> None:
    call: Any = channel.unary_unary(f"/csi.v1.Node/{name}")
    code, _ = await refused(call(b""))
    assert code is grpc.StatusCode.UNIMPLEMENTED
