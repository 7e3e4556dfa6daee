import asyncio
import ctypes
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import grpc.aio
import pytest
from structlog.testing import capture_logs
from tests.unit.csi.served import Connect

from kube_efs.csi.protocol import registration_pb2 as protocol
from kube_efs.csi.protocol.registration_pb2_grpc import RegistrationStub
from kube_efs.csi.registration import (
    RegistrationService,
    keep_registering,
    registration_endpoint,
    registration_service,
)
from kube_efs.csi.server import serving, show_again
from kube_efs.telemetry.health import Health

SOCKET = Path("/var/lib/kubelet/plugins/efs.csi.aws.com/csi.sock")
FAILED = protocol.RegistrationStatus(plugin_registered=False, error="connection refused")
DONE = protocol.RegistrationStatus(plugin_registered=True)
NAME = "efs.csi.aws.com-reg.sock"
_CREATED, _REMOVED = 0x100, 0x200  # sys/inotify.h


class Watcher:
    """What the kubelet sees in a directory."""

    def __init__(self, folder: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert libc.inotify_add_watch(self.descriptor, os.fsencode(folder), _CREATED | _REMOVED) >= 0

    def seen(self) -> list[int]:
        """The new events of the socket; the kubelet ignores names that begin with a dot."""
        try:
            text = os.read(self.descriptor, 65536)
        except BlockingIOError:
            return []
        found = []
        while text:
            _, mask, _, size = struct.unpack_from("iIII", text)
            if text[16 : 16 + size].rstrip(b"\0") == NAME.encode():
                found.append(mask)
            text = text[16 + size :]
        return found


def names_in(folder: Path) -> list[str]:
    return [one.name for one in folder.iterdir()]


@pytest.fixture
def watcher(tmp_path: Path) -> Iterator[Watcher]:
    watcher = Watcher(tmp_path)
    yield watcher
    os.close(watcher.descriptor)


def test_socket_has_the_name_of_node_driver_registrar() -> None:
    endpoint = registration_endpoint(Path("/var/lib/kubelet/plugins_registry"))
    assert endpoint.path == Path("/var/lib/kubelet/plugins_registry/efs.csi.aws.com-reg.sock")


async def test_kubelet_gets_name_and_socket_of_the_driver(connect: Connect) -> None:
    async with connect(registration_service(RegistrationService(SOCKET))) as channel:
        info = await RegistrationStub(channel).GetInfo(protocol.InfoRequest())

    assert info == protocol.PluginInfo(
        type="CSIPlugin", name="efs.csi.aws.com", endpoint=str(SOCKET), supported_versions=["1.0.0"]
    )


async def test_outcome_of_the_registration_is_logged_and_determines_the_health(connect: Connect) -> None:
    registration = RegistrationService(SOCKET)
    states = [registration.health()]

    async with connect(registration_service(registration)) as channel:
        notify = RegistrationStub(channel).NotifyRegistrationStatus
        with capture_logs() as logs:
            await notify(protocol.RegistrationStatus(plugin_registered=False, error="no such node"))
            states.append(registration.health())
            assert not registration.registered.is_set()
            await notify(protocol.RegistrationStatus(plugin_registered=True))
            states.append(registration.health())
            assert registration.registered.is_set()

    assert states == [
        Health.failing("the kubelet has not registered the driver yet"),
        Health.failing("the kubelet could not register the driver: no such node"),
        Health(),
    ]
    told = [(line["log_level"], line["event"], line.get("reason")) for line in logs if "driver" in line]
    assert told == [("error", "driver-not-registered", "no such node"), ("info", "driver-registered", None)]


@pytest.mark.virtual_time
async def test_kubelet_sees_a_new_socket_until_it_has_registered_the_driver(
    tmp_path: Path, watcher: Watcher
) -> None:
    registration = RegistrationService(SOCKET)
    os.mknod(registration_endpoint(tmp_path).path, 0o140600)
    task = asyncio.create_task(keep_registering(registration, tmp_path))

    async def shown_after(seconds: int) -> list[int]:
        """In which of so many seconds the kubelet sees a new socket."""
        found = []
        for second in range(seconds):
            await asyncio.sleep(1)
            if events := watcher.seen():
                assert events == [_REMOVED, _CREATED]
                found.append(second)
        return found

    await asyncio.sleep(0.5)
    assert watcher.seen() == [_CREATED]
    assert await shown_after(100) == []
    for _ in range(2):
        await registration.NotifyRegistrationStatus(FAILED, None)
        assert await shown_after(200) == [4, 14, 34, 74, 134, 194]
        await registration.NotifyRegistrationStatus(DONE, None)
        assert await shown_after(100) == []
    task.cancel()
    await asyncio.wait([task])
    assert names_in(tmp_path) == [NAME]


@pytest.mark.parametrize("leaves_a_socket", [False, True])
async def test_socket_that_is_shown_again_is_still_served(tmp_path: Path, leaves_a_socket: bool) -> None:
    registration, endpoint = RegistrationService(SOCKET), registration_endpoint(tmp_path)
    if leaves_a_socket:  # as an earlier process that was killed
        os.mknod(endpoint.path, 0o140600)
    async with serving(endpoint, registration_service(registration)):
        for _ in range(2):
            show_again(endpoint.path)
            async with grpc.aio.insecure_channel(f"unix:{endpoint.path}") as channel:
                found = await RegistrationStub(channel).GetInfo(protocol.InfoRequest())
            assert found.name == "efs.csi.aws.com"
    assert names_in(tmp_path) == []


async def test_socket_of_a_newer_process_is_shown_and_stays(tmp_path: Path, watcher: Watcher) -> None:
    older, newer = RegistrationService(SOCKET), RegistrationService(SOCKET)
    endpoint = registration_endpoint(tmp_path)
    async with (
        serving(endpoint, registration_service(older)),
        serving(endpoint, registration_service(newer)),
    ):
        watcher.seen()
        show_again(endpoint.path)
        assert watcher.seen() == [_REMOVED, _CREATED]
        async with grpc.aio.insecure_channel(f"unix:{endpoint.path}") as channel:
            await RegistrationStub(channel).NotifyRegistrationStatus(DONE)
        assert newer.registered.is_set()


@pytest.mark.parametrize(
    ("error", "is_withheld"),
    [
        ("detected topology value collision: driver reported a but existing label is b", True),
        ("error updating CSINode: connection refused", False),
    ],
)
async def test_zone_that_the_kubelet_refuses_is_not_reported_again(error: str, is_withheld: bool) -> None:
    withheld: list[str] = []
    registration = RegistrationService(SOCKET, withhold_zone=lambda: withheld.append("zone"))
    await registration.NotifyRegistrationStatus(protocol.RegistrationStatus(error=error), None)
    assert bool(withheld) is is_withheld
