"""Who else is at work on file systems for claims: other clusters, people, late answers, unkind accounts."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.provisioning.backends.csi.aws_account import AwsAccount, Connection, Killed, error
from tests.unit.provisioning.backends.csi.csi_world import request
from tests.unit.provisioning.backends.csi.test_file_systems import (
    CLAIM,
    Driver,
    _of,
    _until_done,
    run,
    wanted,
)

from kube_efs.aws.connection import Service
from kube_efs.model.claims import ReclaimPolicy
from kube_efs.model.csi.access_point_tags import Tag
from kube_efs.model.csi.errors import InvalidArgument, VolumePending
from kube_efs.model.csi.file_system_templates import Scope, parse_template
from kube_efs.model.csi.made_file_systems import FileSystemOwner, Stage, tags_for
from kube_efs.model.csi.volume_handles import parse_volume_handle
from kube_efs.model.efs.directories import Permissions
from kube_efs.model.efs.ids import ClaimUid
from kube_efs.model.errors import KubeEfsError, NotYet, RemovalRefused, WorkerDenied, WorkerFailed
from kube_efs.model.volumes import NfsSource, Volume, VolumePhase

_CLAIM_OF_2 = replace(CLAIM, name="data-2", uid=ClaimUid("team-2"))


class Other(Driver):
    """A driver in another cluster of the same account."""

    def __init__(self, account: AwsAccount, **given: Any) -> None:
        super().__init__(account, **given)

        async def uid() -> str:
            return "another-cluster"

        self.cluster.cluster_uid = uid  # type: ignore[method-assign]


def test_other_cluster_does_not_delete_our_file_system() -> None:
    async def test() -> None:
        account = AwsAccount()
        ours, theirs = Driver(account), Other(account)
        first = await ours.create(_of("team", 1))
        name = first.file_system_id
        # Ours: a volume of efs-dir on the same file system, without an access point.
        ours.note("pvc-dir", f"{name}:/dirs/a", phase=VolumePhase.BOUND)
        await ours.volumes.delete(first)  # Removed alone.
        ours.forget("pvc-team-1")
        assert account.stage(name) == "ready"
        # Theirs: a class of efs-ap that names the file system.
        guest = await theirs.create(request("pvc-guest", fileSystemId=name))
        await theirs.volumes.delete(guest)
        await asyncio.sleep(10)
        account.advance()
        assert name in account.file_systems, "the other cluster deleted our file system with pvc-dir"

    run(test)


def test_volumes_of_two_clusters_do_not_block_each_other() -> None:
    async def test() -> None:
        account = AwsAccount()
        ours, theirs = Driver(account), Other(account)
        first = await ours.create(_of("team", 1))
        guest = await theirs.create(request("pvc-guest", fileSystemId=first.file_system_id))
        await theirs.volumes.delete(guest)  # A volume of efs-ap is removed alone in every other case.

    run(test)


class Ec2(AwsAccount):
    """As EC2: an empty list of IDs selects everything, and a filter has at most 200 values."""

    instances: tuple[str, ...] = ()

    def _DescribeInstances(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        (wanted,) = given["Filters"]
        if len(wanted["Values"]) > 200:
            raise error("DescribeInstances", "FilterLimitExceeded", 400)
        return {"Reservations": []} if not self.instances else super()._DescribeInstances(given)

    def _DescribeSubnets(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        if not given["SubnetIds"]:
            return {
                "Subnets": [
                    {
                        "SubnetId": "subnet-0",
                        "AvailabilityZone": "us-east-1a",
                        "VpcId": "vpc-of-others",
                    }
                ]
            }
        return super()._DescribeSubnets(given)


def test_cluster_on_fargate_must_name_subnets() -> None:
    async def test() -> None:
        account = Ec2()
        driver = Driver(account)
        # providerID aws:///us-east-1a/0123-4567/fargate-ip-10-0-0-1.ec2.internal
        driver.cluster.instances = frozenset({"fargate-ip-10-0-0-1.ec2.internal"})
        with pytest.raises(InvalidArgument, match="subnetIds"):
            await driver.create(wanted())
        assert account.is_empty

    run(test)


def test_cluster_with_more_than_200_nodes_is_served() -> None:
    async def test() -> None:
        account = Ec2()
        account.instances = ("i-1",)
        driver = Driver(account)
        driver.cluster.instances = frozenset(f"i-{number:017x}" for number in range(201))
        await driver.create(wanted())

    run(test)


def test_snapshot_does_not_block_a_volume_whose_namespace_keeps_the_file_system() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        first, second = await driver.create(_of("team", 1)), await driver.create(_of("team", 2))
        volume = driver.index.volumes["pvc-team-2"]
        driver.index.put_volume(replace(volume, phase=VolumePhase.BOUND))
        driver.folders.made[f"{first.file_system_id}:/.kube-efs-snapshots/s-1"] = Permissions()
        await driver.volumes.delete(first)
        assert list(account.access_points) == [second.access_point_id]

    run(test)


def test_snapshot_is_found_in_the_stage_removing() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        handle = await driver.create(wanted())
        # The first attempt ended after the record; the volume was Retain for a day; then Delete again.
        await driver.file_systems._gateway.made_file_systems.set_stage(handle.file_system_id, Stage.REMOVING)
        driver.folders.made[f"{handle.file_system_id}:/.kube-efs-snapshots/s-1"] = Permissions()
        with pytest.raises(RemovalRefused, match="snapshots"):
            await driver.volumes.delete(handle)

    run(test)


def test_denied_worker_is_no_proof_that_there_are_no_snapshots() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        handle = await driver.create(wanted())
        driver.folders.made[f"{handle.file_system_id}:/.kube-efs-snapshots/s-1"] = Permissions()

        async def denied(_location: object) -> Any:
            # An administrator has set a policy that requires IAM since, or has changed the workers' role.
            raise WorkerDenied("was denied", field="mount", value=str(handle.file_system_id))

        driver.folders.children = denied  # type: ignore[method-assign, assignment]
        with pytest.raises(KubeEfsError):
            await driver.volumes.delete(handle)
        assert account.file_systems[handle.file_system_id]["LifeCycleState"] == "available"

    run(test)


def test_call_that_was_denied_once_is_repeated() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        handle = await driver.create(wanted())
        denied = iter([True])

        def before(operation: str) -> None:
            if operation == "DescribeFileSystems" and next(denied, False):
                raise error(operation, "ExpiredTokenException", 400)

        driver.connection.before = before
        await _until_done(lambda: driver.volumes.delete(handle))
        await asyncio.sleep(10)
        account.advance()
        assert account.is_empty, "the volume is gone, its file system stays without anybody"

    run(test)


@pytest.mark.parametrize("pause", range(40))
def test_access_point_of_a_new_claim_stays_on_an_unused_file_system(pause: int) -> None:
    """Another claim of the namespace appears after the claims were listed."""

    async def test() -> None:
        account = AwsAccount()
        old = Driver(account, patience_seconds=0)
        with pytest.raises(VolumePending):
            await old.create(_of("team", 1))
        await asyncio.sleep(10)
        with pytest.raises(VolumePending):
            await old.create(_of("team", 1))
        await asyncio.sleep(400)
        leader, provisioner = Driver(account), Driver(account)
        # The claim appears after the duty has listed them.
        leader.claims.list_later(_CLAIM_OF_2)
        creation = asyncio.ensure_future(_until_done(lambda: provisioner.create(_of("team", 2))))
        await asyncio.sleep(pause * 0.01 + 0.005)
        await leader.remove_unfinished()
        await creation
        await asyncio.sleep(100)
        account.advance()
        new = parse_volume_handle(provisioner.index.volumes["pvc-team-2"].csi.handle)  # type: ignore[union-attr]
        assert new.access_point_id in account.access_points
        assert account.file_systems[new.file_system_id]["LifeCycleState"] == "available"
        assert sum(one["FileSystemId"] == new.file_system_id for one in account.mount_targets.values()) == 3

    run(test)


def test_claim_waits_for_mount_targets_that_were_deleted() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account, patience_seconds=0)
        await _until_done(lambda: driver.create(_of("team", 1)))
        (volume,) = driver.index.volumes.values()
        first = parse_volume_handle(volume.csi.handle)  # type: ignore[union-attr]
        with pytest.raises(NotYet, match="still has 3 mount targets"):
            await driver.volumes.delete(first)
        # Now somebody has a use for it, and the next attempt gives way.
        driver.note("backup", str(first.file_system_id), phase=VolumePhase.BOUND, provisioned_by=None)
        with pytest.raises(RemovalRefused):
            await driver.volumes.delete(first)
        await asyncio.sleep(60)
        driver.forget("pvc-team-1")
        await _until_done(lambda: driver.create(_of("team", 2)))
        await asyncio.sleep(60)
        account.advance()
        assert len(account.mount_targets) == 3, "bound, and no node can ever mount it"

    run(test)


def test_new_claim_repairs_missing_mount_targets() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        first = await driver.create(_of("team", 1))
        driver.connection.before = _second("DeleteMountTarget")
        with pytest.raises(Killed):
            await driver.volumes.delete(first)
        successor = Driver(account)
        successor.note("pvc-team-1", first)
        volume = successor.index.volumes["pvc-team-1"]
        successor.index.put_volume(replace(volume, reclaim_policy=ReclaimPolicy.RETAIN))
        await _until_done(lambda: successor.create(_of("team", 2)))
        account.advance()
        assert len(account.mount_targets) == 3

    run(test)


def _second(operation: str) -> Any:
    seen: list[str] = []

    def before(name: str) -> None:
        seen.append(name)
        if seen.count(operation) == 2:
            raise Killed

    return before


@pytest.mark.parametrize(
    "parameters",
    [
        {
            "throughputMode": "bursting",
            "transitionToIA": "AFTER_30_DAYS",
            "transitionToArchive": "AFTER_90_DAYS",
        },
        {
            "performanceMode": "maxIO",
            "transitionToIA": "AFTER_30_DAYS",
            "transitionToArchive": "AFTER_90_DAYS",
        },
        {"transitionToIA": "AFTER_90_DAYS", "transitionToArchive": "AFTER_30_DAYS"},
        {"transitionToIA": "AFTER_90_DAYS", "transitionToArchive": "AFTER_90_DAYS"},
    ],
)
def test_archive_that_efs_refuses_is_refused_before_anything_is_created(parameters: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument):
        parse_template(parameters)


def test_retained_volume_keeps_its_access_point_after_a_late_record() -> None:
    async def test() -> None:
        account = AwsAccount()
        old = Driver(account, patience_seconds=0)
        with pytest.raises(VolumePending):
            await old.create(_of("team", 1))
        await asyncio.sleep(400)
        leader, provisioner = Driver(account), Driver(account)
        # The duty has decided; before its record reaches AWS, a new claim is served completely.
        call = leader.connection._call

        async def slow(operation: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
            if operation == "TagResource":
                await _until_done(lambda: provisioner.create(_of("team", 2)))
                await call(operation, given)
                raise Killed
            return await call(operation, given)

        leader.connection._call = slow  # type: ignore[method-assign]
        with pytest.raises(Killed):
            await leader.remove_unfinished()
        (name,) = account.file_systems
        assert account.stage(name) == "removing"  # A volume with data is on it.
        assert len(account.access_points) == 1
        # Its user deletes the claim; the policy is Retain, and an administrator deletes the object of the
        # volume: "A volume with the policy Retain keeps its access point, so it keeps the file system".
        successor = Driver(account)
        await successor.remove_unfinished()
        await asyncio.sleep(10)
        account.advance()
        assert name in account.file_systems, "deleted with retained data"
        assert len(account.access_points) == 1

    run(test)


def test_slow_worker_pod_does_not_stop_csi_provisioner() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account, patience_seconds=10)
        handle = await driver.create(wanted())
        children = driver.folders.children

        async def slow(location: Any) -> Any:
            await asyncio.sleep(20)  # The image is pulled, the claim is bound, the volume is mounted.
            return await children(location)

        driver.folders.children = slow  # type: ignore[method-assign]
        for _ in range(20):
            try:
                async with asyncio.timeout(15):
                    await driver.volumes.delete(handle)
            except (KubeEfsError, NotYet, TimeoutError):
                await asyncio.sleep(30)
            else:
                break
        await asyncio.sleep(10)
        account.advance()
        assert account.is_empty, "it can never be removed"

    run(test)


class Late(AwsAccount):
    """As a distributed system: lists and descriptions show a change only after a while."""

    lag = 3.0

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, float] = {}

    def _DescribeAccessPoints(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        now = asyncio.get_running_loop().time()
        answer = super()._DescribeAccessPoints(given)
        if given.get("AccessPointId"):
            return answer
        return {
            "AccessPoints": [
                one for one in answer["AccessPoints"] if self._seen[one["AccessPointId"]] + self.lag <= now
            ]
        }

    def _CreateAccessPoint(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        made = super()._CreateAccessPoint(given)
        self._seen[made["AccessPointId"]] = asyncio.get_running_loop().time()
        return made


@pytest.mark.parametrize("pause", [*range(1, 60, 2), 150, 210, 350, 450])
def test_exclusion_with_lists_that_are_late(pause: int) -> None:
    async def test() -> None:
        account = Late()
        first, second = Driver(account), Driver(account)
        old = await first.create(_of("team", 1))
        await asyncio.sleep(10)
        second.note("pvc-team-1", old)
        removal = asyncio.ensure_future(_until_done(lambda: first.volumes.delete(old)))
        await asyncio.sleep(pause * 0.01 + 0.005)
        await _until_done(lambda: second.create(_of("team", 2)))
        new = parse_volume_handle(second.index.volumes["pvc-team-2"].csi.handle)  # type: ignore[union-attr]
        first.note("pvc-team-2", new, phase=VolumePhase.BOUND)
        await removal
        await asyncio.sleep(100)
        account.advance()
        assert new.file_system_id in account.file_systems
        assert account.file_systems[new.file_system_id]["LifeCycleState"] == "available"
        assert sum(one["FileSystemId"] == new.file_system_id for one in account.mount_targets.values()) == 3

    run(test)


def test_too_many_tags_are_refused() -> None:
    asked = wanted(fileSystemTags=",".join(f"k{one}=v" for one in range(30)))
    owner = FileSystemOwner(scope=Scope.CLAIM, name="pvc-1", cluster="c")
    template = asked.parameters.template
    assert template is not None
    with pytest.raises(InvalidArgument, match="more tags than EFS accepts; use at most 0 tags"):
        tags_for(owner, asked, template, [Tag(key=f"d{one}") for one in range(45)])
    assert len(tags_for(owner, asked, template, [Tag(key="d")])) < 50


def test_reserved_tag_in_other_letters_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        parse_template({"fileSystemTags": "AWS:x=y"})


def test_file_system_in_the_state_error_says_so() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account, patience_seconds=0)
        with pytest.raises(VolumePending):
            await driver.create(wanted())
        (one,) = account.file_systems.values()
        one["LifeCycleState"] = "error"
        with pytest.raises(VolumePending, match="is in the state error, which AWS does not repair"):
            await driver.create(wanted())

    run(test)


def test_restored_tags_are_noticed() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        first, second = await driver.create(_of("team", 1)), await driver.create(_of("team", 2))
        name = first.file_system_id
        tags = account.file_systems[name]["Tags"]
        account.file_systems[name]["Tags"] = []  # A policy tool removes unknown tags.
        await driver.volumes.delete(first)
        driver.forget("pvc-team-1")
        account.file_systems[name]["Tags"] = tags  # Restored.
        await asyncio.sleep(200)
        await driver.volumes.delete(second)
        await asyncio.sleep(10)
        account.advance()
        assert account.is_empty

    run(test)


class LateTags(AwsAccount):
    """The tags of a file system, and the list of access points, are ``lag`` seconds late."""

    lag = 5.0

    def __init__(self) -> None:
        super().__init__()
        self._old: dict[str, list[tuple[float, list[Any]]]] = {}
        self._seen: dict[str, float] = {}

    def _TagResource(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        name = given["ResourceId"]
        before = list(self.file_systems[name]["Tags"])
        now = asyncio.get_running_loop().time()
        self._old.setdefault(name, []).append((now + self.lag, before))
        return super()._TagResource(given)

    def _shown(self, one: dict[str, Any]) -> Mapping[str, Any]:
        shown = dict(super()._shown(one))
        now = asyncio.get_running_loop().time()
        for until, tags in self._old.get(one["FileSystemId"], []):
            if now < until:
                shown["Tags"] = list(tags)
                break
        return shown


@pytest.mark.parametrize("pause", [*range(1, 60, 2), 150, 210, 350, 450, 600, 700])
def test_exclusion_with_tags_that_are_late(pause: int) -> None:
    async def test() -> None:
        account = LateTags()
        first, second = Driver(account), Driver(account)
        old = await first.create(_of("team", 1))
        await asyncio.sleep(10)
        second.note("pvc-team-1", old)
        removal = asyncio.ensure_future(_until_done(lambda: first.volumes.delete(old)))
        await asyncio.sleep(pause * 0.01 + 0.005)
        await _until_done(lambda: second.create(_of("team", 2)))
        new = parse_volume_handle(second.index.volumes["pvc-team-2"].csi.handle)  # type: ignore[union-attr]
        first.note("pvc-team-2", new, phase=VolumePhase.BOUND)
        await removal
        await asyncio.sleep(100)
        account.advance()
        assert new.file_system_id in account.file_systems, "LOST"
        assert account.file_systems[new.file_system_id]["LifeCycleState"] == "available"
        assert new.access_point_id in account.access_points
        assert (
            sum(one["FileSystemId"] == new.file_system_id for one in account.mount_targets.values()) == 3
        ), "NO TARGETS"

    run(test)


def test_nas_in_the_cluster_does_not_keep_every_file_system() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        handle = await driver.create(wanted())
        driver.index.put_volume(
            Volume(
                name="nas",
                uid="uid-of-nas",
                phase=VolumePhase.BOUND,
                reclaim_policy=ReclaimPolicy.RETAIN,
                nfs=NfsSource(server="192.168.7.7", path="/exports/office"),
            )
        )
        await driver.volumes.delete(handle)
        await asyncio.sleep(10)
        account.advance()
        assert account.is_empty

    run(test)


class Growing(AwsAccount):
    """The nodes are in some of the zones."""

    zones = 1

    def _DescribeInstances(self, _given: Mapping[str, Any]) -> Mapping[str, Any]:
        instances = [{"SubnetId": f"subnet-{number}"} for number in range(self.zones)]
        return {"Reservations": [{"Instances": instances}]}


def test_namespace_gets_mount_targets_in_the_zones_of_new_nodes() -> None:
    async def test() -> None:
        account = Growing()
        driver = Driver(account)
        await driver.create(_of("team", 1))
        account.zones = 3  # The cluster was scaled.
        await asyncio.sleep(2)  # The list of nodes may be ten seconds old.
        await driver.create(_of("team", 2))
        assert len(account.mount_targets) == 3

    run(test)


def test_more_than_five_security_groups_are_refused() -> None:
    with pytest.raises(InvalidArgument):
        parse_template({"securityGroupIds": ",".join(f"sg-{one:017x}" for one in range(6))})


def test_reopened_file_system_keeps_what_a_person_changed() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        first = await driver.create(_of("team", 1))
        name = str(first.file_system_id)
        account.policies[name] = "of an administrator"
        # All mount targets were deleted by a removal that was given up.
        account.mount_targets.clear()
        await driver.create(_of("team", 2))
        assert account.policies[name] == "of an administrator"

    run(test)


def _uses_it_meanwhile(driver: Driver, name: str) -> None:
    """A static volume is made while AWS deletes the mount targets."""

    def before(operation: str) -> None:
        if operation == "DeleteMountTarget":
            driver.note("backup", name, phase=VolumePhase.BOUND, provisioned_by=None)

    driver.connection.before = before


def test_removal_that_was_refused_at_the_end_is_continued() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        handle = await driver.create(wanted())
        _uses_it_meanwhile(driver, str(handle.file_system_id))
        with pytest.raises(RemovalRefused, match="volume backup"):
            await driver.volumes.delete(handle)
        driver.connection.before = lambda _: None
        driver.forget("backup")  # As the message says: "delete those first".
        await driver.volumes.delete(handle)  # Succeeds.
        await asyncio.sleep(10)
        account.advance()
        assert account.is_empty, "the volume is gone, and nobody removes its file system"

    run(test)


def test_removal_that_was_refused_at_the_end_needs_no_mount_target() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        handle = await driver.create(_of("team", 1))
        children = driver.folders.children

        async def mounted(location: Any) -> Any:  # Worker pods need a mount target.
            if not account._targets_of(str(handle.file_system_id)):
                raise WorkerFailed("did not end after 120 s", field="worker pod", value="w-1")
            return await children(location)

        driver.folders.children = mounted  # type: ignore[method-assign]
        _uses_it_meanwhile(driver, str(handle.file_system_id))
        with pytest.raises(RemovalRefused, match="volume backup"):
            await driver.volumes.delete(handle)
        driver.connection.before = lambda _: None
        driver.forget("backup")
        await asyncio.sleep(600)
        await driver.volumes.delete(handle)

    run(test)


def test_volume_that_is_set_to_retain_in_time_keeps_its_entrance() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        handle = await driver.create(wanted())

        def before(operation: str) -> None:
            if operation == "DeleteMountTarget":
                (volume,) = driver.index.volumes.values()
                driver.index.put_volume(replace(volume, reclaim_policy=ReclaimPolicy.RETAIN))

        driver.connection.before = before
        with pytest.raises((KubeEfsError, NotYet)):
            await driver.volumes.delete(handle)
        assert handle.file_system_id in account.file_systems
        assert handle.access_point_id in account.access_points, "the data is there, and nobody can mount it"

    run(test)


@pytest.mark.parametrize("stage", ["ready", "creating"])
def test_file_system_with_copied_tags_is_never_removed(stage: str) -> None:
    """AWS Backup restores a file system of a namespace into a new one, and copies the tags."""

    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        first = await driver.create(_of("team", 1))
        tags = account.file_systems[str(first.file_system_id)]["Tags"]
        connection = Connection(account)
        made = await connection.call(
            Service.EFS, "CreateFileSystem", CreationToken="restored-by-aws-backup", Tags=list(tags)
        )
        restored = made["FileSystemId"]
        await connection.call(
            Service.EFS,
            "TagResource",
            ResourceId=restored,
            Tags=[{"Key": "efs.csi.aws.com/stage", "Value": stage}],
        )
        await asyncio.sleep(400)
        if stage == "creating":
            await driver.remove_unfinished()
        else:
            guest = await driver.create(request("pvc-guest", fileSystemId=restored))
            await driver.volumes.delete(guest)
        await asyncio.sleep(10)
        account.advance()
        assert restored in account.file_systems

    run(test)


def test_claim_of_another_provisioner_keeps_no_unused_file_system() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account, patience_seconds=0)
        with pytest.raises(VolumePending):
            await driver.create(_of("team", 1))
        await asyncio.sleep(1000)
        driver.claims.known["team", "other"] = replace(
            CLAIM, name="other", storage_class="nfs", storage_provisioner="example.com/nfs"
        )
        for _ in range(10):
            await driver.remove_unfinished()
            await asyncio.sleep(300)
        account.advance()
        assert account.is_empty

    run(test)


def test_group_of_somebody_else_with_the_name_is_not_deleted() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        handle = await driver.create(wanted(securityGroupIds="sg-1"))
        token = account.file_systems[str(handle.file_system_id)]["CreationToken"]
        account.groups["sg-of-somebody"] = {
            "GroupId": "sg-of-somebody",
            "GroupName": token,
            "rules": set(),
            "tags": {},
        }
        await driver.volumes.delete(handle)
        assert "sg-of-somebody" in account.groups

    run(test)


def test_removals_of_a_busy_namespace_are_not_starved() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        old = await driver.create(_of("team", 1))
        await driver.create(_of("team", 2))
        kept = driver.index.volumes["pvc-team-2"]
        driver.index.put_volume(replace(kept, phase=VolumePhase.BOUND))
        ended = asyncio.Event()

        async def one(number: int) -> None:
            with suppress(KubeEfsError):
                await driver.create(_of("team", number))

        async def busy() -> None:
            number = 10
            while not ended.is_set():
                number += 1
                tasks.append(asyncio.ensure_future(one(number)))
                await asyncio.sleep(0.02)

        tasks: list[Any] = []
        runner = asyncio.ensure_future(busy())
        await asyncio.sleep(0.2)
        try:
            async with asyncio.timeout(60):
                await driver.volumes.delete(old)
        finally:
            ended.set()
            await runner
            await asyncio.gather(*tasks)

    run(test)


def test_volume_that_is_not_the_last_one_needs_no_worker_pod() -> None:
    async def test() -> None:
        account = AwsAccount()
        driver = Driver(account)
        first = await driver.create(_of("team", 1))
        await driver.create(_of("team", 2))
        kept = driver.index.volumes["pvc-team-2"]
        driver.index.put_volume(replace(kept, phase=VolumePhase.BOUND))
        asked: list[str] = []
        children = driver.folders.children

        async def counted(location: Any) -> Any:
            asked.append(str(location))
            return await children(location)

        driver.folders.children = counted  # type: ignore[method-assign]
        await driver.volumes.delete(first)
        assert not asked

    run(test)
