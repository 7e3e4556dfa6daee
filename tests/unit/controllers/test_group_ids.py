"""Events for volumes that share their group ID with other data."""

import asyncio
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from kube_efs.controllers.group_ids import SharedGids
from kube_efs.kube.events import EventRecorder, EventType, Subject
from kube_efs.model.claims import StorageClass
from kube_efs.model.efs.directories import parse_directory
from kube_efs.model.efs.ids import ClaimUid, FileSystemId
from kube_efs.model.volumes import DRIVER, ClaimReference, CsiSource, Location, NfsSource, Volume
from kube_efs.provisioning.volume_index import VolumeIndex
from kube_efs.telemetry.metrics import ControllerMetrics

OURS = "example.com/aws-efs"
FS = FileSystemId("fs-0123456789abcdef0")
AP = "fsap-0123456789abcdef0"
BASE = Location(file_system_id=FS, directory=parse_directory("/pvs"))
CSI = {"provisioningMode": "efs-ap", "fileSystemId": FS, "directoryPerms": "700"}


class Events(EventRecorder):
    """Records the published events."""

    def __init__(self) -> None:
        self.published: list[tuple[str, str]] = []

    def publish(
        self, subject: Subject, kind: EventType, reason: str, message: str, *, ends: str = ""
    ) -> None:
        assert (kind, reason) == (EventType.WARNING, "GroupIdShared")
        self.published.append((f"{subject.kind} {subject.name}", message))


class Scene:
    """A controller of directory volumes and of volumes of the driver."""

    def __init__(self) -> None:
        self.index, self.events, self.registry = (
            VolumeIndex({"efs.example.com": FS}),
            Events(),
            CollectorRegistry(),
        )
        self.index.gid_ledger.add_base(BASE)
        self.index.classes = {
            "ours": StorageClass(name="ours", provisioner=OURS, parameters={}),
            "csi": StorageClass(name="csi", provisioner=DRIVER, parameters=CSI),
            "fixed": StorageClass(
                name="fixed", provisioner=DRIVER, parameters={**CSI, "uid": "7", "gid": "60000"}
            ),
        }
        SharedGids(
            self.index,
            self.events,
            ControllerMetrics(self.registry),
            {OURS, DRIVER},
            gathering_seconds=0,
        )

    async def events_about(self) -> list[str]:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return [subject for subject, _ in self.events.published]

    @property
    def shared(self) -> float | None:
        return self.registry.get_sample_value("kube_efs_gids_shared")

    def look(self, **found: int) -> None:
        """Report the directories of the base, by volume name."""
        directories = {
            name: (Location(file_system_id=FS, directory=parse_directory(f"/pvs/{name}")), gid)
            for name, gid in found.items()
        }
        self.index.found_directories(self.index.gid_ledger.begin_scan(), BASE, directories)


def volume(name: str, gid: int | None = 2000, **changes: object) -> Volume:
    made = Volume(
        name=name,
        uid=f"uid-of-{name}",
        storage_class="ours",
        provisioned_by=OURS,
        nfs=NfsSource(server="efs.example.com", path=f"/pvs/{name}"),
        gid=gid,
        claim=ClaimReference(namespace="team", name=f"claim-of-{name}", uid=ClaimUid(f"claim-uid-{name}")),
    )
    return replace(made, **changes)  # type: ignore[arg-type]  # by name


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_two_volumes_with_one_id_get_one_event_each(scene: Scene) -> None:
    for _ in range(2):
        scene.index.replace_volumes([volume("a"), volume("b")])
    assert await scene.events_about() == [
        "PersistentVolume a",
        "PersistentVolumeClaim claim-of-a",
        "PersistentVolume b",
        "PersistentVolumeClaim claim-of-b",
    ]
    assert scene.events.published[0][1].startswith(f"Group ID 2000 is also used by {FS}:/pvs/b: ")
    assert scene.shared == 1
    scene.index.put_volume(volume("c"))
    assert (await scene.events_about())[4:] == [
        f"{kind}{name}" for name in "abc" for kind in ("PersistentVolume ", "PersistentVolumeClaim claim-of-")
    ]


async def test_directory_with_a_manually_changed_group_is_found(scene: Scene) -> None:
    scene.index.replace_volumes([volume("a", 2000), volume("b", 2001)])
    scene.look(a=2000, b=2001)
    assert await scene.events_about() == []
    scene.look(a=2001, b=2001)
    assert await scene.events_about() == [
        "PersistentVolume a",
        "PersistentVolumeClaim claim-of-a",
        "PersistentVolume b",
        "PersistentVolumeClaim claim-of-b",
    ]
    scene.look(a=2000, b=2001)
    assert scene.shared == 0


async def test_directory_without_a_volume_is_reported_on_the_volume_with_its_id(scene: Scene) -> None:
    scene.index.put_volume(volume("a"))
    scene.look(a=2000, other=2000)
    assert await scene.events_about() == ["PersistentVolume a", "PersistentVolumeClaim claim-of-a"]


async def test_volumes_of_one_directory_can_share_its_id(scene: Scene) -> None:
    both = NfsSource(server="efs.example.com", path="/pvs/a")
    scene.index.replace_volumes([volume("a"), volume("b", nfs=both)])
    assert (await scene.events_about(), scene.shared) == ([], 0)


async def test_foreign_volumes_are_not_reported(scene: Scene) -> None:
    foreign = volume("b", provisioned_by="example.com/other")
    scene.index.replace_volumes([volume("a"), foreign])
    assert await scene.events_about() == ["PersistentVolume a", "PersistentVolumeClaim claim-of-a"]


@pytest.mark.parametrize(
    ("storage_class", "told"),
    [("csi", ["PersistentVolume a"]), ("fixed", [])],
    ids=["allocated", "fixed in the class"],
)
async def test_access_point_of_another_cluster_with_the_same_id_is_found(
    scene: Scene, storage_class: str, told: list[str]
) -> None:
    through = volume(
        "a", None, nfs=None, csi=CsiSource(handle=f"{FS}::{AP}"), storage_class=storage_class,
        provisioned_by=DRIVER, claim=None,
    )  # fmt: skip
    scene.index.put_volume(through)
    scene.index.gids.hold(60000, AP)
    scene.index.gids.hold(60000, "fsap-0123456789abcdef1")
    assert await scene.events_about() == told
    assert scene.shared == len(told)


@pytest.mark.parametrize(("directory", "is_shared"), [("root", False), ("other", True)])
async def test_root_directory_of_an_access_point_has_its_id(
    scene: Scene, directory: str, is_shared: bool
) -> None:
    through = volume(
        "a", None, nfs=None, csi=CsiSource(handle=f"{FS}::{AP}"), storage_class="csi",
        provisioned_by=DRIVER, claim=None,
    )  # fmt: skip
    scene.index.put_volume(through)
    root = Location(file_system_id=FS, directory=parse_directory("/pvs/root"))
    scene.index.gids.hold(60000, AP, at=root)
    scene.look(**{directory: 60000})
    assert await scene.events_about() == ["PersistentVolume a"] * is_shared
    scene.index.gids.release(AP)
    scene.index.gids.hold(60000, AP, at=root)
    assert scene.shared == is_shared
