"""Events and annotations on the embedded API server."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from lightkube import AsyncClient
from lightkube.models.core_v1 import (
    PersistentVolumeClaimSpec,
    VolumeResourceRequirements,
)
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.resources.core_v1 import Event, PersistentVolumeClaim

from kube_efs.controllers.events import ProvisioningEvents
from kube_efs.kube import events as recording
from kube_efs.kube.claims import ClaimStore
from kube_efs.kube.events import EventRecorder
from kube_efs.kube.reading import read_claim
from kube_efs.model.claims import Claim
from kube_efs.model.efs.directories import parse_directory
from kube_efs.model.efs.ids import ClaimUid, FileSystemId
from kube_efs.model.errors import KubeInvalid, KubeUnavailable, RemovalRefused
from kube_efs.model.volumes import Location, NfsSource, Volume
from kube_efs.provisioning.engine import DataFate, Made, Reclaimed

Eventually = Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]

LOCATION = Location(file_system_id=FileSystemId("fs-1"), directory=parse_directory("/team/example"))
VOLUME = Volume(name="pv", uid="pv-uid")


@pytest.fixture
async def claim(kube: AsyncClient) -> Claim:
    created = await kube.create(
        PersistentVolumeClaim(
            metadata=ObjectMeta(name="data", namespace="default", annotations={"owner": "somebody"}),
            spec=PersistentVolumeClaimSpec(
                accessModes=["ReadWriteMany"],
                storageClassName="efs",
                resources=VolumeResourceRequirements(requests={"storage": "1Gi"}),
                selector=LabelSelector(matchLabels={"volume_name": "example"}),
            ),
        )
    )
    return read_claim(created.to_dict())


@pytest.fixture
async def told(kube: AsyncClient) -> AsyncIterator[ProvisioningEvents]:
    async with EventRecorder(kube, component="kube-efs-controller") as recorder:
        yield ProvisioningEvents(ClaimStore(kube), recorder)


async def annotations(kube: AsyncClient) -> dict[str, str]:
    found = await kube.get(PersistentVolumeClaim, "data", namespace="default")
    assert found.metadata
    return dict(found.metadata.annotations or {})


async def events(kube: AsyncClient) -> list[dict[str, Any]]:
    return [event.to_dict() async for event in kube.list(Event, namespace="default")]


async def test_refusal_gives_an_event_and_the_annotations_of_the_contract(
    kube: AsyncClient, told: ProvisioningEvents, claim: Claim, eventually: Eventually
) -> None:
    await told.refused(claim, "because", marked=True)
    assert await annotations(kube) == {
        "owner": "somebody",
        "efs-stunnel.gnuthought.com/rejected": "true",
        "efs-stunnel.gnuthought.com/reject-reason": "because",
    }
    await eventually(lambda: events(kube))
    (event,) = await events(kube)
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "ProvisioningFailed", "because")
    assert event["involvedObject"]["uid"] == claim.uid


async def test_withdrawn_refusal_leaves_no_annotation(
    kube: AsyncClient, told: ProvisioningEvents, claim: Claim
) -> None:
    await told.refused(claim, "because", marked=True)
    await told.accepted(claim)
    assert await annotations(kube) == {"owner": "somebody"}


async def test_new_claim_of_the_same_name_is_not_annotated(
    kube: AsyncClient, told: ProvisioningEvents, claim: Claim
) -> None:
    with pytest.raises(KubeInvalid):
        await told.refused(replace(claim, uid=ClaimUid("of-a-former-one")), "because", marked=True)
    assert await annotations(kube) == {"owner": "somebody"}


async def test_refusal_without_annotation_is_only_an_event(
    kube: AsyncClient, told: ProvisioningEvents, claim: Claim
) -> None:
    await told.refused(claim, "because", marked=False)
    async with told._recorder:
        pass
    assert [event["message"] for event in await events(kube)] == ["because"]
    assert await annotations(kube) == {"owner": "somebody"}


async def test_deleted_claim_is_not_an_error(
    kube: AsyncClient, told: ProvisioningEvents, claim: Claim
) -> None:
    await told.refused(replace(claim, name="gone"), "because", marked=True)
    await told.accepted(replace(claim, name="gone"))


class _Plan:
    """The parts of a plan that events contain."""

    def __init__(
        self, claim: Claim, warnings: Sequence[str] = ("parameters.sizeLimit: has no effect",)
    ) -> None:
        self.claim = claim
        self.place = str(LOCATION)
        self.warnings = tuple(warnings)

    async def locations(self) -> tuple[Location, ...]:
        return (LOCATION,)

    def place_of(self, volume: Volume) -> str:
        return self.place

    async def prepare(self) -> None:
        raise NotImplementedError

    async def make(self) -> Made:
        raise NotImplementedError


async def test_burst_of_claims_with_volumes_has_one_event_each(
    kube: AsyncClient, told: ProvisioningEvents, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "_FLUSH_SECONDS", 60)
    for number in range(60):
        told.provisioning(_Plan(replace(claim, uid=ClaimUid(str(number))), warnings=()))
    for number in range(60):
        told.provisioned(_Plan(replace(claim, uid=ClaimUid(str(number))), warnings=()), VOLUME)
    async with told._recorder:
        pass
    reasons = Counter(event["reason"] for event in await events(kube))
    assert reasons["ProvisioningSucceeded"] == 60
    assert reasons["Provisioning"] == 0


async def test_every_event_has_its_message(kube: AsyncClient, told: ProvisioningEvents, claim: Claim) -> None:
    plan = _Plan(claim)
    told.provisioning(plan)
    told.failed(claim, KubeUnavailable("is down", field="pod"), retry_seconds=60)
    told.provisioned(plan, VOLUME)
    told.reclaimed(Reclaimed(volume=VOLUME, location=LOCATION, data=DataFate.SHARED, reason="a uses it too"))
    told.reclaimed(Reclaimed(volume=VOLUME, location=LOCATION, data=DataFate.REMOVED))
    told.reclaimed(Reclaimed(volume=VOLUME, location=LOCATION, data=DataFate.REMOVED, above=("backup",)))
    at_port = replace(VOLUME, nfs=NfsSource(server="::1", path="/"), mount_options=("port=20497",))
    told.port_unknown(at_port)
    told.port_unknown(replace(at_port, file_system_id="fs-2"))
    told.not_reclaimed(VOLUME, RemovalRefused("is the trash directory", field="directory", value="/x"))
    async with told._recorder:
        pass
    assert {
        (event["involvedObject"]["kind"], event["type"], event["reason"], event["message"])
        for event in await events(kube)
    } == {
        (
            "PersistentVolumeClaim",
            "Normal",
            "Provisioning",
            "Creating fs-1:/team/example for claim default/data",
        ),
        ("PersistentVolumeClaim", "Warning", "ParameterIgnored", "parameters.sizeLimit: has no effect"),
        ("PersistentVolumeClaim", "Warning", "ProvisioningFailed", "pod: is down"),
        (
            "PersistentVolumeClaim",
            "Normal",
            "ProvisioningSucceeded",
            "Volume pv is ready at fs-1:/team/example",
        ),
        (
            "PersistentVolume",
            "Normal",
            "DirectoryRemoved",
            "Removed fs-1:/team/example, which is inside the directory of volume backup",
        ),
        ("PersistentVolume", "Normal", "DirectoryKept", "Kept the data of volume pv: a uses it too"),
        (
            "PersistentVolume",
            "Warning",
            "UnknownFileSystem",
            (
                "No file system is known for port 20497 of this volume, so the port is not assigned again "
                "and "
                "the volume cannot be mounted; annotate it with "
                "efs-stunnel.gnuthought.com/file-system-id=<id of its file system>"
            ),
        ),
        (
            "PersistentVolume",
            "Warning",
            "OtherFileSystem",
            (
                "Port 20497 of this volume belongs to another file system than fs-2, which the annotation "
                "efs-stunnel.gnuthought.com/file-system-id names, so pods see the data of the other one; "
                "create the volume again with the port of fs-2"
            ),
        ),
        ("PersistentVolume", "Warning", "VolumeFailedDelete", "directory: '/x' is the trash directory"),
    }
