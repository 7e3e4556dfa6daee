"""The data of claims, volumes and snapshots, on the embedded API server."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from lightkube import AsyncClient
from tests.unit.provisioning.backends.csi.csi_world import FS

from kube_efs.kube.claims import ClaimStore
from kube_efs.kube.references import References
from kube_efs.kube.snapshots import SnapshotStore
from kube_efs.kube.volumes import VolumeStore
from kube_efs.model.claims import Claim, ClaimPhase, DataSource, ReclaimPolicy
from kube_efs.model.copies import SNAPSHOTS, CopySource, FileOwner
from kube_efs.model.csi.access_points import AccessPoint, PosixUser
from kube_efs.model.csi.cross_account import CrossAccountRole
from kube_efs.model.csi.errors import InvalidArgument, VolumeMissing
from kube_efs.model.csi.volume_handles import AccessPointId, VolumeHandle, parse_volume_handle
from kube_efs.model.efs.directories import parse_directory
from kube_efs.model.efs.ids import ClaimUid
from kube_efs.model.errors import KubeEfsError, KubeNotFound, NotYet
from kube_efs.model.volumes import (
    ClaimReference,
    CsiSource,
    Location,
    NfsSource,
    Volume,
    VolumePhase,
)
from kube_efs.provisioning.data_sources import DataSources
from kube_efs.provisioning.guards import tenant_of
from kube_efs.provisioning.volume_index import VolumeIndex

SOURCE = Claim(namespace="team", name="source", uid=ClaimUid("s"), phase=ClaimPhase.BOUND, volume_name="pv")
WANTED = Claim(
    namespace="team",
    name="copy",
    uid=ClaimUid("c"),
    data_source=DataSource(kind="PersistentVolumeClaim", name="source"),
)
PLACE = Location(file_system_id=FS, directory=parse_directory("/data"))
POINT = AccessPoint(
    access_point_id=AccessPointId("fsap-1"),
    file_system_id=FS,
    directory=parse_directory("/data"),
    user=PosixUser(uid=7, gid=8),
)
HERE = ClaimReference(namespace="team", name="source", uid=ClaimUid("s"))
CSI = Volume(name="pv", claim=HERE, csi=CsiSource(handle=f"{FS}:/data"))
BY_OPTION = replace(CSI, mount_options=("tls", "accesspoint=fsap-0123456789abcdef0"))


class _Claims(ClaimStore):
    def __init__(self, *claims: Claim) -> None:
        self._by_name = {(one.namespace, one.name): one for one in claims}

    async def get(self, namespace: str, name: str) -> Claim | None:
        return self._by_name.get((namespace, name))


class _Volumes(VolumeStore):
    def __init__(self, volume: Volume) -> None:
        self._volume = volume

    async def get(self, name: str) -> Volume:
        if name != self._volume.name:
            raise KubeNotFound("does not exist", field="volume", value=name)
        return self._volume


class _Snapshots(SnapshotStore):
    async def handle(self, namespace: str, name: str, *, driver: str) -> str:
        assert (namespace, name, driver) == ("team", "source", "efs.csi.aws.com")
        return f"{FS}:/.kube-efs-snapshots/s1:7:8"


class _References(References):
    async def secret(self, namespace: str, name: str) -> Mapping[str, str] | None:
        assert namespace == "system"
        return None if name == "missing" else {"awsRoleArn": "arn:aws:iam::123456789012:role/storage"}


def sources(
    kube: AsyncClient,
    volume: Volume = CSI,
    *claims: Claim,
    point: AccessPoint | None = POINT,
    others: Sequence[Volume] = (),
    roles: list[CrossAccountRole | None] | None = None,
) -> DataSources:
    async def find(handle: VolumeHandle, role: CrossAccountRole | None) -> AccessPoint | None:
        (roles if roles is not None else []).append(role)
        return point

    index = VolumeIndex()
    for one in (volume, *others):
        index.put_volume(one)
    return DataSources(
        claims=_Claims(*(claims or (SOURCE,))),
        volumes=_Volumes(volume),
        snapshots=_Snapshots(kube),
        references=_References(kube),
        find_access_point=find,
        index=index,
    )


@pytest.mark.parametrize(
    ("volume", "expected"),
    [
        pytest.param(CSI, CopySource(location=PLACE), id="directory"),
        pytest.param(
            replace(CSI, csi=CsiSource(handle=f"{FS}::fsap-0123456789abcdef0")),
            CopySource(location=PLACE, owner=FileOwner(uid=7, gid=8), may_be_missing=True),
            id="access point",
        ),
        pytest.param(
            replace(CSI, csi=CsiSource(handle=f"{FS}:/sub:fsap-0123456789abcdef0")),
            CopySource(
                location=replace(PLACE, directory=parse_directory("/data/sub")), owner=FileOwner(uid=7, gid=8)
            ),
            id="directory of an access point",
        ),
        pytest.param(
            replace(BY_OPTION, csi=CsiSource(handle=f"{FS}:/sub")),
            CopySource(
                location=replace(PLACE, directory=parse_directory("/data/sub")), owner=FileOwner(uid=7, gid=8)
            ),
            id="directory of an access point in the mount options",
        ),
        pytest.param(
            Volume(
                name="pv", claim=HERE, nfs=NfsSource(server=f"{FS}.efs.eu-west-1.amazonaws.com", path="/data")
            ),
            CopySource(location=PLACE),
            id="NFS",
        ),
    ],
)
async def test_data_of_a_bound_claim_is_that_of_its_volume(
    kube: AsyncClient, volume: Volume, expected: CopySource
) -> None:
    assert await sources(kube, volume).of_claim(WANTED) == expected


async def test_claim_without_a_data_source_is_not_a_copy(kube: AsyncClient) -> None:
    assert await sources(kube).of_claim(replace(WANTED, data_source=None)) is None


async def test_data_of_a_snapshot_is_in_its_handle(kube: AsyncClient) -> None:
    kind = DataSource(kind="VolumeSnapshot", name="source", group="snapshot.storage.k8s.io")
    found = await sources(kube).of_claim(replace(WANTED, data_source=kind))
    assert found is not None
    assert (str(found.location), found.owner) == (f"{FS}:/.kube-efs-snapshots/s1", FileOwner(uid=7, gid=8))


async def test_access_point_of_another_account_is_looked_up_there(kube: AsyncClient) -> None:
    handle = CsiSource(handle=f"{FS}::fsap-0123456789abcdef0")
    roles: list[CrossAccountRole | None] = []
    volume = replace(CSI, csi=handle, deletion_secret=("system", "role"))
    await sources(kube, volume, roles=roles).of_claim(WANTED)
    assert [one and one.role_arn for one in roles] == ["arn:aws:iam::123456789012:role/storage"]


async def test_source_is_not_read_without_the_secret_of_its_account(kube: AsyncClient) -> None:
    handle = CsiSource(handle=f"{FS}::fsap-0123456789abcdef0")
    roles: list[CrossAccountRole | None] = []
    volume = replace(CSI, csi=handle, deletion_secret=("system", "missing"))
    with pytest.raises(NotYet, match="provisioner secret: 'system/missing' does not exist"):
        await sources(kube, volume, roles=roles).of_claim(WANTED)
    assert roles == []


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ({"phase": ClaimPhase.PENDING}, "'team/source' is not bound yet"),
        ({"namespace": "elsewhere"}, "'team/source' does not exist"),
        # A claim can name any volume, but Kubernetes binds only one to it.
        ({"uid": ClaimUid("thief")}, "'team/source' is not bound to its volume yet"),
    ],
)
async def test_source_that_is_not_bound_is_waited_for(
    kube: AsyncClient, found: dict[str, Any], text: str
) -> None:
    with pytest.raises(NotYet) as caught:
        await sources(kube, CSI, replace(SOURCE, **found)).of_claim(WANTED)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("volume", "error", "text"),
    [
        pytest.param(
            replace(CSI, csi=CsiSource(handle=f"s3files:{FS}:/data")),
            InvalidArgument,
            "is on S3 Files, whose directories are not copied",
            id="S3 Files",
        ),
        pytest.param(
            Volume(name="pv", claim=HERE, nfs=NfsSource(server="nfs.example.com", path="/data")),
            NotYet,
            "'pv' has no known directory on EFS",
            id="not on EFS",
        ),
    ],
)
async def test_volume_that_cannot_be_copied_is_refused(
    kube: AsyncClient, volume: Volume, error: type[KubeEfsError], text: str
) -> None:
    with pytest.raises(error) as caught:
        await sources(kube, volume).of_claim(WANTED)
    assert text in str(caught.value)


async def test_source_is_unchanged_while_its_claim_and_its_access_point_exist(kube: AsyncClient) -> None:
    volume = replace(CSI, csi=CsiSource(handle=f"{FS}::fsap-0123456789abcdef0"))
    by_handle = await sources(kube, volume).of_handle(volume.handle or VolumeHandle(file_system_id=FS), None)
    by_claim = await sources(kube, volume).of_claim(WANTED)
    assert by_claim is not None
    for found in (by_handle, by_claim):
        await sources(kube, volume).check_unchanged(found, WANTED)
    # The claim is not asked for what a caller has named itself.
    await sources(kube, volume, replace(SOURCE, name="gone")).check_unchanged(by_handle, WANTED)
    await sources(kube, volume, replace(SOURCE, name="gone")).check_unchanged(by_claim, None)
    with pytest.raises(NotYet, match="'team/source' does not exist"):
        await sources(kube, volume, replace(SOURCE, name="gone")).check_unchanged(by_claim, WANTED)
    with pytest.raises(VolumeMissing, match="no longer has an access point"):
        await sources(kube, volume, point=None).check_unchanged(by_handle, WANTED)
    moved = replace(POINT, directory=parse_directory("/elsewhere"))
    for found in (by_handle, by_claim):
        with pytest.raises(NotYet, match=f"'{FS}:/data' is no longer the data to copy"):
            await sources(kube, volume, point=moved).check_unchanged(found, WANTED)


async def test_volume_that_is_being_removed_is_no_source_although_its_access_point_exists(
    kube: AsyncClient,
) -> None:
    """The access point is removed last, so its directory may be in the trash already."""
    volume = replace(
        CSI,
        csi=CsiSource(handle=f"{FS}::fsap-0123456789abcdef0"),
        phase=VolumePhase.RELEASED,
        reclaim_policy=ReclaimPolicy.DELETE,
    )
    leaving = sources(kube, volume)
    source = await leaving.of_handle(volume.handle or VolumeHandle(file_system_id=FS), None)
    with pytest.raises(NotYet, match=r"'pv' is being removed with its data.*set the reclaim policy"):
        await leaving.check_unchanged(source, None)
    await sources(kube, replace(volume, reclaim_policy=ReclaimPolicy.RETAIN)).check_unchanged(source, None)
    # The access point of a missing volume answers for itself.
    await sources(kube, CSI, others=(replace(volume, name="gone"),)).check_unchanged(source, None)


async def test_snapshot_that_is_copied_is_not_read_again(kube: AsyncClient) -> None:
    found = CopySource(location=Location(file_system_id=FS, directory=parse_directory(f"/{SNAPSHOTS}/s1")))
    await sources(kube).check_unchanged(found, WANTED)


async def test_tenant_of_a_handle_is_that_of_its_volume(kube: AsyncClient) -> None:
    found = sources(kube, CSI, others=(replace(CSI, name="static", claim=None),))
    assert found.tenant_of(parse_volume_handle(f"{FS}:/data")) == tenant_of(CSI) != ""
    assert found.tenant_of(parse_volume_handle(f"{FS}:/other")) == ""


async def test_missing_access_point_is_reported(kube: AsyncClient) -> None:
    handle = parse_volume_handle(f"{FS}::fsap-0123456789abcdef0")
    with pytest.raises(VolumeMissing, match="no longer has an access point"):
        await sources(kube, point=None).of_handle(handle, None)


async def test_volume_of_a_handle_may_name_its_access_point_in_the_mount_options(kube: AsyncClient) -> None:
    """Snapshots and csi-provisioner name only the handle."""
    handle = parse_volume_handle(f"{FS}:/data")
    found = await sources(kube, BY_OPTION).of_handle(handle, None)
    assert (str(found.location), found.owner) == (f"{FS}:/data/data", FileOwner(uid=7, gid=8))


async def test_handle_of_volumes_with_different_access_points_is_not_copied(kube: AsyncClient) -> None:
    handle = parse_volume_handle(f"{FS}:/data")
    both = sources(kube, BY_OPTION, others=(replace(CSI, name="other"),))
    with pytest.raises(InvalidArgument, match="is the handle of several volumes"):
        await both.of_handle(handle, None)
    # A claim names one of them.
    found = await both.of_claim(WANTED)
    assert found is not None
    assert str(found.location) == f"{FS}:/data/data"
