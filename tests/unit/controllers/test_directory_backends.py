"""How directory volumes are created: through a mount of this pod, or by worker pods."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs
from tests.serving import answering, serving
from tests.unit.provisioning.copying import given_copies
from tests.unit.provisioning.world import Folders, Moments
from tests.unmounting import unmount

from kube_efs.aws.connection import AwsCredentials, AwsOptions
from kube_efs.aws.gateway import AwsGateway
from kube_efs.controllers.directory_backends import (
    DirectoryService,
    check_file_system,
    directory_backend,
    directory_services,
)
from kube_efs.model.directory_volumes import DirectoryProvisioner
from kube_efs.model.efs.directories import Directory, Permissions, parse_directory
from kube_efs.model.efs.ids import FileSystemId, Region
from kube_efs.model.errors import PlatformError
from kube_efs.model.volumes import Location, NfsSource, Volume
from kube_efs.provisioning.guards import Permit, RemovalOrder
from kube_efs.provisioning.volume_index import VolumeIndex
from kube_efs.settings.controller import ControllerSettings
from kube_efs.settings.directories import BackendName, DirectoryProvisionerSettings
from kube_efs.telemetry.metrics import ControllerMetrics

NAME = "example.com/aws-efs"
FS1, FS2 = FileSystemId("fs-1"), FileSystemId("fs-2")
# All processes share the mounts, also another run of these tests.
REGION = Region(f"test-{os.getpid()}")
SERVER = f"fs-1.efs.{REGION}.amazonaws.com"

Mount = Callable[[str], Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Mounts a file system with that source, until the test ends."""
    points: list[Path] = []

    def mount(source: str) -> Path:
        point = tmp_path / f"mount{len(points)}"
        point.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", source, str(point)], check=True, capture_output=True)
        points.append(point)
        return point

    yield mount
    for point in reversed(points):
        unmount(point)


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")


def configured(
    *more: DirectoryProvisionerSettings,
    backends: tuple[BackendName, ...] = tuple(BackendName),
    dns_name: str | None = None,
    path: str | None = None,
    mount: Path | None = None,
) -> ControllerSettings:
    return ControllerSettings(
        backends=backends,
        directory_provisioner_name=NAME,
        directory_file_system_id=FS1,
        directory_dns_name=dns_name,
        directory_path=path,
        directory_mount=mount,
        more_directory_provisioners=more,
    )


ONLY_DIRECTORIES = (BackendName.DIRECTORY,)


@as_root
async def test_mounted_file_system_is_found_by_its_server_and_used(mount: Mount) -> None:
    point = mount(f"{SERVER}:/x")
    async with directory_services(configured(backends=ONLY_DIRECTORIES), REGION) as (one,):
        assert one.provisioner == DirectoryProvisioner(
            name=NAME, file_system_id=FS1, server=SERVER, base=parse_directory("/x")
        )
        assert one.mounted is not None
        made = Location(file_system_id=FS1, directory=parse_directory("/x/data"))
        await one.mounted.make(made, Permissions())
        assert (point / "data").is_dir()


@as_root
async def test_directories_can_be_created_below_the_mount(mount: Mount) -> None:
    point = mount(f"{SERVER}:/x")
    async with directory_services(configured(path="/x/pvs"), REGION) as (one,):
        assert str(one.provisioner.base) == "/x/pvs"
        assert one.mounted is not None
        made = Location(file_system_id=FS1, directory=parse_directory("/x/pvs/data"))
        await one.mounted.make(made, Permissions())
        assert (point / "pvs/data").is_dir()


@as_root
async def test_each_provisioner_has_its_own_mount(mount: Mount) -> None:
    mount(f"{SERVER}:/x")
    point = mount("efs.example.com:/y")
    other = DirectoryProvisionerSettings(
        name="example.com/other", file_system_id=FS2, dns_name="efs.example.com"
    )
    async with directory_services(configured(other), REGION) as (one, two):
        assert (one.provisioner.name, two.provisioner.name) == (NAME, "example.com/other")
        assert (two.provisioner.server, str(two.provisioner.base)) == ("efs.example.com", "/y")
        assert one.mounted is not None
        assert two.mounted is not None
        made = Location(file_system_id=FS2, directory=parse_directory("/y/data"))
        await two.mounted.make(made, Permissions())
        assert (point / "data").is_dir()


@as_root
async def test_configured_mount_point_and_path_are_used(mount: Mount) -> None:
    point = mount("127.0.0.1:/")
    settings = configured(mount=point, path="/exported", backends=ONLY_DIRECTORIES)
    async with directory_services(settings, REGION) as (one,):
        assert (str(one.provisioner.base), one.provisioner.server) == ("/exported", SERVER)
        assert one.mounted is not None


@pytest.mark.parametrize(("path", "base"), [(None, "/"), ("/pvs", "/pvs")])
async def test_worker_pods_are_used_without_a_mount(path: str | None, base: str) -> None:
    with capture_logs() as logs:
        async with directory_services(configured(path=path), REGION) as (one,):
            assert (str(one.provisioner.base), one.mounted) == (base, None)
    why, *rest = logs
    assert (why["event"], why["provisioner"]) == ("worker-pods-make-directories", NAME)
    assert why["reason"].startswith(f"server: {SERVER!r} is not mounted")
    assert rest == [
        {
            "event": "directory-provisioner",
            "log_level": "info",
            "provisioner": NAME,
            "file_system": FS1,
            "base": base,
            "mounted_at": None,
        }
    ]


async def test_start_fails_without_a_mount_and_worker_pods() -> None:
    with pytest.raises(PlatformError) as caught:
        async with directory_services(configured(backends=ONLY_DIRECTORIES), REGION):
            pass
    assert (caught.value.field, caught.value.value) == ("server", SERVER)
    assert caught.value.problem.startswith("is not mounted in this pod")


async def test_configured_mount_point_must_be_a_mount(tmp_path: Path) -> None:
    with pytest.raises(PlatformError) as caught:
        async with directory_services(configured(mount=tmp_path), REGION):
            pass
    assert (caught.value.field, caught.value.value) == ("mount path", str(tmp_path))


async def test_server_has_the_dns_suffix_of_the_partition() -> None:
    async with directory_services(configured(), Region("cn-north-1")) as (one,):
        assert one.provisioner.server == "fs-1.efs.cn-north-1.amazonaws.com.cn"


async def test_settings_without_provisioners_are_valid() -> None:
    settings = ControllerSettings(backends=(BackendName.TUNNEL,))
    async with directory_services(settings, REGION) as services:
        assert services == ()


PROVISIONER = DirectoryProvisioner(name=NAME, file_system_id=FS1, server=SERVER, base=Directory())


async def permitted() -> Permit:
    return Permit()


@pytest.mark.parametrize("is_mounted", [True, False], ids=["mounted", "worker pods"])
async def test_backend_uses_the_mount_or_the_worker_pods(is_mounted: bool) -> None:
    here, workers = Folders(Moments()), Folders(Moments())
    backend = directory_backend(
        DirectoryService(provisioner=PROVISIONER, mounted=here if is_mounted else None),
        index=VolumeIndex(),
        workers=workers,
        copies=given_copies()[0],
        metrics=ControllerMetrics(CollectorRegistry()),
    )
    data = Location(file_system_id=FS1, directory=parse_directory("/data"))
    here.there.add(data)
    workers.there.add(data)
    source = NfsSource(server=PROVISIONER.server, path="/data")
    removal = await backend.removal(Volume(name="v", provisioned_by=PROVISIONER.name, nfs=source))
    await backend.remove(removal, RemovalOrder(permitted))
    assert (here.removed, workers.removed) == (([data], []) if is_mounted else ([], [data]))


async def test_backend_without_mount_and_workers_is_an_error() -> None:
    with pytest.raises(PlatformError) as caught:
        directory_backend(
            DirectoryService(provisioner=PROVISIONER, mounted=None),
            index=VolumeIndex(),
            workers=None,
            copies=given_copies()[0],
            metrics=ControllerMetrics(CollectorRegistry()),
        )
    assert str(caught.value) == (
        f"server: {SERVER!r} is not mounted in this pod; "
        "mount it as an NFS volume of the pod, or put tunnel into KUBE_EFS_BACKENDS"
    )


# --- the check of the file system in AWS

Answer = Callable[[web.Request], Awaitable[web.Response]]


@asynccontextmanager
async def gateway(answer: Answer) -> AsyncIterator[AwsGateway]:
    """A gateway to an AWS endpoint that always gives this answer."""
    async with serving(answering(answer)) as url:
        options = AwsOptions(
            region=Region("us-east-1"),
            endpoint_url=url,
            credentials=AwsCredentials(access_key_id="id", secret_access_key="key"),
            max_attempts=1,
        )
        async with AwsGateway(options) as made:
            yield made


def error(status: int, code: str) -> web.Response:
    body = {"ErrorCode": code, "message": f"{code} it is"}
    return web.json_response(body, status=status, headers={"x-amzn-ErrorType": code})


FILE_SYSTEM = {
    "FileSystemId": "fs-1",
    "OwnerId": "111122223333",
    "CreationToken": "t",
    "CreationTime": 0,
    "LifeCycleState": "available",
    "NumberOfMountTargets": 1,
    "SizeInBytes": {"Value": 0},
    "PerformanceMode": "generalPurpose",
    "Tags": [],
}


@pytest.mark.parametrize(
    ("response", "event", "told"),
    [
        pytest.param(
            lambda: web.json_response({"FileSystems": [FILE_SYSTEM]}),
            "file-system-checked",
            "available",
            id="found",
        ),
        pytest.param(
            lambda: error(404, "FileSystemNotFound"),
            "file-system-not-checked",
            "was answered with FileSystemNotFound (status 404)",
            id="not found",
        ),
        pytest.param(
            lambda: error(403, "AccessDeniedException"),
            "file-system-not-checked",
            "was answered with AccessDeniedException (status 403)",
            id="denied",
        ),
        pytest.param(
            lambda: web.json_response({"FileSystems": []}),
            "file-system-not-checked",
            "gave an invalid answer (it is empty)",
            id="empty list",
        ),
        pytest.param(
            lambda: web.json_response({"FileSystems": [{"FileSystemId": "fs-1", "LifeCycleState": "x y"}]}),
            "file-system-not-checked",
            "gave an invalid answer (LifeCycleState is not valid)",
            id="malformed answer",
        ),
        pytest.param(
            lambda: web.Response(text="<html>", status=502),
            "file-system-not-checked",
            "502",
            id="error of a proxy",
        ),
    ],
)
async def test_file_system_check_reports_the_aws_error_and_is_never_fatal(
    response: Callable[[], web.Response], event: str, told: str
) -> None:
    async def answer(request: web.Request) -> web.Response:
        assert request.query["FileSystemId"] == "fs-1"
        return response()

    with capture_logs() as logs:
        async with gateway(answer) as aws:
            await check_file_system(aws, PROVISIONER)
    (line,) = [line for line in logs if line["event"].startswith("file-system-")]
    assert (line["event"], line["provisioner"], line["file_system"]) == (event, NAME, FS1)
    assert told in str(line.get("state", line.get("reason")))


async def test_file_system_check_does_not_wait_for_a_hanging_aws_call() -> None:
    is_over = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        await is_over.wait()
        return web.Response()

    with capture_logs() as logs:
        async with gateway(answer) as aws, asyncio.timeout(10):
            await check_file_system(aws, PROVISIONER, timeout_seconds=0.1)
            is_over.set()
    assert [(line["event"], line["reason"]) for line in logs] == [
        ("file-system-not-checked", "AWS did not answer in 0.1 s")
    ]
