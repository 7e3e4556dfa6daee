"""Pods on the embedded kubelet, through the embedded API server and plain clients."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from lightkube import AsyncClient, KubeConfig
from lightkube.codecs import from_dict
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Event, Node, PersistentVolumeClaim, Pod
from lightkube.types import PatchType

from kube_efs.kube.client import connect
from kube_efs_lab.csi_calls import CsiCalls
from tinykube.api.server import ApiServer
from tinykube.kubelet.containers import Image
from tinykube.kubelet.kubelet import Kubelet, Mounters
from tinykube.kubelet.nfs import FolderNfs, mount_points
from tinykube.kubelet.node import HostFolders, NodeDescription

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="the kubelet makes namespaces and mounts: root only"
)

NODE = NodeDescription(name="node-1", zone="us-east-1a", region="us-east-1")
# Seconds, which no other run of these tests on this machine has.
NAP = f"1001.{os.getpid()}"


class Exports:
    """One file system, behind port 20490."""

    def __init__(self, folder: Path) -> None:
        self.root = folder

    async def folder(self, server: str, port: int | None, path: str) -> Path | None:
        return self.root / path.lstrip("/") if (server, port) == ("127.0.0.1", 20490) else None


@dataclass
class World:
    client: AsyncClient
    kubelet: Kubelet
    exports: Exports
    root: Path
    running: asyncio.Task[None]

    async def stop_kubelet(self) -> None:
        self.running.cancel()
        with suppress(asyncio.CancelledError):
            await self.running


@pytest.fixture
def nothing_is_left(tmp_path: Path) -> Iterator[None]:
    """Every mount and child process of the test is gone at its end."""
    children = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    folder = tmp_path.resolve()
    assert [point for point in mount_points() if Path(point).is_relative_to(folder)] == []
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= children


@pytest.fixture
def exports(tmp_path: Path) -> Exports:
    made = Exports(tmp_path.resolve() / "efs")
    made.root.mkdir()
    return made


@pytest.fixture
async def world(tmp_path: Path, exports: Exports, nothing_is_left: None) -> AsyncIterator[World]:
    async with ApiServer() as server:
        config = KubeConfig.from_dict(yaml.safe_load(server.kubeconfig())).get()
        assert config is not None
        client = connect(config)
        images = {
            "worker": Image(command=("/bin/echo", "the worker's own program")),
            "server": Image(command=(), port_variable="PORT"),
        }
        root = tmp_path / "kubelet"
        host = HostFolders({"/var/lib/data": tmp_path / "data"})
        mounters = Mounters(nfs=FolderNfs(exports), csi=CsiCalls())
        kubelet = Kubelet(client, node=NODE, root=root, mounters=mounters, images=images, host=host)
        world = World(client, kubelet, exports, root, asyncio.create_task(kubelet.run()))
        await until(lambda: node_is_ready(client))
        try:
            yield world
        finally:
            await world.stop_kubelet()
            await client.close()


async def node_is_ready(client: AsyncClient) -> bool:
    found = [node async for node in client.list(Node)]
    return bool(found and found[0].status and found[0].status.conditions)


async def until(check: Callable[[], Awaitable[Any]], seconds: float = 60.0) -> Any:
    """The first true answer; fails after that time."""
    deadline = time.monotonic() + seconds
    while True:
        found = await check()
        if found:
            return found
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


async def create(client: AsyncClient, kind: str, name: str, **fields: Any) -> Any:
    metadata = {"name": name, **fields.pop("metadata", {})}
    body: Any = from_dict({"apiVersion": "v1", "kind": kind, "metadata": metadata, **fields})
    return await client.create(body)


async def run_pod(
    client: AsyncClient,
    *command: str,
    name: str = "pod",
    container: dict[str, Any] | None = None,
    **spec: Any,
) -> None:
    main = {"name": "main", "image": "none", "command": list(command), **(container or {})}
    # No controller is there to give the namespace the certificate that comes with a token.
    body = {"nodeName": "node-1", "restartPolicy": "Never", "automountServiceAccountToken": False, **spec}
    body = {**body, "containers": [main]}
    await create(client, "Pod", name, metadata={"namespace": "default"}, spec=body)


async def pod_in(client: AsyncClient, phase: str, name: str = "pod") -> Any:
    async def check() -> Any:
        pod = await client.get(Pod, name, namespace="default")
        return pod if pod.status and pod.status.phase == phase else None

    return await until(check)


async def pod_where(client: AsyncClient, holds: Callable[[Any], Any], name: str = "pod") -> Any:
    async def check() -> Any:
        pod = await client.get(Pod, name, namespace="default")
        with suppress(AttributeError, IndexError, TypeError):
            return pod if holds(pod) else None
        return None

    return await until(check)


async def event(client: AsyncClient, reason: str) -> Event:
    async def check() -> Event | None:
        async for found in client.list(Event, namespace="*"):
            if found.reason == reason:
                return found
        return None

    return await until(check)  # type: ignore[no-any-return]


async def log_of(world: World, name: str = "pod", container: str = "main", **options: Any) -> str:
    options = {"follow": False, "tail_lines": None, **options}
    chunks = world.kubelet.read("default", name, container, **options)
    return b"".join([chunk async for chunk in chunks]).decode()


async def logs(world: World, text: str) -> bool:
    return text in await log_of(world)


def sleepers() -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", NAP]]


async def gone(client: AsyncClient, name: str = "pod") -> None:
    async def check() -> bool:
        try:
            await client.get(Pod, name, namespace="default")
        except ApiError as error:
            return error.status.code == 404
        return False

    await until(check)


async def test_node_is_registered(world: World) -> None:
    node = await world.client.get(Node, "node-1")
    assert node.metadata is not None
    assert node.status is not None
    labels = node.metadata.labels or {}
    assert labels["topology.kubernetes.io/zone"] == "us-east-1a"
    assert labels["topology.kubernetes.io/region"] == "us-east-1"
    assert [(item.type, item.status) for item in node.status.conditions or []] == [("Ready", "True")]


# Ready while there is a file "ready"; each start is a line of "log".
_SERVER = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        good = os.path.exists("/data/ready")
        self.send_response(200 if good else 503)
        self.end_headers()
open("/data/log", "a").write("started\\n")
http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""


async def test_probe_decides_what_is_ready(world: World, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    probe = {"periodSeconds": 1, "failureThreshold": 1}
    container = {
        "image": "server",
        "ports": [{"name": "health", "containerPort": 9810}],
        "readinessProbe": {**probe, "httpGet": {"path": "/readyz", "port": "health"}},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    volumes = [{"name": "data", "hostPath": {"path": "/var/lib/data", "type": "Directory"}}]
    await run_pod(
        world.client,
        *(sys.executable, "-c", _SERVER),
        container=container,
        volumes=volumes,
        restartPolicy="Always",
        terminationGracePeriodSeconds=1,
    )

    def ready(pod: Any) -> str:
        found: str = next(one.status for one in pod.status.conditions if one.type == "Ready")
        return found

    await until(lambda: asyncio.to_thread((data / "log").exists))
    pod = await pod_in(world.client, "Running")
    assert ready(pod) == "False"
    assert not pod.status.containerStatuses[0].ready
    (data / "ready").touch()
    await pod_where(world.client, lambda pod: ready(pod) == "True")
    (data / "ready").unlink()
    await pod_where(world.client, lambda pod: ready(pod) == "False")


async def test_what_a_container_mounts_for_the_node_outlives_it_and_others_do_not_see_it(
    world: World,
) -> None:
    place = world.root / "pods" / "shared"
    script = "mkdir -p /node/shared && mount -t tmpfs none /node/shared && echo there > /node/shared/file"
    volumes = [{"name": "pods", "hostPath": {"path": str(world.root / "pods"), "type": "Directory"}}]
    mounts = [{"name": "pods", "mountPath": "/node", "mountPropagation": "Bidirectional"}]
    await run_pod(
        world.client, "sh", "-c", script, name="first", container={"volumeMounts": mounts}, volumes=volumes
    )
    await pod_in(world.client, "Succeeded", "first")
    assert (place / "file").read_text() == "there\n"
    await run_pod(
        world.client,
        *("sh", "-c", "cat /node/shared/file && umount /node/shared && rmdir /node/shared"),
        name="second",
        container={"volumeMounts": mounts},
        volumes=volumes,
    )
    await pod_in(world.client, "Succeeded", "second")
    assert not place.exists()


async def test_command_runs_and_its_status_and_log_say_so(world: World) -> None:
    started = time.monotonic()
    await run_pod(world.client, "true", name="quick")
    await pod_in(world.client, "Succeeded", "quick")
    print(f"create to Succeeded: {(time.monotonic() - started) * 1000:.0f} ms")  # noqa: T201
    await run_pod(world.client, "sh", "-c", "echo one; echo two >&2; echo why > /dev/termination-log; exit 3")
    pod = await pod_in(world.client, "Failed")
    ended = pod.status.containerStatuses[0].state.terminated
    assert (ended.exitCode, ended.reason, ended.message) == (3, "Error", "why\n")
    assert await log_of(world) == "one\ntwo\n"
    assert await log_of(world, tail_lines=1) == "two\n"
    conditions = {item.type: item for item in pod.status.conditions}
    assert conditions["Ready"].status == "False"


async def test_what_a_pod_writes_stays_in_its_volumes(world: World, tmp_path: Path) -> None:
    inside, shared = tmp_path / "outside", tmp_path / "shared"
    on_machine = Path("/etc/kube-efs-test")
    shared.mkdir()
    script = f"echo x > {inside} && echo x > {on_machine} && echo kept > /made/here/file && cat {inside}"
    await run_pod(
        world.client,
        *("sh", "-c", script),
        container={"volumeMounts": [{"name": "v", "mountPath": "/made/here"}]},
        volumes=[{"name": "v", "hostPath": {"path": str(shared)}}],
    )
    await pod_in(world.client, "Succeeded")
    assert (shared / "file").read_text() == "kept\n"
    assert not inside.exists()
    for path in (on_machine, Path("/made")):
        assert not path.exists()


async def test_environment_files_identity_and_init_container(world: World) -> None:
    config = {"color": "blue", "file.txt": "content"}
    await create(world.client, "ConfigMap", "config", metadata={"namespace": "default"}, data=config)
    await create(
        world.client, "Secret", "hidden", metadata={"namespace": "default"}, stringData={"key": "s3cret"}
    )
    script = (
        'echo "$COLOR $KEY $NAME $NODE $TWICE $1"; cat /config/f; cat /made/b; id -u; id -G;'
        " stat -c %a /config/f; touch /config/x"
    )
    mounts = [
        {"name": "config", "mountPath": "/config", "readOnly": True},
        {"name": "work", "mountPath": "/made"},
    ]
    init = {"name": "first", "image": "none", "command": ["sh", "-c", "echo init > /w/b"]}
    await run_pod(
        world.client,
        *("sh", "-c", script, "sh", "$(COLOR)-$$(COLOR)-$(NOT)"),
        container={
            "env": [
                {"name": "COLOR", "valueFrom": {"configMapKeyRef": {"name": "config", "key": "color"}}},
                {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "hidden", "key": "key"}}},
                {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                {"name": "TWICE", "value": "$(COLOR)$(COLOR)"},
            ],
            "volumeMounts": mounts,
        },
        initContainers=[{**init, "volumeMounts": [{"name": "work", "mountPath": "/w"}]}],
        securityContext={"runAsUser": 1234, "runAsGroup": 2345},
        volumes=[
            {"name": "work", "emptyDir": {}},
            {
                "name": "config",
                "projected": {
                    "sources": [
                        {"configMap": {"name": "config", "items": [{"key": "file.txt", "path": "f"}]}}
                    ],
                    "defaultMode": 0o444,
                },
            },
        ],
    )
    await pod_in(world.client, "Failed")
    assert (await log_of(world)).splitlines()[:6] == [
        "blue s3cret pod node-1 blueblue blue-$(COLOR)-$(NOT)",
        "contentinit",
        "1234",
        "2345",
        "444",
        "touch: cannot touch '/config/x': Read-only file system",
    ]


async def test_nfs_claim_is_the_exported_folder(world: World) -> None:
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    await create(world.client, "PersistentVolumeClaim", "data", metadata={"namespace": "default"}, spec=claim)
    await run_pod(
        world.client,
        *("sh", "-c", "echo written > /efs/file; id -G"),
        container={"volumeMounts": [{"name": "v", "mountPath": "/efs"}]},
        volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
    )
    failed = await event(world.client, "FailedMount")
    assert failed.message == (
        'MountVolume.SetUp failed for volume "v" : persistentvolumeclaim "data" is not bound'
    )
    await create(
        world.client,
        "PersistentVolume",
        "vol",
        metadata={"annotations": {"pv.beta.kubernetes.io/gid": "4321"}},
        spec={
            "accessModes": ["ReadWriteMany"],
            "capacity": {"storage": "1Gi"},
            "nfs": {"server": "127.0.0.1", "path": "/team/data"},
            "mountOptions": ["nfsvers=4.1", "port=20490"],
        },
    )
    await bind(world.client, "data", "vol")

    async def says_what_mount_says() -> bool:
        found = [item async for item in world.client.list(Event, namespace="*")]
        wanted = "127.0.0.1:/team/data failed, reason given by server: No such file or directory"
        return any(wanted in (item.message or "") for item in found)

    await until(says_what_mount_says)
    (world.exports.root / "team" / "data").mkdir(parents=True)
    await pod_in(world.client, "Succeeded")
    assert (world.exports.root / "team" / "data" / "file").read_text() == "written\n"
    assert "4321" in (await log_of(world)).split()


async def bind(client: AsyncClient, claim: str, volume: str) -> None:
    found = {"spec": {"volumeName": volume}}
    await client.patch(PersistentVolumeClaim, claim, found, namespace="default", patch_type=PatchType.MERGE)
    status = {"status": {"phase": "Bound"}}
    await client.patch(
        PersistentVolumeClaim.Status, claim, status, namespace="default", patch_type=PatchType.MERGE
    )


async def test_image_without_command(world: World) -> None:
    no_command: dict[str, Any] = {"command": None}
    await run_pod(world.client, name="worker", container={**no_command, "image": "worker", "args": ["twice"]})
    await pod_in(world.client, "Succeeded", "worker")
    assert await log_of(world, "worker") == "the worker's own program twice\n"


async def test_image_that_nobody_knows_has_a_placeholder(world: World) -> None:
    # Longer than this test waits, so it must end on SIGTERM.
    await run_pod(
        world.client, container={"command": None, "image": "nginx"}, terminationGracePeriodSeconds=1000
    )
    pod = await pod_where(world.client, lambda pod: pod.status.containerStatuses[0].ready)
    assert pod.status.phase == "Running"
    said = "image nginx is not pulled here; nothing runs in its place"
    assert (await event(world.client, "ImageNotPulled")).message == f"container main: {said}"

    async def is_logged() -> bool:
        return await log_of(world) == f"{said}\n"

    await until(is_logged)
    await world.client.delete(Pod, "pod", namespace="default")
    await gone(world.client)


async def test_failing_container_is_restarted_with_back_off(world: World) -> None:
    count = "[ -f /d/2 ] && exit 0; [ -f /d/1 ] && touch /d/2; touch /d/1; exit 1"
    await run_pod(
        world.client,
        *("sh", "-c", count),
        container={"volumeMounts": [{"name": "d", "mountPath": "/d"}]},
        restartPolicy="OnFailure",
        volumes=[{"name": "d", "emptyDir": {}}],
    )
    pod = await pod_in(world.client, "Succeeded")
    status = pod.status.containerStatuses[0]
    assert status.restartCount == 2
    assert status.lastState.terminated.exitCode == 1


async def test_program_that_is_not_there(world: World) -> None:
    await run_pod(world.client, "no-such-program")
    pod = await pod_in(world.client, "Failed")
    ended = pod.status.containerStatuses[0].state.terminated
    assert (ended.exitCode, ended.reason) == (128, "StartError")
    assert ended.message == 'exec: "no-such-program": executable file not found in $PATH'


async def test_deadline_ends_a_pod(world: World) -> None:
    script = "trap '' TERM; while :; do sleep 0.05; done"
    await run_pod(world.client, "sh", "-c", script, activeDeadlineSeconds=3, terminationGracePeriodSeconds=0)
    pod = await pod_in(world.client, "Failed")
    assert pod.status.reason == "DeadlineExceeded"
    pod = await pod_where(world.client, lambda pod: pod.status.containerStatuses[0].state.terminated)
    assert pod.status.containerStatuses[0].state.terminated.exitCode == 137


async def test_deleted_pod_gets_its_grace_and_takes_everything_along(world: World) -> None:
    script = f"trap 'echo bye; exit 0' TERM; setsid sleep {NAP} & echo ready; while :; do sleep 0.05; done"
    await run_pod(world.client, "sh", "-c", script)

    await until(lambda: logs(world, "ready"))
    following = world.kubelet.read("default", "pod", "main", follow=True, tail_lines=None)
    assert await anext(following) == b"ready\n"
    await world.client.delete(Pod, "pod", namespace="default")
    await gone(world.client)
    assert [chunk async for chunk in following] == [b"bye\n"]
    assert not sleepers()
    assert not list((world.root / "pods").iterdir())


async def test_pod_that_ignores_the_signal_is_killed(world: World) -> None:
    script = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
    await run_pod(world.client, "sh", "-c", script, terminationGracePeriodSeconds=1)
    await until(lambda: logs(world, "ready"))
    started = time.monotonic()
    await world.client.delete(Pod, "pod", namespace="default")
    await gone(world.client)
    assert time.monotonic() - started > 0.9


async def test_pod_outlives_no_kubelet(world: World) -> None:
    await run_pod(world.client, "sleep", NAP)
    await pod_in(world.client, "Running")
    await world.stop_kubelet()
    assert not sleepers()
