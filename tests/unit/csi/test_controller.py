"""The Controller service over real gRPC: every code of the contract, and the content of answers."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc
import pytest
from grpc import StatusCode
from structlog.testing import capture_logs
from tests.unit.csi.served import Connect
from tests.unit.provisioning.backends.csi.csi_world import FS, OTHER, CsiWorld

from kube_efs.csi.codes import code_of
from kube_efs.csi.controller import ControllerService, controller_service
from kube_efs.csi.protocol import csi_pb2 as csi
from kube_efs.csi.protocol.csi_pb2_grpc import ControllerStub
from kube_efs.model.claims import ReclaimPolicy
from kube_efs.model.copies import SNAPSHOTS, Copied, CopySource, FileOwner
from kube_efs.model.csi.snapshots import parse_snapshot_id
from kube_efs.model.efs.directories import parse_directory
from kube_efs.model.efs.ids import ClaimUid, ZoneName
from kube_efs.model.errors import (
    AwsDenied,
    AwsLimitReached,
    AwsNotFound,
    AwsNotPermitted,
    AwsRefused,
    AwsThrottled,
    AwsUnavailable,
    CopyDiffers,
    KubeDenied,
    KubeEfsError,
    KubeInvalid,
    KubeUnavailable,
    WorkerFailed,
    WorkerRefused,
)
from kube_efs.model.snapshots import BEING_DELETED, SnapshotContent
from kube_efs.model.volumes import DRIVER, Location, VolumePhase
from kube_efs.provisioning import snapshots as snapshots_module

# The generated type of a stub is that of calls that block, unless mypy sees the channel that it is made with.
Stub = Any
MODES = csi.VolumeCapability.AccessMode
NEEDFUL = {"provisioningMode": "efs-ap", "fileSystemId": str(FS), "directoryPerms": "700"}
DENIED = StatusCode.PERMISSION_DENIED
ROLE = {"awsRoleArn": "arn:aws:iam::123456789012:role/storage"}


def capability(mode: int = MODES.MULTI_NODE_MULTI_WRITER, **mount: Any) -> csi.VolumeCapability:
    return csi.VolumeCapability(
        mount=csi.VolumeCapability.MountVolume(**mount),
        access_mode=MODES(mode=mode),  # type: ignore[arg-type]
    )


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


BLOCK = csi.VolumeCapability(
    block=csi.VolumeCapability.BlockVolume(), access_mode=MODES(mode=MODES.SINGLE_NODE_WRITER)
)


def wanted(name: str = "pvc-1", **changes: Any) -> csi.CreateVolumeRequest:
    parameters = {**NEEDFUL, **changes.pop("parameters", {})}
    fields = {"volume_capabilities": [capability()], **changes}
    kept = {key: value for key, value in parameters.items() if value != "-"}
    return csi.CreateVolumeRequest(name=name, parameters=kept, **fields)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def world(clock: Clock) -> CsiWorld:
    return CsiWorld(clock=clock)


@pytest.fixture
def shared_world(clock: Clock) -> CsiWorld:
    """The world of one of several replicas, which lists access points again after a while."""
    return CsiWorld(is_alone=False, clock=clock)


def service(world: CsiWorld) -> ControllerService:
    return ControllerService(
        world.volumes, world.claims.get, world.sources, world.snapshots, has_driver_tags=True
    )


@pytest.fixture
async def stub(connect: Connect, world: CsiWorld) -> AsyncIterator[Stub]:
    async with connect(controller_service(service(world))) as channel:
        yield ControllerStub(channel)


@pytest.fixture
async def shared_stub(connect: Connect, shared_world: CsiWorld) -> AsyncIterator[Stub]:
    async with connect(controller_service(service(shared_world))) as channel:
        yield ControllerStub(channel)


async def refused(call: Any) -> tuple[StatusCode, str]:
    """The code and text of a failed call."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


async def test_only_implemented_capabilities_are_announced(stub: Stub) -> None:
    answer = await stub.ControllerGetCapabilities(csi.ControllerGetCapabilitiesRequest())
    kinds = {csi.ControllerServiceCapability.RPC.Type.Name(one.rpc.type) for one in answer.capabilities}
    needing_workers = {"CLONE_VOLUME", "CREATE_DELETE_SNAPSHOT"}
    assert kinds == {"CREATE_DELETE_VOLUME", "EXPAND_VOLUME", "SINGLE_NODE_MULTI_WRITER"} | needing_workers


@pytest.mark.parametrize(
    "method",
    [
        *("ControllerPublishVolume", "ControllerUnpublishVolume", "ListVolumes", "GetCapacity"),
        *("CreateSnapshot", "DeleteSnapshot", "ListSnapshots"),
        *("ControllerGetVolume", "ControllerModifyVolume"),
    ],
)
async def test_unannounced_methods_are_unimplemented(connect: Connect, world: CsiWorld, method: str) -> None:
    async with connect(
        controller_service(ControllerService(world.volumes, world.claims.get, world.sources, None))
    ) as channel:
        code, _ = await refused(channel.unary_unary(f"/csi.v1.Controller/{method}")(b""))  # type: ignore[arg-type]
    assert code is StatusCode.UNIMPLEMENTED


# --- CreateVolume


async def test_created_volume_has_only_handle_and_capacity(stub: Stub) -> None:
    answer = await stub.CreateVolume(wanted(capacity_range=csi.CapacityRange(required_bytes=7)))
    assert answer.volume == csi.Volume(capacity_bytes=7, volume_id=f"efs:{FS}::fsap-{1:017x}")


async def test_one_zone_volume_of_another_account_has_topology_and_address(
    stub: Stub, world: CsiWorld
) -> None:
    world.gateway.zone = ZoneName("us-east-1a")
    answer = await stub.CreateVolume(
        wanted(parameters={"enforceZoneAffinity": "true", "az": "us-east-1b"}, secrets=ROLE)
    )
    assert dict(answer.volume.volume_context) == {"mounttargetip": "10.0.1.1"}
    (topology,) = answer.volume.accessible_topology
    assert dict(topology.segments) == {"topology.kubernetes.io/zone": "us-east-1a"}


async def test_settings_without_effect_are_logged(stub: Stub) -> None:
    request = wanted(parameters={"provisioningMode": "s3files-ap", "basepath": "/x"}, secrets=ROLE)
    with capture_logs() as logs:
        await stub.CreateVolume(request)
    assert [one["reason"] for one in logs if one["event"] == "storage-class-warning"] == [
        "parameter: 'basepath' is not known and has no effect; did you mean basePath?",
        "provisioner secret: a role has no effect on S3 Files, as in the AWS driver",
    ]


async def test_volume_of_s3_files_is_created_and_deleted(stub: Stub, world: CsiWorld) -> None:
    request = wanted(
        parameters={"provisioningMode": "s3files-ap"},
        volume_capabilities=[capability(mount_flags=["azid=use1-az1"])],
    )
    answer = await stub.CreateVolume(request)
    assert answer.volume == csi.Volume(volume_id=f"s3files:{FS}::fsap-{1:017x}")
    assert (await stub.CreateVolume(request)).volume == answer.volume
    released = {"phase": VolumePhase.RELEASED, "reclaim_policy": ReclaimPolicy.DELETE}
    world.note("pvc-1", answer.volume.volume_id, **released)
    await stub.DeleteVolume(csi.DeleteVolumeRequest(volume_id=answer.volume.volume_id))
    assert world.s3_api.points == {}
    code, told = await refused(
        stub.CreateVolume(
            wanted(
                parameters={"provisioningMode": "s3files-ap"},
                volume_capabilities=[capability(mount_flags=["az=us-east-1a"])],
            )
        )
    )
    assert (code, "use azid" in told) == (StatusCode.INVALID_ARGUMENT, True)


async def test_claim_from_the_sidecar_is_in_tags_and_path(stub: Stub, world: CsiWorld) -> None:
    prefix = "csi.storage.k8s.io"
    told = {f"{prefix}/pvc/name": "data", f"{prefix}/pvc/namespace": "team", f"{prefix}/pv/name": "pvc-1"}
    pattern = {"subPathPattern": "${.PVC.namespace}/${.PVC.name}", "ensureUniqueDirectory": "false"}
    await stub.CreateVolume(wanted(parameters=told | pattern))
    (point,) = world.api.points.values()
    assert str(point.directory) == "/team/data"
    assert point.tags["kubernetes.io/created-for/pvc/name"] == "data"


CLAIM = {"csi.storage.k8s.io/pvc/name": "data", "csi.storage.k8s.io/pvc/namespace": "team"}
CHOICE = {"allowedUids": "1000-1999"}
LABEL = {"subPathPattern": "${.PVC.namespace}/${.PVC.labels.app}", "ensureUniqueDirectory": "false"}


async def test_labels_and_annotations_are_those_of_the_claim_in_the_api_server(
    stub: Stub, world: CsiWorld
) -> None:
    world.claims.add("team", "data", labels={"app": "shop"}, annotations={"efs.csi.aws.com/uid": "1001"})
    await stub.CreateVolume(wanted(parameters=CLAIM | CHOICE | LABEL))
    (point,) = world.api.points.values()
    assert str(point.directory) == "/team/shop"
    assert point.user is not None
    assert point.user.uid == 1001


async def test_annotation_that_the_class_does_not_allow_is_not_ignored(stub: Stub, world: CsiWorld) -> None:
    world.claims.add("team", "data", labels={}, annotations={"efs.csi.aws.com/uid": "0"})
    code, text = await refused(stub.CreateVolume(wanted(parameters=CLAIM)))
    assert code is StatusCode.INVALID_ARGUMENT
    assert text.startswith("metadata.annotations[efs.csi.aws.com/uid]: '0' is not allowed by the class")
    assert not world.api.calls


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [({}, None), (CHOICE, DENIED), (LABEL, DENIED)],
    ids=["none", "choice", "label"],
)
async def test_only_classes_that_need_the_claim_need_the_permission_to_read_it(
    stub: Stub, world: CsiWorld, parameters: dict[str, str], expected: StatusCode | None
) -> None:
    world.claims.fault = KubeDenied("answered 403", field="claim team/data", remedy="check the roles")
    call = stub.CreateVolume(wanted(parameters=CLAIM | parameters))
    if expected is None:
        assert (await call).volume.volume_id
    else:
        assert await refused(call) == (expected, "claim team/data: answered 403; check the roles")
        assert not world.api.calls


async def test_class_with_choices_is_refused_without_the_name_of_the_claim(stub: Stub) -> None:
    code, text = await refused(stub.CreateVolume(wanted(parameters=CHOICE)))
    assert code is StatusCode.INVALID_ARGUMENT
    assert text.endswith(
        "needs the claim's name and namespace; run csi-provisioner with --extra-create-metadata"
    )


@pytest.mark.parametrize(
    "mode",
    [
        *(MODES.SINGLE_NODE_WRITER, MODES.SINGLE_NODE_READER_ONLY, MODES.MULTI_NODE_READER_ONLY),
        *(MODES.MULTI_NODE_MULTI_WRITER, MODES.SINGLE_NODE_SINGLE_WRITER, MODES.SINGLE_NODE_MULTI_WRITER),
    ],
)
async def test_every_supported_access_mode_is_served(stub: Stub, mode: int) -> None:
    assert (await stub.CreateVolume(wanted(volume_capabilities=[capability(mode)]))).volume.volume_id


INVALID: dict[str, tuple[csi.CreateVolumeRequest, str]] = {
    "no name": (wanted(""), "name: is missing"),
    "no capabilities": (wanted(volume_capabilities=[]), "volume capabilities: are missing"),
    "no mode": (wanted(volume_capabilities=[capability(MODES.UNKNOWN)]), "access mode: 'UNKNOWN'"),
    "single writer on many nodes": (
        wanted(volume_capabilities=[capability(MODES.MULTI_NODE_SINGLE_WRITER)]),
        "access mode: 'MULTI_NODE_SINGLE_WRITER' is not supported",
    ),
    "unknown access mode": (wanted(volume_capabilities=[capability(99)]), "access mode: 'UNKNOWN'"),
    "block device": (wanted(volume_capabilities=[BLOCK]), "access type: 'block' is not supported"),
    "one invalid of two": (wanted(volume_capabilities=[capability(), BLOCK]), "access type: 'block'"),
    "flag of another account": (
        wanted(volume_capabilities=[capability(mount_flags=["tls,crossaccount"])]),
        "mountOptions: 'crossaccount' is not allowed",
    ),
    "flag that no node can mount with": (
        wanted(volume_capabilities=[capability(mount_flags=["tls", "netns=/run/netns/x"])]),
        "mountOptions: 'netns=/run/netns/x' is not allowed because the tunnel is in the network namespace",
    ),
    "flag that contradicts the encryption of the volume": (
        wanted(volume_capabilities=[capability(mount_flags=["notls"])]),
        "mountOptions: 'notls' contradicts TLS; leave it out",
    ),
    "flag with a comma in quotes": (
        wanted(volume_capabilities=[capability(mount_flags=['ro,cafile="a,b"'])]),
        """mountOptions: 'cafile="a,b"' has a comma in its value; use a value without commas""",
    ),
    "another file system's type": (
        wanted(volume_capabilities=[capability(fs_type="ext4")]),
        "csi.storage.k8s.io/fstype: 'ext4' is not supported; leave it out, or use efs or s3files",
    ),
    "content source": (
        wanted(volume_content_source=csi.VolumeContentSource()),
        "volume_content_source: is empty; give a volume or a snapshot",
    ),
    "no class": (wanted(parameters=dict.fromkeys(NEEDFUL, "-")), "provisioningMode: is missing"),
    "no tags despite driver tags": (
        wanted(parameters={"enableTagging": "false"}),
        "enableTagging: 'false' contradicts the tags of the driver",
    ),
    "reuse that is not a boolean": (wanted(parameters={"reuseAccessPoint": ""}), "reuseAccessPoint: "),
    "reuse without the claim": (
        wanted(parameters={"reuseAccessPoint": "true"}),
        "reuseAccessPoint: needs the claim's name and namespace; run csi-provisioner with",
    ),
    "path too deep": (wanted(parameters={"basePath": "/1/2/3/4"}), "root directory: "),
    "invalid role": (
        wanted(secrets={"awsRoleArn": "hush"}),
        "secret awsRoleArn: is not the ARN of a role",
    ),
    "invalid boolean": (
        wanted(secrets={"crossaccount": "hush"}),
        "secret crossaccount: is not a boolean",
    ),
}


@pytest.mark.parametrize(("request_", "text"), INVALID.values(), ids=INVALID.keys())
async def test_invalid_request_is_refused_without_a_call_to_aws(
    stub: Stub, world: CsiWorld, request_: csi.CreateVolumeRequest, text: str
) -> None:
    code, details = await refused(stub.CreateVolume(request_))
    assert code is StatusCode.INVALID_ARGUMENT
    assert text in details
    assert "hush" not in details
    assert not world.api.calls


FAULTS = {
    "denied": (AwsDenied, StatusCode.PERMISSION_DENIED),
    "no file system": (AwsNotFound, StatusCode.NOT_FOUND),
    "throttled": (AwsThrottled, StatusCode.UNAVAILABLE),
    "away": (AwsUnavailable, StatusCode.UNAVAILABLE),
    "full": (AwsLimitReached, StatusCode.RESOURCE_EXHAUSTED),
    "refused": (AwsRefused, StatusCode.FAILED_PRECONDITION),
}


@pytest.mark.parametrize("call", ["list", "create", "file_system", "mount_targets"])
@pytest.mark.parametrize(("kind", "code"), FAULTS.values(), ids=FAULTS.keys())
async def test_every_aws_error_has_its_code_in_every_call(
    stub: Stub, world: CsiWorld, call: str, kind: type[KubeEfsError], code: StatusCode
) -> None:
    world.api.faults[call] = kind("says no", field=call)
    request = wanted(parameters={"enforceZoneAffinity": "true"}, secrets=ROLE)
    assert (await refused(stub.CreateVolume(request)))[0] is code


async def test_full_range_of_ids_is_resource_exhausted(stub: Stub) -> None:
    narrow = {"gidRangeStart": "7", "gidRangeEnd": "8"}
    for name in ("pvc-1", "pvc-2"):
        await stub.CreateVolume(wanted(name, parameters=narrow))
    code, details = await refused(stub.CreateVolume(wanted("pvc-3", parameters=narrow)))
    assert (code, "7-8" in details) == (StatusCode.RESOURCE_EXHAUSTED, True)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        pytest.param({"capacity_range": csi.CapacityRange(required_bytes=9)}, "required_bytes", id="size"),
        pytest.param({"parameters": {"basePath": "/x"}}, "is not in basePath /x", id="another base"),
        pytest.param({"parameters": {"gid": "7"}}, "has gid 50000, which is not 7", id="another group"),
        pytest.param({"parameters": {"fileSystemId": str(OTHER)}}, f"is on {FS}", id="another file system"),
    ],
)
async def test_same_name_with_another_request_already_exists(
    stub: Stub, changes: dict[str, Any], text: str
) -> None:
    await stub.CreateVolume(wanted(capacity_range=csi.CapacityRange(required_bytes=7)))
    again = {"capacity_range": csi.CapacityRange(required_bytes=7), **changes}
    code, details = await refused(stub.CreateVolume(wanted(**again)))
    assert (code, text in details) == (StatusCode.ALREADY_EXISTS, True), details


async def test_access_point_without_a_posix_user_is_refused(stub: Stub, world: CsiWorld) -> None:
    await stub.CreateVolume(wanted())
    world.api.points = {key: replace(one, user=None) for key, one in world.api.points.items()}
    code, details = await refused(stub.CreateVolume(wanted()))
    assert (code, "has no POSIX user" in details) == (StatusCode.ALREADY_EXISTS, True)


async def test_second_call_for_a_volume_is_aborted(stub: Stub, world: CsiWorld) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()
    real = world.api.create

    async def slow(request: Any) -> Any:
        begun.set()
        await may_end.wait()
        return await real(request)

    world.api.create = slow  # type: ignore[method-assign]
    first = asyncio.ensure_future(stub.CreateVolume(wanted()))
    await asyncio.wait_for(begun.wait(), 10)
    assert (await refused(stub.CreateVolume(wanted())))[0] is StatusCode.ABORTED
    may_end.set()
    assert (await first).volume.volume_id


# --- no final code while something may exist for the name


AGAIN = StatusCode.UNAVAILABLE


async def lose(stub: Stub, world: CsiWorld, request: csi.CreateVolumeRequest) -> None:
    """A call that creates the access point, although AWS does not answer."""
    world.api.lost = {"create"}
    assert (await refused(stub.CreateVolume(request)))[0] is AGAIN
    assert len(world.api.points) == 1
    world.api.lost = set()


@pytest.mark.parametrize("kind", [AwsDenied, AwsNotPermitted])
async def test_list_that_aws_denies_after_a_lost_creation_is_not_final(
    shared_stub: Stub, shared_world: CsiWorld, clock: Clock, kind: type[KubeEfsError]
) -> None:
    await lose(shared_stub, shared_world, wanted())
    clock.now += 20  # by then, another replica may have created some
    shared_world.api.faults["list"] = kind("was answered with ExpiredToken", field="DescribeAccessPoints")
    assert (await refused(shared_stub.CreateVolume(wanted())))[0] is AGAIN


async def test_reference_that_is_gone_after_a_lost_creation_is_not_final(stub: Stub, world: CsiWorld) -> None:
    world.texts.texts["ConfigMap team/efs data.id"] = str(FS)
    request = wanted(parameters={"fileSystemId": "-", "fileSystemIdConfigRef": "team/efs/id"})
    await lose(stub, world, request)
    world.texts.texts.clear()
    assert (await refused(stub.CreateVolume(request)))[0] is AGAIN


async def test_class_that_became_invalid_after_a_lost_creation_is_not_final(
    stub: Stub, world: CsiWorld
) -> None:
    await lose(stub, world, wanted())
    assert (await refused(stub.CreateVolume(wanted(parameters={"directoryPerms": "x"}))))[0] is AGAIN


@pytest.mark.parametrize("is_replaced", [False, True], ids=["deleted", "replaced"])
async def test_volume_of_a_deleted_claim_gets_the_last_known_labels(
    stub: Stub, world: CsiWorld, is_replaced: bool
) -> None:
    choice = {"efs.csi.aws.com/uid": "1001"}
    world.claims.add("team", "data", labels={"app": "shop"}, annotations=choice)
    request = wanted(parameters=CLAIM | LABEL | CHOICE)
    world.api.faults["create"] = AwsUnavailable("was not answered", field="CreateAccessPoint")
    assert (await refused(stub.CreateVolume(request)))[0] is AGAIN
    world.api.faults.clear()
    if is_replaced:
        later = replace(world.claims.known["team", "data"], uid=ClaimUid("later"), labels={"app": "x"})
        world.claims.known["team", "data"] = later
    else:
        world.claims.known.clear()
    await stub.CreateVolume(request)
    (point,) = world.api.points.values()
    assert str(point.directory) == "/team/shop"
    assert point.user is not None
    assert point.user.uid == 1001


@pytest.mark.parametrize("mode", ["efs-ap", "efs-dir"])
@pytest.mark.parametrize("kind", [KubeDenied, KubeInvalid, AwsNotPermitted])
async def test_refusal_of_a_copy_after_the_creation_of_its_target_is_not_final(
    stub: Stub, world: CsiWorld, monkeypatch: pytest.MonkeyPatch, mode: str, kind: type[KubeEfsError]
) -> None:
    async def refuse(*_: Any, **__: Any) -> Copied:
        raise kind("is refused", field="worker pod")

    monkeypatch.setattr(world.folders, "copy", refuse)
    world.sources.by_handle[f"efs:{OLD}"] = OLD_DATA
    request = wanted(parameters={"provisioningMode": mode, "basePath": "/b"}, volume_content_source=OF_VOLUME)
    assert (await refused(stub.CreateVolume(request)))[0] is AGAIN
    assert world.folders.made


async def test_begun_copy_for_a_deleted_claim_ends_although_its_source_is_gone(
    stub: Stub, world: CsiWorld
) -> None:
    name = "pvc-uid-of-data"
    request = wanted(name, volume_content_source=OF_VOLUME, parameters=CLAIM)
    world.sources.by_handle[f"efs:{OLD}"] = OLD_DATA
    world.claims.add("team", "data", labels={}, annotations={})
    world.folders.copy_fault = WorkerFailed("did not end", field="worker pod")
    assert (await refused(stub.CreateVolume(request)))[0] is AGAIN
    world.sources.by_handle.clear()
    assert (await refused(stub.CreateVolume(request)))[0] is AGAIN
    world.claims.known.clear()
    assert (await stub.CreateVolume(request)).volume.volume_id == f"efs:{FS}::fsap-{1:017x}"
    another = wanted("pvc-2", volume_content_source=OF_VOLUME, parameters=CLAIM)
    assert (await refused(stub.CreateVolume(another)))[0] is StatusCode.NOT_FOUND


async def test_refused_list_of_pods_after_the_creation_is_not_final(stub: Stub, world: CsiWorld) -> None:
    world.folders.busy = KubeDenied("answered 403", field="pods")
    assert (await refused(stub.CreateVolume(wanted())))[0] is AGAIN
    assert len(world.api.points) == 1


async def test_limit_after_the_creation_is_not_final() -> None:
    """Such as another file system of a changed class that is full."""
    world = CsiWorld(quota=1)
    driver = service(world)
    world.folders.busy = KubeUnavailable("was not answered", field="pods")
    with pytest.raises(KubeUnavailable):
        await driver.CreateVolume(wanted(), None)
    world.folders.busy = None
    changed = {"fileSystemId": str(OTHER)}
    await driver.CreateVolume(wanted("pvc-9", parameters=changed), None)
    with pytest.raises(AwsLimitReached) as caught:
        await driver.CreateVolume(wanted(parameters=changed), None)
    assert code_of(caught.value) is AGAIN


async def test_file_system_that_is_deleted_after_the_creation_makes_the_answer_final(
    stub: Stub, world: CsiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> None:
        if name in {"create", "list"}:
            raise AwsNotFound("was answered with FileSystemNotFound", field=name)

    world.folders.busy = KubeDenied("answered 403", field="pods")
    assert (await refused(stub.CreateVolume(wanted())))[0] is AGAIN
    world.api.points.clear()
    monkeypatch.setattr(world.api, "call", refuse)
    for points in world.accounts._account.access_points.values():
        await points.known.refresh_known()
    assert (await refused(stub.CreateVolume(wanted())))[0] is StatusCode.NOT_FOUND


async def test_claims_of_complete_volumes_are_forgotten() -> None:
    world = CsiWorld(quota=100)
    driver = service(world)
    for number in range(30):
        name, claim = f"pvc-uid-of-c{number}", f"c{number}"
        world.claims.add("team", claim, labels={}, annotations={})
        parameters = {**CLAIM, "csi.storage.k8s.io/pvc/name": claim}
        created = await driver.CreateVolume(wanted(name, parameters=parameters), None)
        assert created
        world.note(name, created.volume.volume_id)
    assert len(driver._claims) <= 1


async def test_internal_error_after_the_creation_is_not_final(
    stub: Stub, world: CsiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: Location) -> None:
        raise KeyError("DB_PASS=x")

    monkeypatch.setattr(world.folders, "settled", fail)
    with capture_logs() as logs:
        code, text = await refused(stub.CreateVolume(wanted()))
    assert (code, text) == (AGAIN, "internal error (KeyError); the log has the details")
    assert "call-failed" in [one["event"] for one in logs]


async def test_internal_error_before_the_creation_is_final(
    stub: Stub, world: CsiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> None:
        raise KeyError("x")

    monkeypatch.setattr(world.gateway, "file_system", fail)
    request = wanted(parameters={"enforceZoneAffinity": "true"})
    assert (await refused(stub.CreateVolume(request)))[0] is StatusCode.INTERNAL


async def test_invalid_repetition_of_an_answered_call_is_final_once_the_volume_is_known(
    stub: Stub, world: CsiWorld
) -> None:
    """The answer may not have reached csi-provisioner."""
    handle = (await stub.CreateVolume(wanted(parameters={"provisioningMode": "efs-dir"}))).volume.volume_id
    invalid = wanted(parameters={"provisioningMode": "efs-dir", "directoryPerms": "x"})
    assert (await refused(stub.CreateVolume(invalid)))[0] is AGAIN
    world.note("pvc-1", handle)
    assert (await refused(stub.CreateVolume(invalid)))[0] is StatusCode.INVALID_ARGUMENT


async def test_refusal_is_final_again_when_a_lost_creation_has_made_nothing(
    stub: Stub, world: CsiWorld, clock: Clock
) -> None:
    world.api.faults["create"] = AwsUnavailable("was not answered", field="CreateAccessPoint")
    assert (await refused(stub.CreateVolume(wanted())))[0] is AGAIN
    invalid = wanted(parameters={"directoryPerms": "x"})
    assert (await refused(stub.CreateVolume(invalid)))[0] is AGAIN
    clock.now += 301
    world.api.faults["create"] = AwsDenied("is not allowed", field="CreateAccessPoint")
    assert (await refused(stub.CreateVolume(wanted())))[0] is DENIED
    assert (await refused(stub.CreateVolume(invalid)))[0] is StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (WorkerFailed("did not end", field="worker pod"), AGAIN),
        (WorkerRefused("is a link", field="directory"), StatusCode.INVALID_ARGUMENT),
        (KubeDenied("answered 403", field="worker pod"), StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_only_a_directory_that_may_exist_keeps_its_volume_from_final_codes(
    stub: Stub, world: CsiWorld, fault: KubeEfsError, expected: StatusCode
) -> None:
    parameters = {"provisioningMode": "efs-dir", "uid": "7", "gid": "8"}
    world.folders.fault = fault
    await refused(stub.CreateVolume(wanted(parameters=parameters)))
    invalid = wanted(parameters={**parameters, "directoryPerms": "x"})
    assert (await refused(stub.CreateVolume(invalid)))[0] is expected
    assert (await refused(stub.CreateVolume(wanted("pvc-2", parameters={"uid": "x"}))))[0] is (
        StatusCode.INVALID_ARGUMENT
    )


async def test_call_without_a_pod_does_not_decide_about_an_earlier_directory(
    stub: Stub, world: CsiWorld
) -> None:
    request = wanted(parameters={"provisioningMode": "efs-dir"})
    for fault in (WorkerFailed("did not end", field="pod"), KubeDenied("answered 403", field="pod")):
        world.folders.fault = fault
        assert (await refused(stub.CreateVolume(request)))[0] is AGAIN


async def test_parameter_without_effect_is_logged(stub: Stub) -> None:
    with capture_logs() as logs:
        await stub.CreateVolume(wanted(parameters={"basepath": "/x"}))
    (line,) = [one for one in logs if one["event"] == "storage-class-warning"]
    assert "'basepath' is not known and has no effect; did you mean basePath?" in line["reason"]


# --- DeleteVolume


async def test_repeated_deletion_succeeds(stub: Stub, world: CsiWorld) -> None:
    handle = (await stub.CreateVolume(wanted())).volume.volume_id
    for _ in range(2):
        assert (
            await stub.DeleteVolume(csi.DeleteVolumeRequest(volume_id=handle)) == csi.DeleteVolumeResponse()
        )
    assert not world.api.points


@pytest.mark.parametrize("handle", ["vol-1", "nfs:fs-1", str(FS), f"efs:{FS}:/by/hand", f"{FS}::fsap-x"])
async def test_deletion_of_a_foreign_handle_has_no_effect(stub: Stub, world: CsiWorld, handle: str) -> None:
    await stub.DeleteVolume(csi.DeleteVolumeRequest(volume_id=handle))
    assert not world.api.calls
    assert not world.folders.removed


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (csi.DeleteVolumeRequest(), "volume_id: is missing"),
        (csi.DeleteVolumeRequest(secrets={"crossaccount": "x"}, volume_id="efs:fs-1"), "secret crossaccount"),
    ],
    ids=["no id", "a malformed secret"],
)
async def test_deletion_without_a_handle_is_invalid(
    stub: Stub, request_: csi.DeleteVolumeRequest, text: str
) -> None:
    code, details = await refused(stub.DeleteVolume(request_))
    assert (code, text in details) == (StatusCode.INVALID_ARGUMENT, True)


@pytest.mark.parametrize(("kind", "code"), FAULTS.values(), ids=FAULTS.keys())
async def test_deletion_refused_by_aws_has_its_code(
    stub: Stub, world: CsiWorld, kind: type[KubeEfsError], code: StatusCode
) -> None:
    handle = (await stub.CreateVolume(wanted())).volume.volume_id
    world.api.faults["delete"] = kind("says no", field="delete")
    call = stub.DeleteVolume(csi.DeleteVolumeRequest(volume_id=handle))
    if kind is AwsNotFound:
        await call
    else:
        assert (await refused(call))[0] is code


async def test_deletion_of_a_foreign_access_point_is_a_failed_precondition(stub: Stub) -> None:
    handle = (await stub.CreateVolume(wanted())).volume.volume_id
    crafted = handle.replace(FS, OTHER)
    code, details = await refused(stub.DeleteVolume(csi.DeleteVolumeRequest(volume_id=crafted)))
    assert (code, f"belongs to {FS}" in details) == (StatusCode.FAILED_PRECONDITION, True)


# --- ValidateVolumeCapabilities


async def validated(stub: Stub, handle: str, *capabilities: csi.VolumeCapability) -> Any:
    return await stub.ValidateVolumeCapabilities(
        csi.ValidateVolumeCapabilitiesRequest(
            volume_id=handle,
            volume_capabilities=capabilities,
            volume_context={"a": "b"},
            parameters={"c": "d"},
        )
    )


async def test_supported_capabilities_are_confirmed(stub: Stub) -> None:
    handle = (await stub.CreateVolume(wanted())).volume.volume_id
    answer = await validated(stub, handle, capability())
    assert list(answer.confirmed.volume_capabilities) == [capability()]
    assert dict(answer.confirmed.volume_context) == {"a": "b"}
    assert dict(answer.confirmed.parameters) == {"c": "d"}
    assert answer.message == ""


async def test_unsupported_capability_is_answered_with_the_reason(stub: Stub) -> None:
    handle = (await stub.CreateVolume(wanted())).volume.volume_id
    answer = await validated(stub, handle, BLOCK)
    assert not answer.HasField("confirmed")
    assert answer.message == "access type: 'block' is not supported; use volumeMode Filesystem"


@pytest.mark.parametrize("handle", ["vol-1", f"efs:{FS}::fsap-0123456789abcdef0"])
async def test_missing_volume_is_not_found(stub: Stub, handle: str) -> None:
    assert (await refused(validated(stub, handle, capability())))[0] is StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("handle", "capabilities"), [("", [capability()]), (f"efs:{FS}", [])], ids=["no id", "no capabilities"]
)
async def test_validation_without_handle_or_capabilities_is_invalid(
    stub: Stub, handle: str, capabilities: list[csi.VolumeCapability]
) -> None:
    assert (await refused(validated(stub, handle, *capabilities)))[0] is StatusCode.INVALID_ARGUMENT


# --- ControllerExpandVolume


def expansion(volume_id: str, required_bytes: int) -> csi.ControllerExpandVolumeRequest:
    size = csi.CapacityRange(required_bytes=required_bytes)
    return csi.ControllerExpandVolumeRequest(volume_id=volume_id, capacity_range=size)


async def test_expansion_needs_neither_aws_nor_nodes(stub: Stub, world: CsiWorld) -> None:
    answer = await stub.ControllerExpandVolume(expansion(f"efs:{FS}::fsap-{1:017x}", 7))
    assert answer == csi.ControllerExpandVolumeResponse(capacity_bytes=7, node_expansion_required=False)
    assert not world.api.calls


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        pytest.param(
            expansion("", 7),
            StatusCode.INVALID_ARGUMENT,
            "volume_id: is missing; give the volume's handle",
            id="no handle",
        ),
        pytest.param(
            csi.ControllerExpandVolumeRequest(volume_id=f"efs:{FS}"),
            StatusCode.INVALID_ARGUMENT,
            "capacity_range.required_bytes: is missing; give the new size in bytes",
            id="no size",
        ),
        pytest.param(
            expansion("vol-1", 7),
            StatusCode.NOT_FOUND,
            "volume ID: 'vol-1' is not a valid file system ID",
            id="another driver",
        ),
    ],
)
async def test_invalid_expansion_is_refused(
    stub: Stub, request_: csi.ControllerExpandVolumeRequest, code: StatusCode, text: str
) -> None:
    assert await refused(stub.ControllerExpandVolume(request_)) == (code, text)


# --- copies and snapshots

OLD = f"{FS}:/old"
OLD_DATA = CopySource(location=Location(file_system_id=FS, directory=parse_directory("/old")))
SNAPSHOT_ID = f"{FS}:/{SNAPSHOTS}/snapshot-1"


def copy_of(**source: Any) -> csi.VolumeContentSource:
    return csi.VolumeContentSource(**source)


OF_VOLUME = copy_of(volume=csi.VolumeContentSource.VolumeSource(volume_id=OLD))
OF_SNAPSHOT = copy_of(snapshot=csi.VolumeContentSource.SnapshotSource(snapshot_id=SNAPSHOT_ID))


@pytest.mark.parametrize(
    ("source", "directory"), [(OF_VOLUME, "/old"), (OF_SNAPSHOT, f"/{SNAPSHOTS}/snapshot-1")]
)
async def test_volume_is_filled_from_its_source(
    stub: Stub, world: CsiWorld, source: csi.VolumeContentSource, directory: str
) -> None:
    world.sources.by_handle[f"efs:{OLD}"] = OLD_DATA
    answer = await stub.CreateVolume(wanted(volume_content_source=source))
    assert answer.volume.content_source == source
    ((target, terms),) = world.folders.copies
    assert (str(target), terms.key, str(terms.source)) == (f"{FS}:/pvc-1", "pvc-1", directory)
    assert terms.maps_owner
    # The directory of the access point is made first, because its owner is that of the copy.
    assert list(world.folders.made) == [f"{FS}:/pvc-1"]
    (point,) = world.api.points.values()
    assert point.user is not None
    made = world.folders.made[f"{FS}:/pvc-1"]
    assert (made.uid, made.gid, made.mode) == (point.user.uid, point.user.gid, 0o700)


NAMED = {"csi.storage.k8s.io/pvc/namespace": "team", "csi.storage.k8s.io/pvc/name": "data"}


async def test_claim_gets_the_progress_of_its_copy(stub: Stub, world: CsiWorld) -> None:
    world.sources.by_handle[f"efs:{OLD}"] = OLD_DATA
    world.claims.add("team", "data", labels={}, annotations={})
    await stub.CreateVolume(wanted("pvc-uid-of-data", volume_content_source=OF_VOLUME, parameters=NAMED))
    copied = f"Copied 3 files and directories (2.0 KiB) to {FS}:/pvc-uid-of-data"
    assert world.told == [("data", copied)]


async def test_copy_for_a_deleted_claim_is_discarded(stub: Stub, world: CsiWorld) -> None:
    """csi-provisioner repeats the call until it has the volume, and then deletes it."""
    world.sources.by_handle[f"efs:{OLD}"] = OLD_DATA
    await stub.CreateVolume(wanted("pvc-uid-of-data", volume_content_source=OF_VOLUME, parameters=NAMED))
    place = Location(file_system_id=FS, directory=parse_directory("/pvc-uid-of-data"))
    assert (world.folders.discarded, world.folders.copies) == ([(place, "pvc-uid-of-data")], [])
    assert len(world.api.points) == 1


async def test_copy_does_not_follow_another_claim_of_that_name(stub: Stub, world: CsiWorld) -> None:
    world.sources.by_handle[f"efs:{OLD}"] = OLD_DATA
    world.claims.add("team", "data", labels={}, annotations={})
    await stub.CreateVolume(wanted("pvc-earlier", volume_content_source=OF_VOLUME, parameters=NAMED))
    assert len(world.folders.copies) == 1
    assert (world.told, world.folders.discarded) == ([], [])


async def test_copy_for_a_claim_that_was_created_again_ends(stub: Stub, world: CsiWorld) -> None:
    world.sources.by_handle[f"efs:{OLD}"] = OLD_DATA
    world.claims.add("team", "data", labels={}, annotations={})
    name = "pvc-1d7aca11-5dba-4bf4-9ed3-57a0a1a30e2f"
    await stub.CreateVolume(wanted(name, volume_content_source=OF_VOLUME, parameters=NAMED))
    assert world.folders.copies == []


async def test_copy_of_another_source_is_not_the_requested_volume(stub: Stub, world: CsiWorld) -> None:
    world.sources.by_handle[f"efs:{OLD}"] = OLD_DATA
    world.claims.add("team", "data", labels={}, annotations={})
    world.folders.copy_fault = CopyDiffers("is the name of a copy of another directory", field="copy")
    request = wanted("pvc-uid-of-data", volume_content_source=OF_VOLUME, parameters=NAMED)
    assert (await refused(stub.CreateVolume(request)))[0] is StatusCode.ALREADY_EXISTS


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"fileSystemId": str(OTHER)}, f"'{FS}:/old' is not on a file system of the class ({OTHER})"),
        ({"reuseAccessPoint": "true", "csi.storage.k8s.io/pvc/name": "a"}, "may give a volume with data"),
        ({"posixUser": "none"}, "enforces an identity, and the new volume would have none"),
        ({"provisioningMode": "efs-dir"}, "enforces an identity, and the new volume would have none"),
        ({"provisioningMode": "s3files-ap"}, "makes volumes on S3 Files, whose directories are not copied"),
    ],
)
async def test_class_that_cannot_be_filled_is_refused(
    stub: Stub, world: CsiWorld, parameters: dict[str, str], text: str
) -> None:
    world.sources.by_handle[f"efs:{OLD}"] = replace(OLD_DATA, owner=FileOwner(uid=7, gid=8))
    named = {"csi.storage.k8s.io/pvc/namespace": "team", "csi.storage.k8s.io/pvc/name": "a", **parameters}
    request = wanted(volume_content_source=OF_VOLUME, parameters=named)
    code, told = await refused(stub.CreateVolume(request))
    assert (code, text in told) == (StatusCode.INVALID_ARGUMENT, True), told
    assert (world.folders.copies, world.api.points) == ([], {})


@pytest.mark.parametrize(
    "source",
    [
        OF_VOLUME,
        copy_of(volume=csi.VolumeContentSource.VolumeSource(volume_id="another driver's")),
        copy_of(snapshot=csi.VolumeContentSource.SnapshotSource(snapshot_id="another driver's")),
    ],
    ids=["missing volume", "volume of others", "snapshot of others"],
)
async def test_missing_source_is_not_found(stub: Stub, source: csi.VolumeContentSource) -> None:
    code, _ = await refused(stub.CreateVolume(wanted(volume_content_source=source)))
    assert code is StatusCode.NOT_FOUND


async def test_snapshot_is_complete_when_it_is_answered(stub: Stub, world: CsiWorld) -> None:
    world.sources.by_handle[f"efs:{OLD}"] = replace(OLD_DATA, owner=FileOwner(uid=7, gid=8))
    answer = await stub.CreateSnapshot(csi.CreateSnapshotRequest(name="snapshot-1", source_volume_id=OLD))
    assert world.folders.tenants == [f"tenant of efs:{OLD}"]
    snapshot = answer.snapshot
    assert (snapshot.snapshot_id, snapshot.source_volume_id) == (f"{SNAPSHOT_ID}:7:8", OLD)
    assert snapshot.ready_to_use
    assert snapshot.creation_time.ToNanoseconds() == 1_700_000_000_500_000_000
    ((target, terms),) = world.folders.copies
    assert str(target) == SNAPSHOT_ID
    assert (terms.key, terms.maps_owner) == ("snapshot.snapshot-1", False)


async def test_snapshot_of_another_account_is_created(
    stub: Stub, world: CsiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unknown(file_system_id: str) -> None:
        raise AwsNotFound("does not exist", field="file system", value=file_system_id)

    monkeypatch.setattr(world.gateway.made_file_systems, "get", unknown)
    world.sources.by_handle[f"efs:{OLD}"] = OLD_DATA
    answer = await stub.CreateSnapshot(csi.CreateSnapshotRequest(name="snapshot-1", source_volume_id=OLD))
    assert answer.snapshot.ready_to_use


async def test_snapshot_is_deleted_with_its_record(stub: Stub, world: CsiWorld) -> None:
    await stub.DeleteSnapshot(csi.DeleteSnapshotRequest(snapshot_id=f"{SNAPSHOT_ID}:7:8"))
    assert world.folders.removed == [f"{SNAPSHOT_ID} in /{SNAPSHOTS}"]
    assert [(str(target), key) for target, key in world.folders.discarded] == [
        (SNAPSHOT_ID, "snapshot.snapshot-1")
    ]


async def test_snapshot_that_is_copied_is_not_deleted_and_the_caller_gets_the_reason(
    stub: Stub, world: CsiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy can take hours, and a call of csi-snapshotter a minute."""
    monkeypatch.setattr(snapshots_module, "CALLER_PATIENCE_SECONDS", 0.01)
    async with asyncio.timeout(10), world.guards.reservations.making(parse_snapshot_id(SNAPSHOT_ID).location):
        code, text = await refused(stub.DeleteSnapshot(csi.DeleteSnapshotRequest(snapshot_id=SNAPSHOT_ID)))
    assert f"'{SNAPSHOT_ID}' is being copied" in text
    assert code is StatusCode.UNAVAILABLE
    assert not world.folders.removed


async def test_snapshot_in_use_is_not_deleted(stub: Stub, world: CsiWorld) -> None:
    world.note("user", f"efs:{SNAPSHOT_ID}")
    code, text = await refused(stub.DeleteSnapshot(csi.DeleteSnapshotRequest(snapshot_id=SNAPSHOT_ID)))
    assert code is StatusCode.FAILED_PRECONDITION
    assert "is also used by user" in text
    assert (world.folders.removed, world.folders.discarded) == ([], [])


LEAVING: dict[str, Any] = {"deleting": True, "annotations": {BEING_DELETED: "yes"}}


@pytest.mark.parametrize(
    ("others", "is_needed"),
    [
        pytest.param({"handle": f"{SNAPSHOT_ID}:7:8"}, True, id="in use"),
        pytest.param({"given_handle": SNAPSHOT_ID}, True, id="not read"),
        pytest.param(
            {"handle": SNAPSHOT_ID, "deletion_policy": ReclaimPolicy.RETAIN, **LEAVING},
            True,
            id="deleted with the policy Retain",
        ),
        pytest.param({"handle": SNAPSHOT_ID, **LEAVING}, False, id="deleted, too"),
        pytest.param({"handle": f"{SNAPSHOT_ID}0"}, False, id="another snapshot"),
        pytest.param({"handle": SNAPSHOT_ID, "driver": "ebs.csi.aws.com"}, False, id="of another driver"),
        pytest.param({"handle": "snap-0123"}, False, id="not a snapshot of ours"),
        pytest.param({}, False, id="not created yet"),
    ],
)
async def test_snapshot_that_another_content_needs_is_not_deleted(
    stub: Stub, world: CsiWorld, others: dict[str, Any], is_needed: bool
) -> None:
    itself = SnapshotContent(name="itself", uid="1", driver=DRIVER, handle=SNAPSHOT_ID)
    other = SnapshotContent(**{"name": "other", "uid": "2", "driver": DRIVER, **others})
    world.contents.known = [replace(itself, **LEAVING), other]
    request_ = csi.DeleteSnapshotRequest(snapshot_id=SNAPSHOT_ID)
    if is_needed:
        code, text = await refused(stub.DeleteSnapshot(request_))
        assert code is StatusCode.FAILED_PRECONDITION
        assert "is also used by VolumeSnapshotContent other" in text
    else:
        await stub.DeleteSnapshot(request_)
    assert bool(world.folders.removed) is not is_needed


async def test_snapshot_of_another_driver_counts_as_deleted(stub: Stub, world: CsiWorld) -> None:
    await stub.DeleteSnapshot(csi.DeleteSnapshotRequest(snapshot_id="snap-0123"))
    assert world.folders.removed == []


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (CopyDiffers("is the name of a copy of another directory", field="copy"), StatusCode.ALREADY_EXISTS),
        (WorkerRefused("exists and is not empty", field="directory"), StatusCode.FAILED_PRECONDITION),
        (WorkerFailed("did not end", field="worker pod"), StatusCode.UNAVAILABLE),
    ],
)
async def test_failed_snapshot_has_the_code_of_its_reason(
    stub: Stub, world: CsiWorld, fault: WorkerFailed, code: StatusCode
) -> None:
    world.sources.by_handle[f"efs:{OLD}"] = OLD_DATA
    world.folders.copy_fault = fault
    request = csi.CreateSnapshotRequest(name="snapshot-1", source_volume_id=OLD)
    assert (await refused(stub.CreateSnapshot(request)))[0] is code


async def test_copied_snapshot_is_not_forgotten(
    stub: Stub, world: CsiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def denied(*_: Any) -> None:
        raise AwsDenied("was answered with ExpiredToken", field="DescribeFileSystems")

    world.sources.by_handle[f"efs:{OLD}"] = OLD_DATA
    request = csi.CreateSnapshotRequest(name="snapshot-1", source_volume_id=OLD)
    with monkeypatch.context() as patched:
        patched.setattr(world.gateway.made_file_systems, "get", denied)
        assert (await refused(stub.CreateSnapshot(request)))[0] is AGAIN
    assert len(world.folders.copies) == 1
    with monkeypatch.context() as patched:
        patched.setattr(world.sources, "of_handle", denied)
        assert (await refused(stub.CreateSnapshot(request)))[0] is AGAIN
        await stub.DeleteSnapshot(csi.DeleteSnapshotRequest(snapshot_id=SNAPSHOT_ID))
        assert (await refused(stub.CreateSnapshot(request)))[0] is DENIED


async def test_repeated_call_for_a_copied_snapshot_is_not_final(
    stub: Stub, world: CsiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """csi-snapshotter may not have got the answer."""

    async def deny(*_: Any) -> CopySource:
        raise AwsDenied("was answered with ExpiredToken", field="DescribeFileSystems")

    world.sources.by_handle[f"efs:{OLD}"] = OLD_DATA
    request = csi.CreateSnapshotRequest(name="snapshot-1", source_volume_id=OLD)
    await stub.CreateSnapshot(request)
    monkeypatch.setattr(world.sources, "of_handle", deny)
    assert (await refused(stub.CreateSnapshot(request)))[0] is AGAIN


@pytest.mark.parametrize("is_begun", [False, True])
async def test_refused_pod_of_a_snapshot_is_final_unless_an_earlier_one_may_have_copied(
    stub: Stub, world: CsiWorld, monkeypatch: pytest.MonkeyPatch, is_begun: bool
) -> None:
    async def refuse(*_: Any, **__: Any) -> Copied:
        raise KubeDenied("answered 403", field="worker pod")

    world.sources.by_handle[f"efs:{OLD}"] = OLD_DATA
    request = csi.CreateSnapshotRequest(name="snapshot-1", source_volume_id=OLD)
    if is_begun:
        world.folders.copy_fault = WorkerFailed("did not end", field="worker pod")
        assert (await refused(stub.CreateSnapshot(request)))[0] is AGAIN
    monkeypatch.setattr(world.folders, "copy", refuse)
    assert (await refused(stub.CreateSnapshot(request)))[0] is (AGAIN if is_begun else DENIED)


async def test_snapshot_that_cannot_be_copied_can_be_deleted(stub: Stub, world: CsiWorld) -> None:
    """csi-snapshotter deletes a VolumeSnapshot only after a final code."""
    world.sources.by_handle[f"efs:{OLD}"] = OLD_DATA
    request = csi.CreateSnapshotRequest(name="snapshot-1", source_volume_id=OLD)
    world.folders.copy_fault = WorkerFailed("did not end", field="worker pod")
    assert (await refused(stub.CreateSnapshot(request)))[0] is AGAIN
    world.sources.by_handle.clear()
    assert (await refused(stub.CreateSnapshot(request)))[0] is StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    "request_",
    [
        csi.CreateSnapshotRequest(source_volume_id=OLD),
        csi.CreateSnapshotRequest(name="a"),
        csi.DeleteSnapshotRequest(),
    ],
    ids=["no name", "no volume", "no snapshot"],
)
async def test_incomplete_request_for_a_snapshot_is_invalid(stub: Stub, request_: Any) -> None:
    method = stub.DeleteSnapshot if isinstance(request_, csi.DeleteSnapshotRequest) else stub.CreateSnapshot
    assert (await refused(method(request_)))[0] is StatusCode.INVALID_ARGUMENT
