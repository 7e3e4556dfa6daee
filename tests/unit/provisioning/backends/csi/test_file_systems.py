"""File systems for claims: one or none, if any call to AWS fails, and if another process does the same."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pytest
from botocore.exceptions import ReadTimeoutError
from prometheus_client import CollectorRegistry
from tests.simulation.virtual import VirtualLoop
from tests.unit.provisioning.backends.csi.aws_account import (
    AccountGateway,
    AwsAccount,
    Connection,
    Fault,
    Killed,
)
from tests.unit.provisioning.backends.csi.csi_world import (
    Folders,
    KnownClaims,
    Listed,
    NamedCluster,
    OneAccount,
    Texts,
    request,
)
from tests.unit.provisioning.copying import given_copies

from kube_efs.aws.connection import Service
from kube_efs.controllers.unfinished_file_systems import UnfinishedFileSystems, is_needed
from kube_efs.model.claims import Claim, ReclaimPolicy, StorageClass
from kube_efs.model.csi.access_point_tags import Tag
from kube_efs.model.csi.access_points import NEW_SECONDS, AccessPoint, VolumeRequest
from kube_efs.model.csi.cross_account import CrossAccountRole
from kube_efs.model.csi.errors import ExistingVolumeDiffers, InvalidArgument, VolumePending
from kube_efs.model.csi.file_system_templates import Scope
from kube_efs.model.csi.made_file_systems import FileSystemOwner, MadeFileSystem, Stage
from kube_efs.model.csi.root_directories import VolumeOrigin
from kube_efs.model.csi.volume_handles import AccessPointId, VolumeHandle
from kube_efs.model.efs.directories import Directory, FoundDirectory, Permissions
from kube_efs.model.efs.ids import ClaimUid, FileSystemId
from kube_efs.model.errors import (
    AwsError,
    AwsLimitReached,
    AwsUnavailable,
    KubeEfsError,
    KubeNotFound,
    KubeUnavailable,
    NotYet,
    RemovalRefused,
    WorkerFailed,
)
from kube_efs.model.tunnel_volumes import ROOT_CLASS
from kube_efs.model.volumes import (
    DRIVER,
    ClaimReference,
    CsiSource,
    Location,
    NfsSource,
    Volume,
    VolumePhase,
)
from kube_efs.provisioning.backends.csi.access_points import AccessPoints
from kube_efs.provisioning.backends.csi.accounts import Account
from kube_efs.provisioning.backends.csi.claims import CsiBackend
from kube_efs.provisioning.backends.csi.directories import CsiDirectories
from kube_efs.provisioning.backends.csi.file_systems import FileSystems
from kube_efs.provisioning.backends.csi.volumes import CsiVolumes
from kube_efs.provisioning.guards import Guards
from kube_efs.provisioning.volume_index import VolumeIndex
from kube_efs.provisioning.workers.roots import is_root_of_pod
from kube_efs.telemetry.metrics import AwsMetrics

_T = TypeVar("_T")
UID = "3f0d2c1e-5a4b-4c3d-9e8f-0123456789ab"
CLAIM = Claim(namespace="team", name="data", uid=ClaimUid(UID), storage_class="csi")
# More calls than any creation or removal makes.
_CALLS_MOST = 100


class Driver:
    """A process with the driver's volumes on an account, and its view of the cluster."""

    def __init__(
        self, account: AwsAccount, *, patience_seconds: float = 60.0, tags: Sequence[Tag] = ()
    ) -> None:
        self.account = account
        self.connection = Connection(account)
        gateway = AccountGateway(self.connection)
        self.index, self.folders, self.claims = VolumeIndex(), Folders(), KnownClaims()
        self.store = Listed(self.index)
        self.steps: list[str] = []
        self.cluster = NamedCluster()
        self.file_systems = FileSystems(
            gateway,
            self.cluster,
            Texts(),
            tags=tags,
            notice=lambda _claim, step: self.steps.append(step),
            patience_seconds=patience_seconds,
        )
        kind = request().parameters.provisioning.kind
        points = AccessPoints(gateway.access_points, self.index, quota=10, clock=self._now)
        self.guards = Guards(
            index=self.index,
            store=self.store,
            roots=self._roots,
            addresses=self._addresses,
            is_of_worker=partial(is_root_of_pod, namespace="kube-efs"),
        )
        copies, _ = given_copies(self.guards.reservations)
        self._points, self._gateway = points, gateway
        self.volumes = CsiVolumes(
            accounts=OneAccount(Account(gateway=gateway, access_points={kind: points})),
            directories=CsiDirectories(
                self.folders,
                copies=copies,
                index=self.index,
                reservations=self.guards.reservations,
                clock=self._now,
            ),
            file_systems=self.file_systems,
            index=self.index,
            guards=self.guards,
            removes_directories=(),
            clock=self._now,
        )

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _roots(
        self, location: Location, role: CrossAccountRole | None, named: Collection[AccessPointId]
    ) -> Sequence[AccessPoint]:
        return await self._points.known.roots(location.file_system_id, named)

    async def _addresses(self, file_system_id: FileSystemId) -> Collection[str]:
        return {one.address for one in await self._gateway.mount_targets(file_system_id)}

    async def create(self, wanted: VolumeRequest) -> VolumeHandle:
        """The volume of an existing claim, and its object in the cluster."""
        origin = wanted.origin
        name = f"{origin.claim_namespace}/{origin.claim_name}"
        self.cluster.claim_uids[name] = ClaimUid(wanted.name.removeprefix("pvc-"))
        made = await self.volumes.create(wanted, claim=CLAIM)
        self.note(wanted.name, made.handle)
        return made.handle

    def note(
        self,
        name: str,
        handle: VolumeHandle | str,
        *,
        phase: VolumePhase = VolumePhase.RELEASED,
        provisioned_by: str | None = DRIVER,
    ) -> None:
        """Add the object of a volume to the cluster."""
        self.index.put_volume(
            Volume(
                name=name,
                uid=f"uid-of-{name}",
                phase=phase,
                reclaim_policy=ReclaimPolicy.DELETE,
                provisioned_by=provisioned_by,
                claim=ClaimReference(namespace="team", name="data"),
                csi=CsiSource(handle=str(handle)),
            )
        )

    def forget(self, name: str) -> None:
        """Delete the object of a volume."""
        self.index.drop_volume(self.index.volumes[name])

    async def remove_unfinished(self) -> None:
        """Remove what nobody needs, as the leader does."""
        await self._unfinished().remove_all()

    async def reopen_kept(self) -> None:
        """Reopen what stays, as the leader does."""
        await self._unfinished().reopen_kept()

    def _unfinished(self) -> UnfinishedFileSystems:
        return UnfinishedFileSystems(
            self.file_systems,
            self.guards,
            self.claims,
            self.index,
            AwsMetrics(CollectorRegistry()),
            directories=self.folders,
            clock=lambda: self._now() + 1000,
        )


def wanted(name: str = f"pvc-{UID}", **parameters: str) -> VolumeRequest:
    """A request for a volume on a file system of its own."""
    return request(name, provisioningMode="efs-fs", fileSystemId="-", **parameters)


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run it in virtual time."""
    loop = VirtualLoop()
    try:
        loop.run_until_complete(test())
    finally:
        loop.close()


async def _until_done(attempt: Callable[[], Awaitable[_T]]) -> _T:
    """Repeat it as csi-provisioner and the queue do."""
    for _ in range(50):
        try:
            return await attempt()
        except (AwsError, NotYet, RemovalRefused, VolumePending):
            await asyncio.sleep(10)
    pytest.fail("it never ended")


# --- a file system for a claim


def test_claim_gets_a_file_system_with_everything_that_its_class_describes() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        handle = await driver.create(
            wanted(
                throughputMode="provisioned",
                provisionedThroughputInMibps="12.5",
                kmsKeyId="alias/storage",
                transitionToIA="AFTER_30_DAYS",
                transitionToPrimaryStorageClass="AFTER_1_ACCESS",
                backup="true",
                fileSystemTags="team=storage,cost=42",
            )
        )
        ((name, made),) = account.file_systems.items()
        assert (handle.file_system_id, handle.access_point_id in account.access_points) == (name, True)
        assert made["Encrypted"] is True
        assert (made["ThroughputMode"], made["ProvisionedThroughputInMibps"]) == ("provisioned", 12.5)
        assert (made["KmsKeyId"], made["Backup"]) == ("alias/storage", True)
        assert made["PerformanceMode"] == "generalPurpose"
        tags = {one["Key"]: one["Value"] for one in made["Tags"]}
        assert (tags["Name"], tags["team"], tags["cost"]) == ("team/data", "storage", "42")
        assert tags["efs.csi.aws.com/cluster"] == "true"
        assert account.stage(name) == "ready"
        assert account.lifecycles[name] == [
            {"TransitionToIA": "AFTER_30_DAYS"},
            {"TransitionToPrimaryStorageClass": "AFTER_1_ACCESS"},
        ]
        assert "aws:SecureTransport" in account.policies[name]
        (group,) = account.groups.values()
        assert group["rules"] == {"10.0.0.0/16"}
        zones = sorted(one["AvailabilityZoneName"] for one in account.mount_targets.values())
        assert zones == ["us-east-1a", "us-east-1b", "us-east-1c"]
        assert all(one["groups"] == [group["GroupId"]] for one in account.mount_targets.values())

    run(test)


def test_steps_are_told_with_their_time() -> None:
    async def test() -> None:
        driver = Driver(AwsAccount())
        handle = await driver.create(wanted())
        name = f"File system {handle.file_system_id}: "
        assert driver.steps[0] == "Creating a file system (0 s)"
        assert driver.steps[1:] == [f"{name}mount targets 0 of 3 (4 s)", f"{name}mount targets 3 of 3 (8 s)"]

    run(test)


def test_class_can_name_one_zone_and_the_network() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        driver.cluster.instances = frozenset()
        await driver.create(
            wanted(
                availabilityZoneName="us-east-1b",
                subnetIds="subnet-0, subnet-1",
                securityGroupIds="sg-1",
                fileSystemPolicy="none",
            )
        )
        (made,) = account.file_systems.values()
        assert made["AvailabilityZoneName"] == "us-east-1b"
        (target,) = account.mount_targets.values()
        assert (target["SubnetId"], target["groups"]) == ("subnet-1", ["sg-1"])
        assert (account.groups, account.policies) == ({}, {})

    run(test)


def test_volume_on_a_one_zone_file_system_of_its_own_is_used_in_that_zone() -> None:
    async def test() -> None:
        driver = Driver(AwsAccount())
        driver.cluster.claim_uids["team/data"] = ClaimUid(UID)
        zone = {"availabilityZoneName": "us-east-1b"}
        made = await driver.volumes.create(wanted(enforceZoneAffinity="true", **zone), claim=CLAIM)
        assert made.zone == "us-east-1b"

    run(test)


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"subnetIds": "subnet-7"}, "DescribeSubnets: 'subnet-7' was answered .*; check the subnets"),
        ({"availabilityZoneName": "us-east-1f"}, "no subnet"),
    ],
)
def test_impossible_network_leaves_nothing_behind(parameters: dict[str, str], problem: str) -> None:
    async def test() -> None:
        account = AwsAccount()
        with pytest.raises(KubeEfsError, match=problem):
            await Driver(account).create(wanted(**parameters))
        assert account.is_empty

    run(test)


def test_cluster_without_instances_must_name_subnets() -> None:
    async def test() -> None:
        driver = Driver(AwsAccount())
        driver.cluster.instances = frozenset()
        with pytest.raises(InvalidArgument, match="subnetIds"):
            await driver.create(wanted())

    run(test)


def test_other_account_is_refused() -> None:
    async def test() -> None:
        account = AwsAccount()
        role = CrossAccountRole(role_arn="arn:aws:iam::123456789012:role/other")
        with pytest.raises(InvalidArgument, match="only supported in the account of the cluster"):
            await Driver(account).volumes.create(wanted(), role)
        assert account.is_empty

    run(test)


def test_no_file_system_is_created_for_a_deleted_claim() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        for uids in ({}, {"team/data": ClaimUid("00000000-0000-0000-0000-000000000000")}):
            driver.cluster.claim_uids = uids
            with pytest.raises(InvalidArgument, match="was deleted, so no file system"):
                await driver.volumes.create(wanted())
        assert account.is_empty

    run(test)


def test_used_up_quota_is_an_error_with_a_remedy() -> None:
    async def test() -> None:
        account = AwsAccount()
        account.file_system_quota = 0
        with pytest.raises(AwsLimitReached, match="request a higher quota"):
            await Driver(account).create(wanted())

    run(test)


def test_other_class_of_the_same_volume_is_refused() -> None:
    async def test() -> None:
        account = AwsAccount()
        await Driver(account).create(wanted())
        with pytest.raises(ExistingVolumeDiffers, match="generalPurpose"):
            await Driver(account).create(wanted(performanceMode="maxIO"))
        assert len(account.file_systems) == 1

    run(test)


def test_impatient_attempt_says_how_far_it_is_and_the_next_one_continues() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account, patience_seconds=0)
        with pytest.raises(VolumePending, match="is being created"):
            await driver.create(wanted())
        await asyncio.sleep(5)
        with pytest.raises(VolumePending, match="has 0 of 3 mount targets"):
            await driver.create(wanted())
        await asyncio.sleep(5)
        await driver.create(wanted())
        assert len(account.file_systems) == 1

    run(test)


# --- any call fails


@pytest.mark.parametrize("fault", Fault)
def test_creation_leaves_one_file_system_whichever_call_fails(fault: Fault) -> None:
    async def test(fails_at: int) -> bool:
        account = AwsAccount()
        driver = Driver(account)
        driver.connection.fails_at, driver.connection.fault = fails_at, fault
        try:
            await _until_done(lambda: driver.create(wanted()))
        except Killed:
            await _until_done(lambda: Driver(account).create(wanted()))
        assert len(account.file_systems) == len(account.access_points) == len(account.groups) == 1
        assert len(account.mount_targets) == 3
        assert account.stage(*account.file_systems) == "ready"
        return len(driver.connection.calls) >= fails_at

    _with_each_call(test, least=15)


@pytest.mark.parametrize("fault", Fault)
def test_removal_leaves_nothing_whichever_call_fails(fault: Fault) -> None:
    async def test(fails_at: int) -> bool:
        account = AwsAccount()
        handle = await Driver(account).create(wanted())
        driver = Driver(account)
        driver.note(f"pvc-{UID}", handle)
        driver.connection.fails_at, driver.connection.fault = fails_at, fault
        try:
            await _until_done(lambda: driver.volumes.delete(handle))
        except Killed:
            successor = Driver(account)
            successor.note(f"pvc-{UID}", handle)
            await _until_done(lambda: successor.volumes.delete(handle))
        await asyncio.sleep(10)
        account.advance()
        assert account.is_empty
        return len(driver.connection.calls) >= fails_at

    _with_each_call(test, least=10)


@pytest.mark.parametrize("fault", [Fault.KILLED_BEFORE, Fault.KILLED_AFTER])
def test_nothing_is_left_of_a_claim_that_was_deleted_after_a_crash(fault: Fault) -> None:
    async def test(fails_at: int) -> bool:
        account = AwsAccount()
        driver = Driver(account)
        driver.connection.fails_at, driver.connection.fault = fails_at, fault
        try:
            await driver.create(wanted())
        except Killed:
            await asyncio.sleep(10)
            if account.file_systems and account.stage(*account.file_systems) == "ready":
                return True  # The access point may exist, so nothing may be removed without its volume.
            await _until_done(Driver(account).remove_unfinished)
            await asyncio.sleep(10)
            account.advance()
            assert account.is_empty
            return True
        return False

    _with_each_call(test, least=10)


def _with_each_call(test: Callable[[int], Awaitable[bool]], *, least: int) -> None:
    """Let the first call fail, the second, and so on, until the test makes fewer calls."""
    for fails_at in range(1, _CALLS_MOST):
        loop = VirtualLoop()
        try:
            is_reached = loop.run_until_complete(test(fails_at))
        finally:
            loop.close()
        if not is_reached:
            assert fails_at > least
            return
    pytest.fail("more calls than expected")


def test_unfinished_file_system_of_an_existing_claim_stays() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account, patience_seconds=0)
        with pytest.raises(VolumePending):
            await driver.create(wanted())
        with pytest.raises(VolumePending):
            await driver.create(wanted("pvc-of-a-namespace", scope="namespace"))
        driver.claims.known["team", "data"] = CLAIM
        await driver.remove_unfinished()
        assert len(account.file_systems) == 2
        await asyncio.sleep(10)
        assert {account.stage(one) for one in account.file_systems} == {"creating"}

    run(test)


_PRIVATE = {"provisioningMode": "efs-fs", "directoryPerms": "700"}
_EXISTING = {"provisioningMode": "efs-ap", "directoryPerms": "700", "fileSystemId": "fs-0123456789abcdef0"}


@pytest.mark.parametrize(
    ("storage_class", "parameters", "is_needed"),
    [
        pytest.param("of the driver", {**_PRIVATE, "scope": "namespace"}, True, id="same kind"),
        pytest.param("of the driver", _PRIVATE, False, id="a file system of its own"),
        pytest.param("of the driver", _EXISTING, False, id="an existing file system"),
        pytest.param("of the driver", {"provisioningMode": "efs-ap"}, False, id="invalid class"),
        pytest.param("of another driver", {}, False, id="another driver"),
        pytest.param("deleted", {}, True, id="unknown class"),
        pytest.param(None, {}, False, id="no class"),
    ],
)
def test_only_claims_that_may_share_it_keep_an_unfinished_file_system_of_a_namespace(
    storage_class: str | None, parameters: dict[str, str], *, is_needed: bool
) -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account, patience_seconds=0)
        with pytest.raises(VolumePending):
            await driver.create(_of("team", 1))  # Its claim is deleted now.
        driver.index.classes = {
            "of the driver": StorageClass(name="of the driver", provisioner=DRIVER, parameters=parameters),
            "of another driver": StorageClass(name="of another driver", provisioner="ebs.csi.aws.com"),
        }
        # A claim that waits for its first consumer is not assigned to a provisioner yet.
        driver.claims.known["team", "other"] = replace(CLAIM, name="other", storage_class=storage_class)
        for _ in range(3):
            await asyncio.sleep(300)
            await driver.remove_unfinished()
        account.advance()
        assert account.is_empty is not is_needed

    run(test)


@pytest.mark.parametrize(
    ("name", "is_expected"),
    [
        (f"pvc-{UID}", True),
        (f"other-prefix-{UID}", True),
        (f"pvc-{UID.replace('-', '')[:12]}", True),
        ("pvc-3f0d", False),
        ("pvc-00000000-0000-0000-0000-000000000000", False),
    ],
)
def test_volume_belongs_to_its_claim_however_csi_provisioner_names_it(name: str, is_expected: bool) -> None:
    owner = FileSystemOwner(scope=Scope.CLAIM, name=name, cluster="cluster-uid")
    assert is_needed(owner, [CLAIM], ["uid-of-team"]) is is_expected


def test_file_systems_of_other_clusters_are_never_removed() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account, patience_seconds=0)
        with pytest.raises(VolumePending):
            await driver.create(wanted())
        _give_to_another_cluster(account)
        await asyncio.sleep(10)
        await driver.remove_unfinished()
        await asyncio.sleep(10)
        assert len(account.file_systems) == 1

    run(test)


def test_volume_on_a_file_system_of_another_cluster_is_removed_alone() -> None:
    async def test() -> None:
        account = AwsAccount()
        handle = await Driver(account).create(_of("team", 1))
        _give_to_another_cluster(account)
        driver = Driver(account)
        driver.note("pvc-team-1", handle)
        await driver.volumes.delete(handle)
        assert (len(account.file_systems), len(account.access_points)) == (1, 0)
        assert account.stage(handle.file_system_id) == "ready"

    run(test)


def _give_to_another_cluster(account: AwsAccount) -> None:
    for one in account.file_systems.values():
        one["Tags"] = [
            {**tag, "Value": "another"} if tag["Key"] == "efs.csi.aws.com/kubernetes-cluster" else tag
            for tag in one["Tags"]
        ]


# --- a file system for a namespace


def _of(namespace: str, number: int) -> VolumeRequest:
    origin = VolumeOrigin(claim_name=f"data-{number}", claim_namespace=namespace)
    return replace(wanted(f"pvc-{namespace}-{number}", scope="namespace"), origin=origin)


def test_claims_of_a_namespace_share_a_file_system_until_the_last_one_is_gone() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        first, second, other = await asyncio.gather(
            driver.create(_of("team", 1)), driver.create(_of("team", 2)), driver.create(_of("others", 1))
        )
        assert first.file_system_id == second.file_system_id != other.file_system_id
        assert first.access_point_id != second.access_point_id
        await driver.volumes.delete(first)
        driver.forget("pvc-team-1")
        assert set(account.file_systems) == {first.file_system_id, other.file_system_id}
        assert first.access_point_id not in account.access_points
        await driver.volumes.delete(second)
        await asyncio.sleep(10)
        await driver.create(_of("others", 2))
        assert set(account.file_systems) == {other.file_system_id}

    run(test)


def test_object_that_csi_provisioner_has_not_deleted_yet_does_not_keep_the_file_system() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        handles = [await driver.create(_of("team", number)) for number in range(2)]
        for handle in handles:  # The objects of both exist until the end.
            await driver.volumes.delete(handle)
        await asyncio.sleep(10)
        account.advance()
        assert account.is_empty

    run(test)


def test_removal_that_was_given_up_is_noticed_by_the_next_claim() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        first = await driver.create(_of("team", 1))
        await driver.file_systems._gateway.made_file_systems.set_stage(first.file_system_id, Stage.REMOVING)
        with pytest.raises(VolumePending, match="is being removed"):
            await driver.create(_of("team", 2))
        await asyncio.sleep(200)  # The first volume is still leaving.
        with pytest.raises(VolumePending, match="is being removed"):
            await driver.create(_of("team", 2))
        volume = driver.index.volumes["pvc-team-1"]
        driver.index.put_volume(replace(volume, reclaim_policy=ReclaimPolicy.RETAIN))
        with pytest.raises(VolumePending, match="is being removed"):
            await driver.create(_of("team", 2))
        await asyncio.sleep(181)
        second = await driver.create(_of("team", 2))
        assert (second.file_system_id, account.stage(first.file_system_id)) == (first.file_system_id, "ready")

    run(test)


def test_unused_file_system_whose_removal_is_given_up_gets_its_policy_before_a_volume() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        driver.connection.before = _fail_at("PutFileSystemPolicy")
        with pytest.raises(Killed):
            await driver.create(wanted())
        (name,) = account.file_systems
        successor = Driver(account)
        await successor.file_systems._gateway.made_file_systems.set_stage(FileSystemId(name), Stage.REMOVING)
        for _ in range(2):
            with pytest.raises(VolumePending, match="is being removed"):
                await successor.create(wanted())
            await asyncio.sleep(100)
        successor.connection.before = _fail_at("PutFileSystemPolicy")
        with pytest.raises(Killed):
            await successor.create(wanted())
        handle = await Driver(account).create(wanted())
        assert (handle.file_system_id, account.stage(name)) == (name, "ready")
        assert "aws:SecureTransport" in account.policies[name]

    run(test)


@pytest.mark.parametrize("stage", [Stage.REMOVING, Stage.CREATING])
def test_late_record_of_a_stage_does_not_stop_a_removal_after_its_mount_targets(stage: Stage) -> None:
    """As when the answer to its call was lost, and AWS carries it out after the repetition."""

    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account, patience_seconds=0)
        handle = await _until_done(lambda: driver.create(wanted()))
        with pytest.raises(NotYet, match="still has 3 mount targets"):
            await driver.volumes.delete(handle)
        await driver.file_systems._gateway.made_file_systems.set_stage(handle.file_system_id, stage)
        await asyncio.sleep(10)
        await driver.volumes.delete(handle)
        await asyncio.sleep(10)
        account.advance()
        assert account.is_empty

    run(test)


async def _refused_without_mount_targets(account: AwsAccount, driver: Driver) -> VolumeHandle:
    """A volume whose removal was refused while AWS deleted the mount targets, which are gone now."""
    handle = await _until_done(lambda: driver.create(wanted()))
    with pytest.raises(NotYet, match="still has 3 mount targets"):
        await driver.volumes.delete(handle)
    driver.note("static", VolumeHandle(file_system_id=handle.file_system_id), provisioned_by=None)
    with pytest.raises(RemovalRefused, match="also used by volume static"):
        await driver.volumes.delete(handle)
    assert account.stage(handle.file_system_id) == "ready"
    # As before a worker pod.
    await driver.file_systems.check_stays(handle.file_system_id)
    await asyncio.sleep(60)
    account.advance()
    assert not account.mount_targets
    driver.forget("static")
    return handle


def test_removal_that_was_refused_without_mount_targets_continues_when_nothing_refuses_it() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account, patience_seconds=0)
        handle = await _refused_without_mount_targets(account, driver)
        await driver.file_systems.check_stays(handle.file_system_id)
        await driver.volumes.delete(handle)
        await asyncio.sleep(10)
        account.advance()
        assert account.is_empty

    run(test)


def test_check_for_snapshots_ends_when_a_file_system_with_mount_targets_is_reopened() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        handle = await driver.create(wanted())
        made = driver.file_systems._gateway.made_file_systems
        await made.set_stage(handle.file_system_id, Stage.REMOVING)
        found = await made.get(handle.file_system_id)
        assert found is not None
        await made.set_checked(found)
        await driver.file_systems.reopen(found)
        account.mount_targets.clear()
        with pytest.raises(RemovalRefused, match="has no mount targets"):
            await driver.volumes.delete(handle)

    run(test)


def test_removed_file_system_is_not_reopened() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        handle = await driver.create(wanted())
        found = await driver.file_systems.get(handle.file_system_id)
        assert found is not None
        account.file_systems.clear()
        assert await driver.file_systems.reopen(replace(found, stage=Stage.REMOVING)) is None

    run(test)


def test_use_of_a_file_system_that_was_reopened_as_unused_makes_it_ready() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        handle = await driver.create(wanted())
        # A process that had not seen its use yet has reopened it.
        made = driver.file_systems._gateway.made_file_systems
        await made.set_stage(handle.file_system_id, Stage.CREATING)
        await driver.file_systems.record_use(handle.file_system_id)
        assert account.stage(handle.file_system_id) == "ready"

    run(test)


@pytest.mark.parametrize("use", ["volume", "snapshot"])
def test_use_with_new_mount_targets_after_a_refused_removal_needs_another_check(use: str) -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account, patience_seconds=0)
        handle = await _refused_without_mount_targets(account, driver)
        if use == "volume":
            await _until_done(lambda: driver.create(wanted()))
        else:
            # People create the mount target, as the manual says.
            subnets = await driver.file_systems._subnets(wanted().parameters.template)  # type: ignore[arg-type]
            await driver._gateway.ensure_mount_targets(handle.file_system_id, subnets, ["sg-1"])
            await driver.file_systems.check_stays(handle.file_system_id)
        account.mount_targets.clear()
        with pytest.raises(RemovalRefused, match="has no mount targets"):
            await driver.volumes.delete(handle)

    run(test)


def _together(account: AwsAccount, first: Driver, handle: VolumeHandle) -> Driver:
    """Another process with the same directories."""
    second = Driver(account)
    second.note(f"pvc-{UID}", handle)
    second.folders.made = first.folders.made
    return second


async def _take_snapshot(driver: Driver, file_system_id: FileSystemId) -> None:
    driver.folders.made[f"{file_system_id}:/.kube-efs-snapshots/s-1"] = Permissions()
    await driver.file_systems.check_stays(file_system_id)


def test_check_for_snapshots_does_not_count_for_the_removal_of_another_process() -> None:
    """The first process was paused, after which people have kept the volume for a while."""

    async def test() -> None:
        account = AwsAccount()
        first = Driver(account)
        handle = await first.create(wanted())
        second, name = _together(account, first, handle), handle.file_system_id
        reached, goes_on = asyncio.Event(), asyncio.Event()
        check = first.volumes._check_contents

        async def check_slowly(found: MadeFileSystem) -> None:
            await check(found)
            reached.set()
            await goes_on.wait()

        first.volumes._check_contents = check_slowly  # type: ignore[method-assign]
        removing = asyncio.create_task(first.volumes.delete(handle))
        await reached.wait()
        found = await second.file_systems.get(name)
        assert found is not None
        await second.file_systems.reopen(found)
        await _take_snapshot(second, name)
        await second.file_systems._gateway.made_file_systems.set_stage(name, Stage.REMOVING)
        goes_on.set()
        with pytest.raises(NotYet, match="may be used again"):
            await removing
        with pytest.raises(RemovalRefused, match="contains 1 snapshots"):
            await second.volumes.delete(handle)

    run(test)


async def _use_and_remove(second: Driver, file_system_id: FileSystemId) -> None:
    """The removal is given up, the file system is used and gets a snapshot, and another removal begins."""
    found = await second.file_systems.get(file_system_id)
    assert found is not None
    await second.file_systems.reopen(found)
    await second.file_systems.record_use(file_system_id)
    await _take_snapshot(second, file_system_id)
    await second.file_systems._gateway.made_file_systems.set_stage(file_system_id, Stage.REMOVING)


def test_removal_that_deletes_mount_targets_does_not_continue_after_another_use() -> None:
    async def test() -> None:
        account = AwsAccount()
        first = Driver(account)
        handle = await first.create(wanted())
        second = _together(account, first, handle)
        removing = asyncio.create_task(first.volumes.delete(handle))
        while {one["LifeCycleState"] for one in account.mount_targets.values()} != {"deleting"}:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        await _use_and_remove(second, handle.file_system_id)
        with pytest.raises(NotYet, match="may be used again"):
            await removing
        assert handle.file_system_id in account.file_systems

    run(test)


def test_check_for_snapshots_that_was_read_before_a_wait_does_not_count_after_another_use() -> None:
    async def test() -> None:
        account = AwsAccount()
        first = Driver(account, patience_seconds=0)
        handle = await _until_done(lambda: first.create(wanted()))
        second, name = _together(account, first, handle), handle.file_system_id
        with pytest.raises(NotYet, match="still has 3 mount targets"):
            await first.volumes.delete(handle)
        place = Location(file_system_id=name, directory=Directory(("new",)))
        async with first.guards.reservations.making(place):
            removing = asyncio.create_task(first.volumes.delete(handle))
            await asyncio.sleep(0.5)
            await _use_and_remove(second, name)
            account.mount_targets.clear()
        with pytest.raises(RemovalRefused, match="has no mount targets"):
            await removing
        assert name in account.file_systems

    run(test)


def test_check_for_snapshots_does_not_count_after_the_next_use() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        handle = await driver.create(wanted())
        made = driver.file_systems._gateway.made_file_systems
        before = await made.get(handle.file_system_id)
        assert before is not None
        await made.set_stage(handle.file_system_id, Stage.REMOVING)
        await made.set_stage(handle.file_system_id, Stage.READY)
        await made.set_checked(before)  # Carried out late.
        account.mount_targets.clear()
        with pytest.raises(RemovalRefused, match="has no mount targets"):
            await driver.volumes.delete(handle)

    run(test)


@pytest.mark.parametrize("is_point_gone", [False, True])
@pytest.mark.parametrize("scope", ["claim", "namespace"])
def test_file_system_goes_with_a_volume_that_is_deleted_before_others_see_its_use(
    scope: str, *, is_point_gone: bool
) -> None:
    """People can also delete its access point."""

    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        handle = await driver.create(wanted(scope=scope))
        if is_point_gone:
            account.access_points.clear()
        shown, began = account._shown, asyncio.get_running_loop().time()

        def shown_late(one: dict[str, Any]) -> Mapping[str, Any]:
            is_late = asyncio.get_running_loop().time() < began + 3
            tags = [tag for tag in one["Tags"] if not (is_late and tag["Key"].endswith("/used"))]
            return {**shown(one), "Tags": tags}

        account._shown = shown_late  # type: ignore[method-assign]
        await driver.volumes.delete(handle)
        await asyncio.sleep(10)
        account.advance()
        assert account.is_empty

    run(test)


def test_volume_with_the_address_of_a_mount_target_that_is_new_keeps_the_file_system() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        handle = await driver.create(wanted(subnetIds="subnet-0"))
        name = handle.file_system_id
        place = Location(file_system_id=name, directory=Directory(("new",)))
        async with driver.guards.reservations.making(place):
            removing = asyncio.create_task(driver.volumes.delete(handle))
            await asyncio.sleep(1)
            made = account.call("CreateMountTarget", {"FileSystemId": name, "SubnetId": "subnet-1"})
            server = NfsSource(server=made["IpAddress"], path="/")
            static = Volume(name="static", uid="s", phase=VolumePhase.BOUND, nfs=server)
            driver.index.put_volume(static)
        with pytest.raises(RemovalRefused, match="also used by volume static"):
            await removing
        assert len(account.mount_targets) == 2

    run(test)


def test_volume_with_the_address_of_a_deleted_mount_target_keeps_the_file_system() -> None:
    """People create it between two attempts of the removal, to keep the data."""

    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account, patience_seconds=0)
        handle = await _until_done(lambda: driver.create(wanted()))
        address = next(iter(account.mount_targets.values()))["IpAddress"]
        with pytest.raises(NotYet, match="still has 3 mount targets"):
            await driver.volumes.delete(handle)
        server = NfsSource(server=address, path="/")
        driver.index.put_volume(Volume(name="static", uid="s", phase=VolumePhase.BOUND, nfs=server))
        await asyncio.sleep(10)
        with pytest.raises(RemovalRefused, match="also used by volume static"):
            await driver.volumes.delete(handle)
        assert handle.file_system_id in account.file_systems
        driver.forget("static")
        await driver.volumes.delete(handle)

    run(test)


def test_mount_target_that_people_create_while_others_are_deleted_is_checked() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        handle = await driver.create(wanted(subnetIds="subnet-0"))
        name = handle.file_system_id
        removing = asyncio.create_task(driver.volumes.delete(handle))
        while {one["LifeCycleState"] for one in account.mount_targets.values()} != {"deleting"}:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        made = account.call("CreateMountTarget", {"FileSystemId": name, "SubnetId": "subnet-1"})
        server = NfsSource(server=made["IpAddress"], path="/")
        static = Volume(name="static", uid="s", phase=VolumePhase.BOUND, nfs=server)
        driver.index.put_volume(static)
        with pytest.raises(NotYet, match=f"has got {made['MountTargetId']}"):
            await removing
        with pytest.raises(RemovalRefused, match="also used by volume static"):
            await driver.volumes.delete(handle)
        assert account.mount_targets[made["MountTargetId"]]["LifeCycleState"] != "deleting"

    run(test)


def test_unfinished_volume_is_completed_after_its_namespace_was_deleted() -> None:
    """Only then can it be removed, with its access point and the file system."""

    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        first = await driver.create(_of("team", 1))

        async def is_deleted(name: str) -> str:
            raise KubeNotFound("answered 404", field=f"namespace {name}")

        def fail_after_creation(operation: str) -> None:
            if len(account.access_points) == 2:
                raise ReadTimeoutError(endpoint_url="https://elasticfilesystem")

        driver.connection.before = fail_after_creation
        with pytest.raises(AwsUnavailable):
            await driver.create(_of("team", 2))
        driver.connection.before = lambda _: None
        driver.cluster.namespace_uid = is_deleted  # type: ignore[method-assign]
        second = await driver.create(_of("team", 2))
        for name, handle in {"pvc-team-1": first, "pvc-team-2": second}.items():
            await driver.volumes.delete(handle)
            driver.forget(name)
        await asyncio.sleep(10)
        account.advance()
        assert account.is_empty

    run(test)


@pytest.mark.parametrize("change", ["kept", "used by another volume", "reopened"])
def test_removal_that_is_given_up_during_the_wait_for_workers_deletes_no_mount_target(change: str) -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        handle = await driver.create(_of("team", 1))

        async def waited(file_system_id: FileSystemId) -> None:
            if change == "kept":
                volume = driver.index.volumes["pvc-team-1"]
                driver.index.put_volume(replace(volume, reclaim_policy=ReclaimPolicy.RETAIN))
            if change == "used by another volume":
                driver.note("static", VolumeHandle(file_system_id=file_system_id), provisioned_by=None)
            if change == "reopened":
                made = driver.file_systems._gateway.made_file_systems
                await made.set_stage(file_system_id, Stage.READY)

        driver.folders.unused = waited  # type: ignore[method-assign]
        with pytest.raises((RemovalRefused, NotYet)):
            await driver.volumes.delete(handle)
        assert len(account.mount_targets) == 3
        assert account.stage(handle.file_system_id) == "ready"

    run(test)


def test_removal_that_another_controller_has_given_up_deletes_no_more_mount_targets() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        handle = await driver.create(wanted())
        removing = asyncio.create_task(driver.volumes.delete(handle))
        while {one["LifeCycleState"] for one in account.mount_targets.values()} != {"deleting"}:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        # This process is paused now, while the other one reopens the file system.
        await driver.file_systems._gateway.made_file_systems.set_stage(handle.file_system_id, Stage.READY)
        with pytest.raises(NotYet, match="may be used again"):
            await removing
        assert handle.file_system_id in account.file_systems

    run(test)


@pytest.mark.parametrize(
    ("pause", "late", "is_shown"),
    [
        pytest.param(400, 0, False, id="paused for long"),
        pytest.param(115, 115, True, id="two slow calls"),
    ],
)
def test_file_system_that_was_reported_as_kept_is_not_deleted_after_its_access_point(
    *, pause: int, late: int, is_shown: bool
) -> None:
    """Each call takes less than CALL_SECONDS, both together take more."""

    async def test() -> None:
        account = AwsAccount()
        old = Driver(account)
        handle = await old.create(_of("team", 1))
        leaders: list[Driver] = []
        call = old.connection.call

        async def slowly(service: Service, operation: str, /, **given: object) -> Mapping[str, object]:
            if operation == "DeleteFileSystem":
                await asyncio.sleep(late)
            answer = await call(service, operation, **given)
            if operation == "DeleteAccessPoint":
                leaders.append(Driver(account))  # It begins just after the last confirmation of the old one.
                await asyncio.sleep(pause)
            return answer

        old.connection.call = slowly  # type: ignore[method-assign]
        removing = asyncio.ensure_future(old.volumes.delete(handle))
        while not leaders:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        (leader,) = leaders
        leader.note("pvc-team-1", handle)
        kept = replace(leader.index.volumes["pvc-team-1"], reclaim_policy=ReclaimPolicy.RETAIN)
        for one in (leader, old) if is_shown else (leader,):
            one.index.put_volume(kept)

        async def settled() -> None:
            await leader.volumes.settled(await leader.volumes.removal(handle))

        await _until_done(settled)  # The engine reports now that the data was kept.
        with pytest.raises((RemovalRefused, NotYet)):
            await removing
        account.advance()
        assert account.stage(handle.file_system_id) == "ready"
        assert account.file_systems[handle.file_system_id]["LifeCycleState"] == "available"

    run(test)


def test_file_system_of_a_replication_is_removed_when_people_have_deleted_the_replication() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        handle = await driver.create(wanted())
        account.replicated.add(handle.file_system_id)
        for _ in range(2):
            with pytest.raises(AwsError, match=r"FileSystemInUse.*; .*delete the replication configuration"):
                await driver.volumes.delete(handle)
        assert (list(account.file_systems), account.access_points) == ([handle.file_system_id], {})
        account.replicated.clear()
        await driver.volumes.delete(handle)
        await asyncio.sleep(10)
        account.advance()
        assert account.is_empty

    run(test)


def test_removal_waits_until_other_security_groups_do_not_refer_to_that_of_the_file_system() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        handle = await driver.create(wanted())
        account.referred_groups.update(account.groups)
        for _ in range(2):
            with pytest.raises(
                AwsError, match=r"DependencyViolation.*; remove it from rules of other security groups"
            ):
                await driver.volumes.delete(handle)
        assert list(account.access_points) == [handle.access_point_id]
        account.referred_groups.clear()
        await driver.volumes.delete(handle)
        await asyncio.sleep(10)
        account.advance()
        assert account.is_empty

    run(test)


def test_file_system_of_a_replication_stays_without_its_access_point_if_the_volume_is_kept() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        handle = await driver.create(_of("team", 1))
        account.replicated.add(handle.file_system_id)
        with pytest.raises(AwsError, match="FileSystemInUse"):
            await driver.volumes.delete(handle)
        volume = driver.index.volumes["pvc-team-1"]
        driver.index.put_volume(replace(volume, reclaim_policy=ReclaimPolicy.RETAIN))
        with pytest.raises(VolumePending, match="is being removed"):
            await driver.create(_of("team", 2))
        await asyncio.sleep(181)
        again = await driver.create(_of("team", 2))
        assert again.file_system_id == handle.file_system_id
        assert handle.access_point_id not in account.access_points

    run(test)


def test_file_system_that_loses_its_tags_during_the_removal_stays() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        handle = await driver.create(wanted())

        async def waited(file_system_id: FileSystemId) -> None:
            account.file_systems[file_system_id]["Tags"] = []

        driver.folders.unused = waited  # type: ignore[method-assign]
        with pytest.raises(NotYet, match="may be used again"):
            await driver.volumes.delete(handle)
        assert (len(account.mount_targets), len(account.access_points)) == (3, 1)

    run(test)


def test_access_point_of_a_new_volume_does_not_block_its_own_file_system() -> None:
    """Without mount targets, too: the volume waits for the file system, and the removal for the volume."""

    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account, patience_seconds=0)
        old = await _until_done(lambda: driver.create(_of("team", 1)))
        removing = asyncio.create_task(driver.volumes.delete(old))
        await asyncio.sleep(0.02)
        # This attempt finds the file system ready, and creates its access point after that of the removal.
        creating = asyncio.create_task(driver.create(_of("team", 2)))
        with pytest.raises(NotYet, match="still has 3 mount targets"):
            await removing
        with pytest.raises(VolumePending, match="is being removed") as caught:
            await creating
        assert caught.value.has_begun  # Also if its claim is deleted now, the volume is created, and removed.
        with pytest.raises(VolumePending, match="is being removed") as caught:
            await driver.create(_of("team", 3))
        assert not caught.value.has_begun
        await asyncio.sleep(10)
        account.advance()
        assert not account.mount_targets
        with pytest.raises(RemovalRefused, match="also used by access point"):
            await driver.volumes.delete(old)
        await _until_done(lambda: driver.create(_of("team", 2)))
        await driver.volumes.delete(old)
        assert (len(account.access_points), len(account.mount_targets)) == (1, 3)

    run(test)


def test_nothing_may_exist_for_a_volume_whose_file_system_was_removed_with_its_access_point() -> None:
    """So the calls for it get a final code, and csi-provisioner ends them."""

    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        driver.folders.busy = KubeUnavailable("was not answered", field="pods")
        with pytest.raises(KubeUnavailable):
            await driver.create(wanted())
        assert driver.volumes.may_have(wanted().name)
        driver.cluster.claim_uids.clear()
        driver.folders.busy = None
        for _ in range(3):
            await asyncio.sleep(300)
            await driver.remove_unfinished()
        account.advance()
        assert account.is_empty
        assert not driver.volumes.may_have(wanted().name)

    run(test)


def test_refused_removal_does_not_mark_an_unfinished_file_system_as_used() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        driver.connection.before = _fail_at("TagResource")
        with pytest.raises(Killed):
            await driver.create(wanted())
        (name,) = account.file_systems
        successor = Driver(account)
        await successor.file_systems._gateway.made_file_systems.set_stage(FileSystemId(name), Stage.REMOVING)
        successor.claims.known["team", "data"] = CLAIM  # So its access point stays, and refuses the removal.
        await successor.remove_unfinished()
        assert account.stage(name) == "creating"
        successor.claims.known.clear()
        await successor.remove_unfinished()
        await asyncio.sleep(10)
        account.advance()
        assert account.is_empty

    run(test)


def test_awaited_volume_whose_access_point_a_list_omits_keeps_the_file_system() -> None:
    """Such as one that was just created: the list of AWS may be older."""

    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        first = await driver.create(_of("team", 1))
        driver.cluster.claim_uids["team/data-2"] = ClaimUid("team-2")
        # csi-provisioner creates its object later, for example because a webhook is slow.
        awaited = (await driver.volumes.promise(_of("team", 2), claim=CLAIM)).handle
        describe = account._DescribeAccessPoints

        def omitting(given: Mapping[str, object]) -> Mapping[str, object]:
            found = describe(given)["AccessPoints"]
            is_list = "FileSystemId" in given
            shown = [one for one in found if not is_list or one["AccessPointId"] != awaited.access_point_id]
            return {"AccessPoints": shown}

        account._DescribeAccessPoints = omitting  # type: ignore[method-assign]
        # So that it is known by the promise alone.
        await asyncio.sleep(NEW_SECONDS)
        with pytest.raises(RemovalRefused, match=f"also used by access point {awaited.access_point_id}"):
            await driver.volumes.delete(first)
        assert len(account.access_points) == 2
        assert account.stage(first.file_system_id) == "ready"
        driver.note("pvc-team-2", awaited, phase=VolumePhase.BOUND)
        await driver.volumes.delete(first)
        assert list(account.access_points) == [awaited.access_point_id]

    run(test)


@pytest.mark.parametrize("has_point", [True, False])
def test_unfinished_file_system_that_is_used_before_its_removal_is_recorded_is_reopened(
    *, has_point: bool
) -> None:
    """Also if its access point was deleted since: people may have kept the data."""

    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        driver.connection.before = _fail_at("CreateAccessPoint")
        with pytest.raises(Killed):
            await driver.create(wanted())
        (name,) = account.file_systems

        def use(operation: str) -> None:
            # Another process has asked for the stage before this record, and completes the volume.
            if operation == "TagResource" and not was_used:
                was_used.append(True)
                point = "fsap-0123456789abcdef0"
                made = {"AccessPointId": point, "FileSystemId": name, "ClientToken": f"pvc-{UID}"}
                account.access_points |= {point: made} if has_point else {}
                used = {"Key": "efs.csi.aws.com/used", "Value": "true"}
                account.call("TagResource", {"ResourceId": name, "Tags": [used]})

        was_used: list[bool] = []
        successor = Driver(account)
        successor.connection.before = use
        await successor.remove_unfinished()
        assert (account.stage(name), len(account.mount_targets)) == ("ready", 3)

    run(test)


def test_snapshots_are_looked_for_if_mount_targets_appear_while_the_removal_waits() -> None:
    async def test() -> None:
        account = AwsAccount()
        first, second = Driver(account), Driver(account)
        old = await first.create(_of("team", 1))
        second.note("pvc-team-1", old)
        account.mount_targets.clear()  # As after a removal that was given up late.
        name = old.file_system_id
        place = Location(file_system_id=name, directory=Directory(("new",)))
        async with first.guards.reservations.making(place):
            removing = asyncio.create_task(first.volumes.delete(old))
            await asyncio.sleep(1)
            new = await second.create(_of("team", 2))
            first.folders.made[f"{name}:/.kube-efs-snapshots/s-1"] = Permissions()
            await second.volumes.delete(new)
        with pytest.raises(RemovalRefused, match="contains 1 snapshots"):
            await removing
        assert (len(account.mount_targets), account.stage(name)) == (3, "ready")

    run(test)


def test_no_worker_pod_looks_for_snapshots_while_mount_targets_are_deleted() -> None:
    """It could not mount the file system."""

    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account, patience_seconds=0)
        handle = await _until_done(lambda: driver.create(wanted()))
        for _ in range(2):
            with pytest.raises(NotYet, match="still has 3 mount targets"):
                await driver.volumes.delete(handle)
            driver.folders.user = STUCK
        await asyncio.sleep(10)
        await driver.volumes.delete(handle)
        await asyncio.sleep(10)
        account.advance()
        assert account.is_empty

    run(test)


@pytest.mark.parametrize("server", ["fd00::4", "[fd00::4]", "FD00::0:4"])
@pytest.mark.parametrize("annotation", [None, "fs-00000002"], ids=["unknown", "annotated by mistake"])
def test_volume_with_the_address_of_a_mount_target_keeps_the_file_system(
    server: str, annotation: str | None
) -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        handle = await driver.create(wanted())
        for target in account.mount_targets.values():
            target["Ipv6Address"] = "fd00::4"
            del target["IpAddress"]
        static = Volume(
            name="static",
            uid="s",
            phase=VolumePhase.BOUND,
            nfs=NfsSource(server=server, path="/"),
            file_system_id=annotation,
        )
        driver.index.put_volume(static)
        with pytest.raises(RemovalRefused, match="also used by volume static"):
            await driver.volumes.delete(handle)
        assert len(account.mount_targets) == 3
        elsewhere = NfsSource(server="fd00::5", path="/")
        driver.index.put_volume(replace(static, nfs=elsewhere))
        await _until_done(lambda: driver.volumes.delete(handle))
        await asyncio.sleep(10)
        account.advance()
        assert account.is_empty

    run(test)


@pytest.mark.parametrize("secret", [None, ("team", "role")], ids=["no Secret", "a Secret without a role"])
def test_kept_volume_reopens_its_file_system(secret: tuple[str, str] | None) -> None:
    async def test() -> None:
        account = AwsAccount()
        driver, texts = Driver(account), Texts()
        texts.secrets["team/role"] = {}
        copies, _ = given_copies(driver.guards.reservations)
        backend = CsiBackend(volumes=driver.volumes, copies=copies, references=texts)
        handle = await driver.create(wanted())
        volume = replace(driver.index.volumes[f"pvc-{UID}"], deletion_secret=secret)
        await driver.file_systems._gateway.made_file_systems.set_stage(handle.file_system_id, Stage.REMOVING)
        with pytest.raises(NotYet, match="may still be deleted by an earlier call"):
            await backend.settled(volume)
        await asyncio.sleep(200)
        await backend.settled(volume)
        assert account.stage(handle.file_system_id) == "ready"

    run(test)


def test_file_system_of_a_kept_volume_is_reopened_without_another_claim() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        handle = await driver.create(wanted())
        # As when the answer to this call was lost, and it is carried out late.
        await driver.file_systems._gateway.made_file_systems.set_stage(handle.file_system_id, Stage.REMOVING)
        for _ in range(2):  # The volume is still leaving.
            await driver.reopen_kept()
            await asyncio.sleep(200)
        assert account.stage(handle.file_system_id) == "removing"
        volume = driver.index.volumes[f"pvc-{UID}"]
        driver.index.put_volume(replace(volume, reclaim_policy=ReclaimPolicy.RETAIN))
        await driver.reopen_kept()
        assert account.stage(handle.file_system_id) == "removing"
        await asyncio.sleep(200)
        await driver.reopen_kept()
        assert account.stage(handle.file_system_id) == "ready"
        await driver.file_systems.check_stays(handle.file_system_id)

    run(test)


def test_file_system_without_mount_targets_is_not_reopened_without_a_claim() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        handle = await driver.create(wanted())
        await driver.file_systems._gateway.made_file_systems.set_stage(handle.file_system_id, Stage.REMOVING)
        driver.forget(f"pvc-{UID}")
        account.mount_targets.clear()
        for _ in range(2):
            await driver.reopen_kept()
            await asyncio.sleep(200)
        assert account.stage(handle.file_system_id) == "removing"

    run(test)


def test_access_point_of_a_deleted_claim_does_not_keep_an_unfinished_file_system() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        driver.connection.before = _fail_at("TagResource")
        with pytest.raises(Killed):
            await driver.create(wanted())
        assert len(account.access_points) == 1
        successor = Driver(account)
        successor.claims.known["team", "data"] = CLAIM
        await successor.remove_unfinished()
        assert len(account.access_points) == 1
        successor.claims.known.clear()
        successor.folders.user = EMPTYING
        await successor.remove_unfinished()
        assert account.mount_targets
        successor.folders.user = None
        await successor.remove_unfinished()
        await asyncio.sleep(10)
        account.advance()
        assert account.is_empty

    run(test)


def _fail_at(operation: str) -> Callable[[str], None]:
    def before(name: str) -> None:
        if name == operation:
            raise Killed

    return before


def test_other_parameters_and_other_namespaces_have_file_systems_of_their_own() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        await driver.create(_of("team", 1))
        await driver.create(replace(wanted("pvc-9", scope="namespace", backup="true")))
        assert len(account.file_systems) == 2

    run(test)


def test_namespace_must_be_known() -> None:
    async def test() -> None:
        with pytest.raises(InvalidArgument, match="extra-create-metadata"):
            await Driver(AwsAccount()).create(replace(_of("team", 1), origin=VolumeOrigin()))

    run(test)


# --- who else uses the file system


@pytest.mark.parametrize("scope", ["claim", "namespace"])
def test_strangers_volume_keeps_the_file_system(scope: str) -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        handle = await driver.create(wanted(scope=scope))
        driver.note("backup", str(handle.file_system_id), phase=VolumePhase.BOUND, provisioned_by=None)
        with pytest.raises(RemovalRefused, match="also used by volume backup") as caught:
            await driver.volumes.delete(handle)
        assert caught.value.volumes == {"backup"}
        assert (len(account.access_points), account.stage(handle.file_system_id)) == (1, "ready")
        driver.forget("backup")
        await driver.volumes.delete(handle)
        assert not account.access_points

    run(test)


@pytest.mark.parametrize("scope", ["claim", "namespace"])
def test_volume_of_another_driver_keeps_the_file_system(scope: str) -> None:
    """Unlike the driver's own volumes, it would not remove the file system later."""

    async def test() -> None:
        driver = Driver(AwsAccount())
        handle = await driver.create(wanted(scope=scope))
        server = f"{handle.file_system_id}.efs.us-east-1.amazonaws.com"
        source = CsiSource(driver="nfs.csi.k8s.io", handle="one", attributes={"server": server, "share": "/"})
        driver.index.put_volume(
            Volume(
                name="other", uid="o", phase=VolumePhase.BOUND, provisioned_by="nfs.csi.k8s.io", csi=source
            )
        )
        with pytest.raises(RemovalRefused, match="also used by volume other"):
            await driver.volumes.delete(handle)

    run(test)


def of_worker(name: str, handle: VolumeHandle, *, claim: str, namespace: str) -> Volume:
    """The volume of a worker pod that mounts the root with the driver; it is deleted after the pod."""
    return Volume(
        name=name,
        reclaim_policy=ReclaimPolicy.RETAIN,
        storage_class=ROOT_CLASS,
        claim=ClaimReference(namespace=namespace, name=claim),
        csi=CsiSource(driver=DRIVER, handle=handle.file_system_id),
    )


@pytest.mark.parametrize("namespace", ["kube-efs", "team"])
@pytest.mark.parametrize("claim", ["efs-empty-1", "of-a-user"])
def test_only_volumes_of_worker_pods_do_not_keep_the_file_system(namespace: str, claim: str) -> None:
    async def test() -> None:
        driver = Driver(AwsAccount())
        handle = await driver.create(wanted())
        driver.index.put_volume(of_worker("efs-empty-1", handle, claim=claim, namespace=namespace))
        is_of_worker = (claim, namespace) == ("efs-empty-1", "kube-efs")
        with nullcontext() if is_of_worker else pytest.raises(RemovalRefused, match="efs-empty-1"):
            await driver.volumes.delete(handle)

    run(test)


EMPTYING = NotYet("works on its file system", field="worker pod", value="efs-empty-1")
STUCK = WorkerFailed("works on its file system", field="worker pod", value="efs-empty-1")


@pytest.mark.parametrize("is_listing", [False, True])
def test_namespace_gets_volumes_while_worker_pods_keep_its_file_system(is_listing: bool) -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        first = await driver.create(_of("team", 1))

        async def denied(_: Location) -> Sequence[FoundDirectory]:
            raise STUCK

        if is_listing:
            driver.folders.children = denied  # type: ignore[method-assign, assignment]
        else:
            driver.folders.user = STUCK
        with pytest.raises(WorkerFailed, match="efs-empty-1"):
            await driver.volumes.delete(first)
        second = await driver.create(_of("team", 2))
        assert second.file_system_id == first.file_system_id
        await driver.volumes.delete(first)
        assert list(account.access_points) == [second.access_point_id]

    run(test)


def test_stuck_worker_pod_does_not_mark_an_unfinished_file_system_as_used() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        driver.connection.before = _fail_at("CreateAccessPoint")
        with pytest.raises(Killed):
            await driver.create(wanted())
        successor = Driver(account)
        for successor.folders.user in (STUCK, None):
            await successor.remove_unfinished()
        await asyncio.sleep(10)
        account.advance()
        assert account.is_empty

    run(test)


def test_removal_waits_for_worker_pods_after_it_has_recorded_that_it_begins() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        handle = await driver.create(wanted())
        driver.folders.user = EMPTYING
        with pytest.raises(NotYet, match="efs-empty-1"):
            await driver.volumes.delete(handle)
        assert account.stage(handle.file_system_id) == "removing"
        assert account.mount_targets
        driver.folders.user = None
        await driver.volumes.delete(handle)
        await asyncio.sleep(10)
        account.advance()
        assert account.is_empty

    run(test)


def test_access_point_without_a_volume_keeps_the_file_system() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        handle = await driver.create(wanted())
        account.access_points["fsap-0123456789abcdef0"] = {
            "AccessPointId": "fsap-0123456789abcdef0",
            "FileSystemId": handle.file_system_id,
            "ClientToken": "of somebody",
        }
        with pytest.raises(RemovalRefused, match="also used by access point fsap-0123456789abcdef0"):
            await driver.volumes.delete(handle)
        assert len(account.access_points) == 2

    run(test)


def test_snapshot_keeps_the_file_system() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        handle = await driver.create(wanted())
        driver.folders.made[f"{handle.file_system_id}:/.kube-efs-snapshots/s-1"] = Permissions()
        with pytest.raises(RemovalRefused, match="contains 1 snapshots"):
            await driver.volumes.delete(handle)
        assert len(account.access_points) == 1

    run(test)


@pytest.mark.parametrize("state", ["deleted", "deleting"])
def test_snapshot_keeps_a_file_system_whose_mount_targets_somebody_has_deleted(state: str) -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        handle = await driver.create(wanted())
        driver.folders.made[f"{handle.file_system_id}:/.kube-efs-snapshots/s-1"] = Permissions()
        for one in account.mount_targets.values():
            one.update(LifeCycleState="deleting", until=asyncio.get_running_loop().time() + 30)
        if state == "deleted":
            account.mount_targets.clear()
        with pytest.raises(RemovalRefused, match="has no mount targets"):
            await driver.volumes.delete(handle)
        assert handle.file_system_id in account.file_systems

    run(test)


def test_snapshot_that_is_created_after_an_interrupted_removal_keeps_the_file_system() -> None:
    """An attempt of csi-provisioner continues with the pod of the one before, which has found no snapshot."""

    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        handle = await driver.create(wanted())
        name = handle.file_system_id
        list_now = driver.folders.children

        async def list_slowly(place: Location) -> Sequence[FoundDirectory]:
            found = await list_now(place)
            await asyncio.sleep(20)
            return found

        driver.folders.children = list_slowly  # type: ignore[method-assign, assignment]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await driver.volumes.delete(handle)
        driver.note("static", VolumeHandle(file_system_id=name), provisioned_by=None)
        with pytest.raises(RemovalRefused, match="also used by volume static"):
            await driver.volumes.delete(handle)
        # Now the file system is ready again.
        driver.folders.made[f"{name}:/.kube-efs-snapshots/s-1"] = Permissions()
        driver.forget("static")
        with pytest.raises(RemovalRefused, match="contains 1 snapshots"):
            await driver.volumes.delete(handle)
        assert name in account.file_systems

    run(test)


def test_snapshot_that_is_completed_during_the_wait_for_workers_keeps_the_file_system() -> None:
    async def test() -> None:
        driver = Driver(AwsAccount())
        handle = await driver.create(wanted())

        async def copied(file_system_id: FileSystemId) -> None:
            driver.folders.made[f"{file_system_id}:/.kube-efs-snapshots/s-1"] = Permissions()

        driver.folders.unused = copied  # type: ignore[method-assign]
        with pytest.raises(RemovalRefused, match="contains 1 snapshots"):
            await driver.volumes.delete(handle)

    run(test)


def test_volume_of_another_class_on_the_file_system_is_removed_alone() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        handle = await driver.create(wanted())
        guest = await driver.create(request("pvc-guest", fileSystemId=handle.file_system_id))
        await driver.volumes.delete(guest)
        assert (list(account.file_systems), list(account.access_points)) == (
            [handle.file_system_id],
            [handle.access_point_id],
        )

    run(test)


def test_retained_volume_keeps_its_namespaces_file_system() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        kept, removed = await driver.create(_of("team", 1)), await driver.create(_of("team", 2))
        volume = driver.index.volumes["pvc-team-1"]
        driver.index.put_volume(replace(volume, reclaim_policy=ReclaimPolicy.RETAIN))
        await driver.volumes.delete(removed)
        assert list(account.access_points) == [kept.access_point_id]
        assert account.stage(kept.file_system_id) == "ready"

    run(test)


@pytest.mark.parametrize("pause", [*range(1, 40), 150, 210, 350, 450])
def test_new_volume_and_the_removal_of_the_last_one_exclude_each_other(pause: int) -> None:
    """Two processes, one call after the other in every order: no volume is on a deleted file system."""

    async def test() -> None:
        account = AwsAccount()
        first, second = Driver(account), Driver(account)
        old = await first.create(_of("team", 1))
        second.note("pvc-team-1", old)
        removal = asyncio.ensure_future(_until_done(lambda: first.volumes.delete(old)))
        # Each call takes 10 ms, so a different call of the removal comes next each time.
        await asyncio.sleep(pause * 0.01 + 0.005)
        new = await _until_done(lambda: second.create(_of("team", 2)))
        first.note("pvc-team-2", new, phase=VolumePhase.BOUND)
        await removal
        await asyncio.sleep(100)
        account.advance()
        assert new.file_system_id in account.file_systems
        assert account.file_systems[new.file_system_id]["LifeCycleState"] == "available"
        assert account.stage(new.file_system_id) == "ready"
        assert list(account.access_points) == [new.access_point_id]
        assert sum(one["FileSystemId"] == new.file_system_id for one in account.mount_targets.values()) == 3

    run(test)


def test_tags_that_decide_cannot_be_replaced_by_a_class() -> None:
    async def test() -> None:
        account = AwsAccount()
        await Driver(account).create(
            wanted(fileSystemTags="efs.csi.aws.com/stage=creating,efs.csi.aws.com/created-for=pvc-x")
        )
        tags = {one["Key"]: one["Value"] for one in next(iter(account.file_systems.values()))["Tags"]}
        assert tags["efs.csi.aws.com/created-for"] == f"pvc-{UID}"

    run(test)


@pytest.mark.parametrize("is_of_class", [True, False], ids=["of the class", "of the driver"])
@pytest.mark.parametrize("key", ["efs.csi.aws.com/used", "efs.csi.aws.com/checked"])
def test_new_file_system_is_not_used_or_checked_whatever_tags_are_given(
    key: str, *, is_of_class: bool
) -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(
            account, tags=() if is_of_class else (Tag(key=key, value="true"),), patience_seconds=0
        )
        given = {"fileSystemTags": f"{key}=true"} if is_of_class else {}
        with pytest.raises(VolumePending):
            await driver.create(wanted(transitionToIA="AFTER_30_DAYS", **given))
        (made,) = account.file_systems.values()
        assert key not in {one["Key"] for one in made["Tags"]}
        await _until_done(lambda: driver.create(wanted(transitionToIA="AFTER_30_DAYS", **given)))
        assert list(account.policies) == list(account.lifecycles) == [made["FileSystemId"]]

    run(test)


def test_calls_of_other_volumes_do_not_grow() -> None:
    """Only the first removal on an existing file system asks whether it was created for a claim."""

    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        made = await driver.create(wanted())
        name = made.file_system_id
        account.file_systems[name]["Tags"] = []
        handles = [await driver.create(request(f"pvc-{number}", fileSystemId=name)) for number in range(2)]
        driver.connection.calls.clear()
        await driver.volumes.delete(handles[0])
        first = driver.connection.calls.count("DescribeFileSystems")
        await driver.volumes.delete(handles[1])
        assert (first, driver.connection.calls.count("DescribeFileSystems")) == (1, 1)

    run(test)


def test_claims_without_subnets_share_the_list_of_nodes() -> None:
    async def test() -> None:
        driver = Driver(AwsAccount())
        await asyncio.gather(*(driver.create(_of(f"team-{number}", 1)) for number in range(50)))
        assert driver.connection.calls.count("DescribeInstances") == 1
        await asyncio.sleep(10)
        # These find the file system of their namespace complete.
        await asyncio.gather(*(driver.create(_of("team-1", number)) for number in range(2, 10)))
        assert driver.connection.calls.count("DescribeInstances") == 2

    run(test)
