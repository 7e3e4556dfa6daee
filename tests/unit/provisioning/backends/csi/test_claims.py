"""Claims served without sidecars: each gets one volume, and roles come from Secrets."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from structlog.testing import capture_logs
from tests.unit.model.csi.test_csi_claims import CLAIM, CLASS, NAME, NAMESPACE, SECRET
from tests.unit.provisioning.backends.csi.csi_world import FS, CsiWorld
from tests.unit.provisioning.world import Moments, Store

from kube_efs.model.claims import Claim, ReclaimPolicy, StorageClass
from kube_efs.model.csi.errors import InvalidArgument
from kube_efs.model.csi.volume_handles import parse_volume_handle
from kube_efs.model.efs.directories import Directory
from kube_efs.model.efs.ids import ClaimUid
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.errors import (
    AwsNotPermitted,
    AwsUnavailable,
    KubeAlreadyExists,
    KubeDenied,
    NotYet,
    RemovalRefused,
    WorkerFailed,
)
from kube_efs.model.volumes import FINALIZER, CsiSource, Volume, VolumePhase
from kube_efs.provisioning.backends.csi.claims import CsiBackend, CsiMade
from kube_efs.provisioning.engine import DataFate, Engine
from kube_efs.provisioning.guards import Guards, Permit, RemovalOrder

ARN = "arn:aws:iam::123456789012:role/storage"
ABROAD = StorageClass(
    name="abroad",
    provisioner=CLASS.provisioner,
    parameters={**CLASS.parameters, SECRET: "role", NAMESPACE: "${pvc.namespace}"},
)


@pytest.fixture
def world() -> CsiWorld:
    return CsiWorld()


@pytest.fixture
def backend(world: CsiWorld) -> CsiBackend:
    return CsiBackend(volumes=world.volumes, copies=world.copies, references=world.texts)


async def made(backend: CsiBackend) -> CsiMade:
    return await backend.plan(CLAIM, CLASS).make()


def volume(handle: str, **changes: object) -> Volume:
    return Volume(name=NAME, csi=CsiSource(handle=handle), **changes)  # type: ignore[arg-type]


def handle_of(wanted: Volume) -> str:
    return wanted.csi.handle if wanted.csi else ""


async def permitted() -> Permit:
    return Permit()


async def test_plan_gives_the_volume_of_its_claim(backend: CsiBackend) -> None:
    plan = backend.plan(CLAIM, CLASS)
    assert (plan.claim, plan.place) == (CLAIM, "a volume (efs-ap)")
    assert [str(one) for one in await plan.locations()] == [f"{FS}:/{NAME}"]
    wanted = (await plan.make()).volume(0)
    assert wanted.csi == CsiSource(handle=f"efs:{FS}::fsap-{1:017x}")
    assert (wanted.name, plan.place_of(wanted)) == (NAME, f"efs:{FS}::fsap-{1:017x}")


async def test_claim_gets_a_notice_of_a_new_access_point_unless_one_is_reused(world: CsiWorld) -> None:
    told: list[tuple[Claim, str]] = []
    backend = CsiBackend(
        volumes=world.volumes,
        copies=world.copies,
        references=world.texts,
        notice=lambda claim, text: told.append((claim, text)),
    )
    reusing = replace(CLASS, parameters={**CLASS.parameters, "reuseAccessPoint": "true"})
    text = f"No access point of an earlier claim {CLAIM.name} is on {FS}; a new one is created"
    first = await backend.plan(CLAIM, reusing).make()
    assert told == [(CLAIM, text)]
    later = replace(CLAIM, uid=ClaimUid("another"), namespace="elsewhere")
    again = await backend.plan(later, reusing).make()
    assert again.made.handle == first.made.handle
    assert told == [(CLAIM, text)]


async def test_size_is_in_bytes(world: CsiWorld, backend: CsiBackend) -> None:
    await made(backend)
    (point,) = world.api.points.values()
    assert point.tags["efs.csi.aws.com/requested-bytes"] == str(5 * 1024**3)


@pytest.mark.parametrize("form", [f"efs:{FS}::fsap-{1:017x}", f"{FS}::fsap-{1:017x}"], ids=["new", "old"])
async def test_volume_with_the_same_target_is_adopted(backend: CsiBackend, form: str) -> None:
    await (await made(backend)).adopt(volume(form))


async def test_volume_with_another_target_is_not_adopted(backend: CsiBackend) -> None:
    with pytest.raises(KubeAlreadyExists, match="leads to another location"):
        await (await made(backend)).adopt(volume(f"efs:{FS}::fsap-{2:017x}"))


def test_backend_owns_only_volumes_of_the_driver(backend: CsiBackend) -> None:
    others = Volume(name="a", csi=CsiSource(driver="ebs.csi.aws.com", handle="vol-1"))
    assert [backend.owns(one) for one in (volume("fs-1"), others, Volume(name="b"))] == [True, False, False]


@pytest.mark.parametrize("handle", ["", "vol-1", "s4files:fs-12345678::fsap-12345678"])
async def test_volume_with_an_invalid_handle_needs_manual_removal(backend: CsiBackend, handle: str) -> None:
    with pytest.raises(RemovalRefused, match="remove the volume manually") as caught:
        await backend.removal(volume(handle))
    assert caught.value.field == "spec.csi.volumeHandle"


async def test_created_access_point_is_deleted(world: CsiWorld, backend: CsiBackend) -> None:
    wanted = (await made(backend)).volume(0)
    removal = await backend.removal(wanted)
    assert removal.access_point
    assert removal.access_point.handle == parse_volume_handle(handle_of(wanted))
    assert removal.leaves_directory
    await backend.remove(removal, RemovalOrder(permitted))
    assert not world.api.points


async def test_access_point_is_deleted_although_another_volume_uses_its_directory() -> None:
    now = 0.0
    world = CsiWorld(removes_directories=(FileSystemKind.EFS,), clock=lambda: now)
    backend = CsiBackend(volumes=world.volumes, copies=world.copies, references=world.texts)
    wanted = (await made(backend)).volume(0)
    store = Store(Moments())
    store.on_change = world.index.put_volume
    leaving = replace(wanted, phase=VolumePhase.RELEASED, reclaim_policy=ReclaimPolicy.DELETE)
    store.write(await store.create(replace(leaving, finalizers=(FINALIZER,))))
    store.write(await store.create(replace(wanted, name="other", csi=CsiSource(handle=f"{FS}:/{NAME}"))))
    guards = Guards(index=world.index, store=store, roots=world.roots)
    engine = Engine(index=world.index, backends=[backend], store=store, guards=guards)
    now = 3600.0  # no call of an earlier process can still take effect

    done = await engine.reclaim(store.volumes[NAME])

    assert done is not None
    assert done.data is DataFate.SHARED
    assert (world.api.points, world.folders.removed, set(store.volumes)) == ({}, [], {"other"})


async def test_cross_account_role_is_read_for_creation_and_removal(
    world: CsiWorld, backend: CsiBackend
) -> None:
    plan = backend.plan(CLAIM, ABROAD)
    with pytest.raises(NotYet, match="team/role' does not exist"):
        await plan.make()
    world.texts.secrets["team/role"] = {"awsRoleArn": "hush"}
    with pytest.raises(InvalidArgument) as caught:
        await plan.make()
    assert "hush" not in str(caught.value)
    world.texts.secrets["team/role"] = {"awsRoleArn": ARN, "crossaccount": "true"}

    wanted = (await plan.make()).volume(0)
    await backend.remove(await backend.removal(wanted), RemovalOrder(permitted))

    assert {role.role_arn for role in world.accounts.roles if role} == {ARN}
    assert None not in world.accounts.roles


@pytest.mark.parametrize("attempts", [["Delete", "Retain"], ["Retain"]], ids=["both", "only with Retain"])
async def test_volume_whose_secret_is_gone_can_be_deleted_with_its_data_kept(attempts: list[str]) -> None:
    now = 0.0
    world, store = CsiWorld(clock=lambda: now), Store(Moments())
    world.texts.secrets["team/role"] = {"awsRoleArn": ARN}
    backend = CsiBackend(volumes=world.volumes, copies=world.copies, references=world.texts)
    wanted = (await backend.plan(CLAIM, ABROAD).make()).volume(0)
    guards = Guards(index=world.index, store=store, roots=world.roots)
    engine = Engine(index=world.index, backends=[backend], store=store, guards=guards)
    store.on_change = world.index.put_volume
    del world.texts.secrets["team/role"]
    created = await store.create(replace(wanted, phase=VolumePhase.RELEASED, finalizers=(FINALIZER,)))
    if "Delete" in attempts:
        deleted = replace(created, deleting=True, reclaim_policy=ReclaimPolicy.DELETE)
        store.write(deleted)
        with pytest.raises(
            NotYet, match=r"create it, with awsRoleArn, or set the reclaim policy .* to Retain"
        ):
            await engine.reclaim(deleted)
    retained = replace(created, deleting=True, reclaim_policy=ReclaimPolicy.RETAIN)
    store.write(retained)
    with pytest.raises(NotYet, match="may still be deleted by an earlier call to AWS"):
        await engine.reclaim(retained)
    now = 181.0
    done = await engine.reclaim(retained)
    assert done is not None
    assert done.data is DataFate.KEPT
    assert (len(world.api.points), store.volumes) == (1, {})


@pytest.mark.parametrize(
    ("then", "now", "problem"),
    [
        ({"awsRoleArn": ARN}, {}, "was created with a role, but its provisioner Secret has no awsRoleArn"),
        ({}, {"awsRoleArn": ARN}, "was created without the role that its provisioner Secret has now"),
    ],
    ids=["role removed", "role added"],
)
async def test_volume_stays_if_its_access_point_may_be_in_the_account_of_a_former_secret(
    world: CsiWorld, backend: CsiBackend, then: dict[str, str], now: dict[str, str], problem: str
) -> None:
    world.texts.secrets["team/role"] = then
    wanted = (await backend.plan(CLAIM, ABROAD).make()).volume(0)
    world.index.put_volume(wanted)
    points = dict(world.api.points)
    world.texts.secrets["team/role"] = now
    # The other account does not have it.
    world.api.points.clear()
    with pytest.raises(NotYet) as caught:
        await backend.removal(wanted)
    assert str(caught.value) == (
        f"volume: '{NAME}' {problem}, so its access point is not found; "
        "correct the Secret, or set the reclaim policy of the volume to Retain"
    )
    world.texts.secrets["team/role"] = then
    # People have deleted it.
    assert (await backend.removal(wanted)).access_point
    world.api.points.update(points)
    world.texts.secrets["team/role"] = now
    # The AWS account of the cluster and that of the role may be one.
    assert (await backend.removal(wanted)).access_point


class Deleted:
    """A volume of the class with the policy Retain, which somebody has deleted."""

    def __init__(self) -> None:
        self.now = 0.0
        self.world, self.store = CsiWorld(clock=lambda: self.now), Store(Moments())
        self.store.on_change = self.world.index.put_volume
        self.secret = self.world.texts.secrets.setdefault("team/role", {"awsRoleArn": ARN})
        self.backend = CsiBackend(
            volumes=self.world.volumes, copies=self.world.copies, references=self.world.texts
        )
        self.engine = Engine(
            index=self.world.index,
            backends=[self.backend],
            store=self.store,
            guards=Guards(index=self.world.index, store=self.store, roots=self.world.roots),
        )

    async def create(self, storage_class: StorageClass = ABROAD) -> Volume:
        wanted = (await self.backend.plan(CLAIM, storage_class).make()).volume(0)
        leaving = replace(wanted, phase=VolumePhase.RELEASED, finalizers=(FINALIZER,))
        deleted = replace(await self.store.create(leaving), deleting=True)
        # Its removal may have been ordered before its policy was changed.
        self.world.index.put_volume(replace(deleted, reclaim_policy=ReclaimPolicy.DELETE))
        self.store.write(replace(deleted, reclaim_policy=ReclaimPolicy.RETAIN))
        self.now = 3600.0  # no call of an earlier process can still take effect
        return self.store.volumes[NAME]

    async def pin(self) -> None:
        """Create another volume of its access point that is pinned to a mount target, as people do."""
        csi = CsiSource(handle=handle_of(self.store.volumes[NAME]), attributes={"mounttargetip": "10.0.0.1"})
        self.store.write(await self.store.create(Volume(name="a-pinned-one", csi=csi)))


async def test_volume_of_people_does_not_hold_one_whose_access_point_is_gone() -> None:
    deleted = Deleted()
    volume = await deleted.create(CLASS)
    await deleted.pin()
    deleted.world.api.points.clear()
    assert (await deleted.backend.removal(volume)).access_point
    done = await deleted.engine.reclaim(volume)
    assert done is not None
    assert (done.data, set(deleted.store.volumes)) == (DataFate.KEPT, {"a-pinned-one"})


@pytest.mark.parametrize("role", [{"awsRoleArn": ARN}, {}], ids=["role", "without a role"])
async def test_worker_on_another_directory_does_not_hold_a_volume_with_a_secret(role: dict[str, str]) -> None:
    deleted = Deleted()
    deleted.world.texts.secrets["team/role"] = role
    volume = await deleted.create()
    deleted.world.folders.busy = WorkerFailed("works on this directory", field="worker pod")
    with pytest.raises(WorkerFailed):
        await deleted.engine.reclaim(volume)
    deleted.world.folders.busy_at = Directory(("elsewhere",))
    assert await deleted.engine.reclaim(volume) is not None


async def lose_secret(deleted: Deleted) -> None:
    del deleted.world.texts.secrets["team/role"]


async def break_role(deleted: Deleted) -> None:
    deleted.secret["awsRoleArn"] = "no ARN"


async def lose_role(deleted: Deleted) -> None:
    deleted.secret.clear()
    deleted.world.api.points.clear()  # the account of the cluster does not have it
    await deleted.pin()


async def deny_secret(deleted: Deleted) -> None:
    async def denied(*_: str) -> None:
        raise KubeDenied("answered 403", field="Secret team/role")

    deleted.world.texts.secret = denied  # type: ignore[assignment, method-assign]


async def deny_role(deleted: Deleted) -> None:
    deleted.world.api.faults["get"] = AwsNotPermitted("denies the call", field="AssumeRole")


@pytest.mark.parametrize("lose", [lose_secret, break_role, lose_role, deny_secret, deny_role])
async def test_volume_whose_directory_is_unknown_waits_for_every_worker_on_its_file_system(
    lose: Callable[[Deleted], Awaitable[None]],
) -> None:
    deleted = Deleted()
    volume = await deleted.create()
    await lose(deleted)
    deleted.world.folders.busy = WorkerFailed("works on this directory", field="worker pod")
    deleted.world.folders.busy_at = Directory(("elsewhere",))
    with pytest.raises(WorkerFailed):
        await deleted.engine.reclaim(volume)
    deleted.world.folders.busy = None
    assert await deleted.engine.reclaim(volume) is not None
    assert NAME not in deleted.store.volumes


async def test_volume_waits_while_aws_does_not_answer() -> None:
    deleted = Deleted()
    volume = await deleted.create()
    deleted.world.api.faults["get"] = AwsUnavailable("was not answered", field="DescribeAccessPoints")
    with pytest.raises(AwsUnavailable):
        await deleted.engine.reclaim(volume)


def test_class_warning_is_logged_once(backend: CsiBackend) -> None:
    unknown = StorageClass(name="unknown", provisioner="x", parameters={**CLASS.parameters, "sizeLimit": "1"})
    with capture_logs() as logs:
        plans = [backend.plan(CLAIM, unknown) for _ in range(3)]
    assert [one["storage_class"] for one in logs if one["event"] == "storage-class-warning"] == ["unknown"]
    assert [len(plan.warnings) for plan in plans] == [1, 1, 1]


async def test_failed_plan_can_be_retried(world: CsiWorld, backend: CsiBackend) -> None:
    plan = backend.plan(CLAIM, CLASS)
    world.api.faults["create"] = AwsUnavailable("is away", field="create")
    with pytest.raises(AwsUnavailable):
        await plan.make()
    world.api.faults.clear()
    await plan.make()
    assert len(world.api.points) == 1
