"""The discovery of the mount targets of S3 Files."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import pytest

from kube_efs.aws.gateway import AwsGateway
from kube_efs.aws.network import AwsNetwork
from kube_efs.aws.s3_files import AwsS3Files
from kube_efs.controllers.s3_files import S3FilesDiscovery
from kube_efs.model.claims import StorageClass
from kube_efs.model.efs.ids import FileSystemId, ZoneName
from kube_efs.model.efs.targets import S3FilesTargets
from kube_efs.model.errors import (
    AwsDenied,
    AwsNoCredentialsYet,
    AwsNotFound,
    AwsNotPermitted,
    AwsUnavailable,
    KubeEfsError,
)
from kube_efs.model.volumes import DRIVER, CsiSource, Volume
from kube_efs.provisioning.volume_index import VolumeIndex

Eventually = Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]
FS, OTHER = FileSystemId("fs-0123456789abcdef0"), FileSystemId("fs-0123456789abcdef1")
ZONE = ZoneName("use1-az1")
ZONE_IDS = {ZoneName("us-east-1a"): ZONE}


class S3Files(AwsS3Files):
    """Addresses of mount targets, or the error of the call; first those in ``next``."""

    def __init__(self) -> None:
        self.next: dict[FileSystemId, list[Mapping[ZoneName, str] | KubeEfsError]] = {}
        self.known: dict[FileSystemId, Mapping[ZoneName, str] | KubeEfsError] = {}
        self.calls: Counter[FileSystemId] = Counter()

    async def addresses(self, file_system_id: FileSystemId) -> Mapping[ZoneName, str]:
        self.calls[file_system_id] += 1
        found = self.known.get(file_system_id, AwsNotFound("is not there", field="ListMountTargets"))
        if self.next.get(file_system_id):
            found = self.next[file_system_id].pop(0)
        if isinstance(found, KubeEfsError):
            raise found
        return found


class Network(AwsNetwork):
    def __init__(self) -> None:
        self.error: KubeEfsError | None = None

    async def zone_ids(self) -> Mapping[ZoneName, ZoneName]:
        if self.error:
            raise self.error
        return ZONE_IDS


class Gateway(AwsGateway):
    def __init__(self) -> None:
        self.s3_files = self.calls = S3Files()
        self.network = self.zones = Network()


class Scene:
    """A discovery that runs while the context is open."""

    def __init__(self, eventually: Eventually, *, interval_seconds: float = 0.001) -> None:
        self._eventually = eventually
        self.gateway, self.index = Gateway(), VolumeIndex()
        self.aws, self.network = self.gateway.calls, self.gateway.zones
        self.found: list[S3FilesTargets] = []
        self._discovery = S3FilesDiscovery(
            self.gateway, self.index, self._note, interval_seconds=interval_seconds
        )

    def _note(self, found: S3FilesTargets) -> None:
        self.found.append(found)
        targets = self.index.targets
        self.index.targets = type(targets)(s3_files=found)

    async def __aenter__(self) -> "Scene":
        self._task = asyncio.create_task(self._discovery.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    def add(self, name: str, handle: str) -> None:
        self.index.put_volume(Volume(name=name, uid=name, csi=CsiSource(handle=handle)))

    async def until(self, what: Callable[[], bool]) -> None:
        async def look() -> bool:
            return what()

        await self._eventually(look)

    async def rounds(self, file_system_id: FileSystemId, count: int = 2) -> None:
        """Wait until so many more calls about the file system have begun."""
        last = self.aws.calls[file_system_id] + count
        await self.until(lambda: self.aws.calls[file_system_id] >= last)

    @property
    def addresses(self) -> Mapping[FileSystemId, Mapping[ZoneName, str]]:
        return self.index.targets.s3_files.addresses


async def test_without_volumes_of_s3_files_there_are_no_calls(eventually: Eventually) -> None:
    async with Scene(eventually, interval_seconds=3600) as here:
        here.aws.known[FS] = {ZONE: "10.0.0.1"}
        here.add("efs", f"efs:{OTHER}")
        # A volume ends the long pause, so the round before it has ended, too.
        here.add("s3", f"s3files:{FS}")
        await here.until(lambda: bool(here.found))
        assert set(here.aws.calls) == {FS}
        assert here.found == [S3FilesTargets(addresses={FS: {ZONE: "10.0.0.1"}}, zone_ids=ZONE_IDS)]


async def test_file_systems_of_classes_are_found_before_their_first_volume(eventually: Eventually) -> None:
    here = Scene(eventually)
    here.aws.known[FS] = {ZONE: "10.0.0.1"}
    parameters = {"provisioningMode": "s3files-ap", "fileSystemId": FS, "directoryPerms": "700"}
    here.index.classes["s3"] = StorageClass(name="s3", provisioner=DRIVER, parameters=parameters)
    efs = {**parameters, "provisioningMode": "efs-ap", "fileSystemId": OTHER}
    here.index.classes["efs"] = StorageClass(name="efs", provisioner=DRIVER, parameters=efs)
    async with here:
        await here.until(lambda: FS in here.addresses)
        assert OTHER not in here.aws.calls


@pytest.mark.parametrize(
    "error",
    [
        AwsUnavailable("was not answered", field="ListMountTargets"),
        AwsDenied("was answered with ExpiredToken", field="ListMountTargets"),
        AwsNoCredentialsYet("could not be signed", field="ListMountTargets"),
    ],
)
async def test_mount_targets_are_kept_while_aws_does_not_answer_or_accept_the_credentials(
    eventually: Eventually, error: KubeEfsError
) -> None:
    async with Scene(eventually) as here:
        here.aws.known[FS] = {ZONE: "10.0.0.1"}
        here.add("s3", f"s3files:{FS}")
        await here.until(lambda: FS in here.addresses)
        here.aws.known[FS] = error
        await here.rounds(FS)
        assert here.addresses == {FS: {ZONE: "10.0.0.1"}}
        here.aws.known[FS] = {ZONE: "10.0.0.2"}
        await here.until(lambda: here.addresses == {FS: {ZONE: "10.0.0.2"}})
        del here.aws.known[FS]
        await here.until(lambda: here.addresses == {})


async def test_mount_targets_are_kept_until_a_second_answer_confirms_their_loss(
    eventually: Eventually,
) -> None:
    async with Scene(eventually) as here:
        here.aws.known[FS] = {ZONE: "10.0.0.1"}
        here.add("s3", f"s3files:{FS}")
        await here.until(lambda: FS in here.addresses)
        lost = AwsUnavailable("was not answered", field="ListMountTargets")
        here.aws.next[FS] = [{}, {ZONE: "10.0.0.1"}, {}, lost, {}]
        await here.until(lambda: not here.aws.next[FS])
        await here.rounds(FS)
        assert len(here.found) == 1
        here.aws.known[FS] = {}
        await here.until(lambda: here.addresses == {})
        here.aws.known[FS] = {ZONE: "10.0.0.2"}
        await here.until(lambda: here.addresses == {FS: {ZONE: "10.0.0.2"}})


async def test_denied_calls_leave_the_mount_targets_to_dns(eventually: Eventually) -> None:
    async with Scene(eventually) as here:
        here.aws.known[FS] = AwsNotPermitted("was answered with AccessDenied", field="ListMountTargets")
        here.network.error = AwsNotPermitted("was answered with AccessDenied", field="DescribeZones")
        here.add("s3", f"s3files:{FS}")
        await here.rounds(FS)
        assert here.found == []
