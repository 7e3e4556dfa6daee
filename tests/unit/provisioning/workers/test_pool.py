"""Worker pods on the embedded API server, with a kubelet that runs their real program."""

import asyncio
import os
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightkube import AsyncClient
from lightkube.config.client_adapter import verify_cluster
from lightkube.config.kubeconfig import SingleConfig
from lightkube.models.core_v1 import (
    Container,
    ContainerState,
    ContainerStateTerminated,
    ContainerStatus,
    ObjectReference,
    PodSchedulingGate,
    PodSpec,
    PodStatus,
)
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Event, PersistentVolume, PersistentVolumeClaim, Pod
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs
from tests.unit.provisioning.orders import stands
from tests.unit.provisioning.workers.kubelet import Kubelet, Logs, name_of, running, set_status

from kube_efs.kube.watching import Listed, follow
from kube_efs.model.copies import COPIES, Copied, CopyProgress, CopyTerms
from kube_efs.model.csi.errors import VolumePending
from kube_efs.model.csi.mount_flags import parse_mount_flags
from kube_efs.model.efs.directories import Directory, FoundDirectory, Permissions, parse_directory
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.errors import (
    AwsDenied,
    AwsError,
    AwsNotFound,
    AwsNotPermitted,
    AwsThrottled,
    CopyDiffers,
    KubeDenied,
    KubeUnavailable,
    NotYet,
    PlatformError,
    RemovalRefused,
    WorkerDenied,
    WorkerFailed,
    WorkerRefused,
)
from kube_efs.model.trash import TrashReport
from kube_efs.model.tunnel_volumes import FILE_SYSTEM_ID, PREFIX
from kube_efs.model.volumes import Location
from kube_efs.provisioning.workers import pod_objects as worker_objects
from kube_efs.provisioning.workers import pods as worker_pods
from kube_efs.provisioning.workers import pool as worker_pool
from kube_efs.provisioning.workers.contract import Protection
from kube_efs.provisioning.workers.orders import Action, EmptyingTerms, MeasuringTerms
from kube_efs.provisioning.workers.pod_objects import LEADER, ObservedPod, WorkerOptions
from kube_efs.provisioning.workers.pods import WorkerPods
from kube_efs.provisioning.workers.pool import WorkerPool
from kube_efs.provisioning.workers.trash import TRASH
from kube_efs.telemetry.metrics import ControllerMetrics
from tinykube.api import ApiServer

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="giving directories away needs root")

Eventually = Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]

ROOT = Directory()
PLAIN = Permissions()
OPTIONS = WorkerOptions(namespace="default", image="kube-efs:test")
SOCKET = replace(OPTIONS, pool="csi-one")


def at(path: str, file_system: str = "fs-1") -> Location:
    return Location(file_system_id=FileSystemId(file_system), directory=parse_directory(path))


def pool_of(
    client: AsyncClient,
    options: WorkerOptions = OPTIONS,
    *,
    check_stays: Callable[[FileSystemId], Awaitable[None]] | None = None,
) -> WorkerPool:
    return WorkerPool(client, options, ControllerMetrics(CollectorRegistry()), check_stays=check_stays)


@asynccontextmanager
async def deadline(seconds: float = 20) -> AsyncIterator[None]:
    async with asyncio.timeout(seconds):
        yield


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses are for the load on an API server; here each test would only wait for some of them."""
    monkeypatch.setattr(worker_pool, "_QUIET_SECONDS", 0.02)
    for module, name in (
        (worker_pool, "_LOOK_AGAIN_SECONDS"),
        (worker_pods, "_RETRY_SECONDS"),
        (worker_pods, "_SWEEP_SECONDS"),
    ):
        monkeypatch.setattr(module, name, 0.1)


@pytest.fixture
def logs() -> Logs:
    return Logs()


@pytest.fixture
async def api_server(logs: Logs) -> AsyncIterator[ApiServer]:
    async with ApiServer(pod_logs=logs) as server:
        yield server


@pytest.fixture
async def kubelet(kube: AsyncClient, tmp_path: Path, logs: Logs) -> AsyncIterator[Kubelet]:
    async with running(Kubelet(kube, tmp_path, logs)) as started:
        yield started


async def pods(client: AsyncClient) -> list[str]:
    return [name_of(pod) async for pod in client.list(Pod, namespace="default")]


def _directories_of(pod: Pod) -> list[str]:
    assert pod.spec is not None
    return (pod.spec.containers[0].args or [])[5:]


async def begun(client: AsyncClient) -> bool:
    """Whether a pod without a scheduling gate exists."""
    found = [pod async for pod in client.list(Pod, namespace="default")]
    return any(pod.spec and not pod.spec.schedulingGates for pod in found)


async def none_left(client: AsyncClient) -> bool:
    return not await pods(client)


async def leave(
    client: AsyncClient, name: str, phase: str, file_system: str = "fs-1", arguments: str = "worker"
) -> None:
    """A worker pod of a former leader."""
    pod = Pod(
        metadata=ObjectMeta(
            name=name,
            namespace="default",
            labels={"component": "efs-worker"},
            annotations={FILE_SYSTEM_ID: file_system},
        ),
        spec=PodSpec(
            restartPolicy="Never", containers=[Container(name="worker", image="i", args=arguments.split())]
        ),
    )
    await client.create(pod)
    await set_status(client, name, {"phase": phase})


async def test_pod_creates_and_removes_a_directory_and_is_deleted(
    kube: AsyncClient, kubelet: Kubelet, eventually: Eventually
) -> None:
    async with deadline(), pool_of(kube) as pool:
        await pool.make(at("/team/data"), PLAIN)
        made = kubelet.root("fs-1") / "team/data"
        assert made.stat().st_mode & 0o7777 == 0o777
        (made / "file").touch()
        await pool.remove(at("/team/data"), ROOT, stands)
        assert not made.exists()
        await eventually(lambda: none_left(kube))
    assert kubelet.arguments == [
        ["worker", "make", "--root", "/efs", "--", "/team/data"],
        ["worker", "remove", "--root", "/efs", "--", "/team/data"],
    ]
    names = [name_of(pod) for pod in kubelet.pods]
    assert re.fullmatch(r"efs-init-fs-1-team-data-[a-z0-9]{5}", names[0])
    assert re.fullmatch(r"efs-clean-fs-1-team-data-[a-z0-9]{5}", names[1])


async def test_burst_uses_few_pods_and_one_at_a_time_for_each_file_system(
    kube: AsyncClient, kubelet: Kubelet
) -> None:
    wanted = [at(f"/team/d{number}", f"fs-{number % 2}") for number in range(100)]
    async with deadline(), pool_of(kube) as pool:
        await asyncio.gather(*(pool.make(one, PLAIN) for one in wanted))
    assert all((kubelet.root(one.file_system_id) / str(one.directory)[1:]).is_dir() for one in wanted)
    assert len(kubelet.pods) <= 6
    assert kubelet.most_at_once == {"fs-0": 1, "fs-1": 1}


async def test_request_during_a_pod_goes_to_the_next_pod(kube: AsyncClient, kubelet: Kubelet) -> None:
    kubelet.gate.clear()
    async with deadline(), pool_of(kube) as pool, asyncio.TaskGroup() as tasks:
        tasks.create_task(pool.make(at("/a"), PLAIN))
        while not kubelet.pods:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for path in ("/b", "/c", "/b"):
            tasks.create_task(pool.make(at(path), PLAIN))
        await asyncio.sleep(0.5)
        assert len(kubelet.pods) == 1
        kubelet.gate.set()
    assert [arguments[5:] for arguments in kubelet.arguments] == [["/a"], ["/b", "/c"]]
    assert kubelet.most_at_once == {"fs-1": 1}


async def test_pod_gets_at_most_the_maximum_of_directories(kube: AsyncClient, kubelet: Kubelet) -> None:
    async with deadline(), pool_of(kube, replace(OPTIONS, batch_max=3)) as pool:
        await asyncio.gather(*(pool.make(at(f"/d{number}"), PLAIN) for number in range(7)))
    assert [len(arguments[5:]) for arguments in kubelet.arguments] == [3, 3, 1]
    assert kubelet.most_at_once == {"fs-1": 1}


async def test_pod_either_creates_or_removes(kube: AsyncClient, kubelet: Kubelet) -> None:
    async with deadline(), pool_of(kube) as pool:
        await asyncio.gather(
            pool.remove(at("/a"), ROOT, stands),
            pool.make(at("/b"), PLAIN),
            pool.remove(at("/c"), ROOT, stands),
            pool.make(at("/d"), PLAIN),
        )
    assert [(arguments[1], arguments[5:]) for arguments in kubelet.arguments] == [
        ("remove", ["/a", "/c"]),
        ("make", ["/b", "/d"]),
    ]


@needs_root
async def test_directories_in_one_pod_have_their_own_groups(kube: AsyncClient, kubelet: Kubelet) -> None:
    async with deadline(), pool_of(kube) as pool:
        await asyncio.gather(
            *(
                pool.make(at(f"/d{gid}"), Permissions(mode=0o2771, gid=gid, enforced=True))
                for gid in (2001, 2000)
            )
        )
    found = [(kubelet.root("fs-1") / f"d{gid}").stat() for gid in (2000, 2001)]
    assert [(one.st_mode & 0o7777, one.st_gid) for one in found] == [(0o2771, 2000), (0o2771, 2001)]
    assert kubelet.arguments == [
        [
            "worker",
            "make",
            "--root",
            "/efs",
            "--mode",
            "2771",
            "--enforce",
            "--",
            ":2000:/d2000",
            ":2001:/d2001",
        ]
    ]


async def test_jobs_with_different_options_use_different_pods(kube: AsyncClient, kubelet: Kubelet) -> None:
    async with deadline(), pool_of(kube) as pool:
        await asyncio.gather(
            pool.make(at("/a"), PLAIN),
            pool.make(at("/b"), Permissions(mode=0o700)),
            pool.make(at("/c"), Permissions(enforced=True)),
            pool.remove(at("/base/d"), parse_directory("/base"), stands),
            pool.remove(at("/base/e"), ROOT, stands),
            pool.make(at("/f"), PLAIN),
        )
    assert [" ".join([arguments[1], *arguments[4:]]) for arguments in kubelet.arguments] == [
        "make -- /a /f",
        "make --mode 0700 -- /b",
        "make --enforce -- /c",
        "remove --base /base -- /base/d",
        "remove -- /base/e",
    ]


@pytest.mark.parametrize("path", ["/other/a", "/base", "/"])
async def test_path_outside_the_base_creates_no_pod(kube: AsyncClient, path: str) -> None:
    async with deadline(), pool_of(kube) as pool:
        with pytest.raises(RemovalRefused):
            await pool.remove(at(path), parse_directory("/base"), stands)
        assert await none_left(kube)


@pytest.mark.parametrize("path", ["/$(HOME)", "/$$(HOME)", "/$"])
async def test_kubernetes_replaces_nothing_in_paths(kube: AsyncClient, kubelet: Kubelet, path: str) -> None:
    async with deadline(), pool_of(kube) as pool:
        await pool.make(at(path), PLAIN)
    assert [f"/{found.name}" for found in kubelet.root("fs-1").iterdir()] == [path]


async def test_children_are_read_from_the_log_of_a_pod_and_the_pod_is_deleted(
    kube: AsyncClient, kubelet: Kubelet, eventually: Eventually
) -> None:
    gids = {}
    for name in ("b", "a", "é $(HOME)"):
        (kubelet.root("fs-1") / "base" / name).mkdir(parents=True)
        gids[name] = (kubelet.root("fs-1") / "base" / name).stat().st_gid
    async with deadline(), pool_of(kube) as pool:
        found, again, none = await asyncio.gather(
            *map(pool.children, (at("/base"), at("/base"), at("/none")))
        )
        await eventually(lambda: none_left(kube))
    assert list(found) == [FoundDirectory(name=name, gid=gids[name]) for name in sorted(gids)]
    assert (again, none) == (found, ())
    assert [arguments[1:] for arguments in kubelet.arguments] == [
        ["list", "--root", "/efs", "--", "/base"],
        ["list", "--root", "/efs", "--", "/none"],
    ]
    assert re.fullmatch(r"efs-list-fs-1-base-[a-z0-9]{5}", name_of(kubelet.pods[0]))


async def test_long_list_of_children_is_complete(kube: AsyncClient, kubelet: Kubelet) -> None:
    names = [f"claim-pvc-{number:040}" for number in range(3000)]
    for name in names:
        (kubelet.root("fs-1") / name).mkdir()
    async with deadline(), pool_of(kube) as pool:
        assert [child.name for child in await pool.children(at("/"))] == names


async def test_truncated_log_is_not_a_list(
    kube: AsyncClient, kubelet: Kubelet, eventually: Eventually
) -> None:
    kubelet.ending = lambda _: ("Succeeded", "")
    async with deadline(), pool_of(kube) as pool:
        with pytest.raises(WorkerFailed) as caught:
            await pool.children(at("/"))
        await eventually(lambda: none_left(kube))
    assert str(caught.value) == (
        f"worker pod: {name_of(kubelet.pods[0])!r} has an incomplete log: directories are missing in it; "
        "let its node keep more of a container's log (containerLogMaxSize)"
    )


async def test_failed_list_reports_the_reason(kube: AsyncClient, kubelet: Kubelet) -> None:
    (kubelet.root("fs-1") / "base").touch()
    async with deadline(), pool_of(kube) as pool:
        with pytest.raises(WorkerFailed) as caught:
            await pool.children(at("/base"))
    assert caught.value.value == "/base"
    assert "could not be listed (Not a directory)" in caught.value.problem


async def test_failed_directory_does_not_fail_others(kube: AsyncClient, kubelet: Kubelet) -> None:
    (kubelet.root("fs-1") / "bad").touch()
    async with deadline(), pool_of(kube) as pool:
        good, bad = await asyncio.gather(
            pool.make(at("/good"), PLAIN), pool.make(at("/bad"), PLAIN), return_exceptions=True
        )
    assert good is None
    assert isinstance(bad, WorkerFailed)
    assert str(bad) == (
        "directory: '/bad' failed in its worker pod (directory: '/bad' could not be created (Not a "
        "directory); "
        "a link or file is in the way; move it)"
    )
    assert await pods(kube) == [name_of(kubelet.pods[0])]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        pytest.param("Killed", "Killed", id="killed"),
        pytest.param("", "no message", id="no message"),
        pytest.param(
            '{"complete": false, "failed": {}}', '{"complete": false, "failed": {}}', id="incomplete report"
        ),
    ],
)
async def test_pod_that_failed_without_a_reason_fails_all_directories(
    kube: AsyncClient, kubelet: Kubelet, message: str, said: str
) -> None:
    kubelet.ending = lambda _: ("Failed", message)
    async with deadline(), pool_of(kube) as pool:
        with capture_logs() as logs:
            errors = await asyncio.gather(
                *(pool.make(at(path), PLAIN) for path in ("/a", "/b")), return_exceptions=True
            )
    name = name_of(kubelet.pods[0])
    assert [str(error) for error in errors] == [
        f"worker pod: {name!r} failed ({said}); see kubectl logs -n default {name}"
    ] * 2
    assert "worker-failed" in [line["event"] for line in logs]


async def test_pods_after_one_without_a_report_get_half_as_many_directories(
    kube: AsyncClient, kubelet: Kubelet
) -> None:
    """Otherwise a pod with too much work for its timeout would always fail with the same directories."""
    kubelet.ending = lambda pod: ("Failed", "") if len(_directories_of(pod)) > 3 else None
    paths = {f"/d{number}" for number in range(8)}
    async with deadline(), pool_of(kube) as pool:
        while paths:
            asked = sorted(paths)
            errors = await asyncio.gather(
                *(pool.make(at(path), PLAIN) for path in asked), return_exceptions=True
            )
            paths = {path for path, error in zip(asked, errors, strict=True) if error is not None}
    assert [len(arguments[5:]) for arguments in kubelet.arguments] == [8, 4, 2, 2, 4, 2, 2]


async def test_directory_that_ends_its_pod_does_not_fail_others_indefinitely(
    kube: AsyncClient, kubelet: Kubelet
) -> None:
    kubelet.ending = lambda pod: ("Failed", "") if "/d0" in _directories_of(pod) else None
    paths = {f"/d{number}" for number in range(8)}
    async with deadline(), pool_of(kube) as pool:
        while paths != {"/d0"}:
            asked = sorted(paths)
            errors = await asyncio.gather(
                *(pool.make(at(path), PLAIN) for path in asked), return_exceptions=True
            )
            paths = {path for path, error in zip(asked, errors, strict=True) if error is not None}


async def test_only_confirmed_directories_count_as_done(kube: AsyncClient, kubelet: Kubelet) -> None:
    kubelet.ending = lambda _: ("Failed", '{"complete": false, "failed": {"/a": "full"}}')
    async with deadline(), pool_of(kube) as pool:
        errors = await asyncio.gather(
            *(pool.make(at(path), PLAIN) for path in ("/a", "/b")), return_exceptions=True
        )
    assert [str(error) for error in errors] == [
        "directory: '/a' failed in its worker pod (full)",
        "directory: '/b' failed in its worker pod (no reason reported)",
    ]


async def test_evicted_pod_reports_the_reason(kube: AsyncClient, eventually: Eventually) -> None:
    async with deadline(), pool_of(kube) as pool:
        making = asyncio.create_task(pool.make(at("/a"), PLAIN))
        await eventually(lambda: pods(kube))
        (name,) = await pods(kube)
        await set_status(kube, name, {"phase": "Failed", "reason": "Evicted", "message": "disk pressure"})
        with pytest.raises(WorkerFailed) as caught:
            await making
    assert caught.value.problem == "failed (disk pressure)"


async def test_deletion_of_a_pod_is_detected(kube: AsyncClient, eventually: Eventually) -> None:
    async with deadline(), pool_of(kube) as pool:
        making = asyncio.create_task(pool.make(at("/a"), PLAIN))
        await eventually(lambda: begun(kube))
        (name,) = await pods(kube)
        await kube.delete(Pod, name, namespace="default", grace_period=0)
        with pytest.raises(WorkerFailed) as caught:
            await making
    assert str(caught.value) == (
        f"worker pod: {name!r} was deleted before it ended, or was never created; "
        "leave worker pods to the controller"
    )


async def test_pod_that_never_starts_times_out(kube: AsyncClient, eventually: Eventually) -> None:
    impatient = replace(OPTIONS, timeout_seconds=0, start_seconds=0.2)
    async with deadline(), pool_of(kube, impatient) as pool:
        with pytest.raises(WorkerFailed) as caught:
            await pool.make(at("/a"), PLAIN)
        await eventually(lambda: none_left(kube))
    assert caught.value.problem == "did not end after 0 s"
    assert caught.value.remedy == (
        "see the pod's events: is its claim bound, does its node run the tunnel agent?"
    )


async def test_pod_of_a_former_leader_is_awaited(kube: AsyncClient, kubelet: Kubelet) -> None:
    kubelet.gate.clear()
    kubelet.ending = lambda pod: ("Succeeded", "") if name_of(pod) == "former" else None
    await leave(kube, "former", "Running")
    async with deadline(), pool_of(kube) as pool, asyncio.TaskGroup() as tasks:
        tasks.create_task(pool.make(at("/a"), PLAIN))
        await pool_idle(kubelet)
        kubelet.gate.set()
    assert name_of(kubelet.pods[0]) == "former"
    assert (len(kubelet.pods), kubelet.most_at_once) == (2, {"fs-1": 1})


async def pool_idle(kubelet: Kubelet) -> None:
    """Wait longer than the start of a second pod would take."""
    await kubelet.has_started_one.wait()
    await asyncio.sleep(0.6)
    assert len(kubelet.pods) == 1


async def test_pod_of_another_file_system_is_not_awaited(kube: AsyncClient, kubelet: Kubelet) -> None:
    kubelet.ending = lambda pod: ("Running", "") if name_of(pod) == "former" else None
    await leave(kube, "former", "Running", file_system="fs-2")
    async with deadline(), pool_of(kube) as pool:
        await pool.make(at("/a"), PLAIN)


async def test_pod_of_a_former_leader_that_never_ends_is_deleted(kube: AsyncClient, kubelet: Kubelet) -> None:
    kubelet.ending = lambda pod: ("Running", "") if name_of(pod) == "former" else None
    await leave(kube, "former", "Pending")
    async with deadline(), pool_of(kube, replace(OPTIONS, timeout_seconds=1, start_seconds=3)) as pool:
        with capture_logs() as logs:
            await pool.make(at("/a"), PLAIN)
    assert ("worker-overdue", "former") in [(line["event"], line.get("pod")) for line in logs]


async def test_succeeded_pods_of_a_former_leader_are_deleted_and_failed_ones_kept(
    kube: AsyncClient, eventually: Eventually
) -> None:
    await leave(kube, "done", "Succeeded")
    await leave(kube, "broken", "Failed")

    async def is_tidy() -> bool:
        return await pods(kube) == ["broken"]

    async with deadline(), pool_of(kube):
        await eventually(is_tidy)


async def test_newest_three_failed_pods_are_kept(
    kube: AsyncClient, kubelet: Kubelet, eventually: Eventually
) -> None:
    await leave(kube, "other-file-system", "Failed", file_system="fs-2")
    kubelet.ending = lambda _: ("Failed", "broken")
    async with deadline(40), pool_of(kube) as pool:
        for _ in range(5):
            with pytest.raises(WorkerFailed):
                await pool.make(at("/a"), PLAIN)

        async def is_tidy() -> bool:
            return len(await pods(kube)) == 4

        await eventually(is_tidy)
    assert "other-file-system" in await pods(kube)


async def test_nothing_is_kept_for_a_file_system_without_work(
    kube: AsyncClient, kubelet: Kubelet, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool, "_IDLE_SECONDS", 0.3)
    async with deadline(), pool_of(kube) as pool:
        await asyncio.gather(*(pool.make(at("/data", f"fs-{number}"), PLAIN) for number in range(3)))

        async def ended() -> bool:
            return not pool._lanes and len(pool._background) == 1

        await eventually(ended)
        await pool.make(at("/later"), PLAIN)


async def test_cancelled_caller_leaves_the_queue(kube: AsyncClient, kubelet: Kubelet) -> None:
    async with deadline(), pool_of(kube) as pool:
        given_up = asyncio.create_task(pool.make(at("/given-up"), PLAIN))
        await asyncio.sleep(0)
        given_up.cancel()
        await pool.make(at("/wanted"), PLAIN)
    assert [arguments[5:] for arguments in kubelet.arguments] == [["/wanted"]]


async def test_close_ends_all_waiting_calls(kube: AsyncClient, eventually: Eventually) -> None:
    async with deadline():
        async with pool_of(kube) as pool:
            making = asyncio.create_task(pool.make(at("/a"), PLAIN))
            await eventually(lambda: pods(kube))
            waiting = asyncio.create_task(pool.make(at("/b"), PLAIN))
            await asyncio.sleep(0)
        results = await asyncio.gather(making, waiting, return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError] * 2


class _Lossy(httpx2.AsyncBaseTransport):
    """Forwards requests, and delays them, or loses or refuses the answers, as the test says."""

    def __init__(self, config: SingleConfig) -> None:
        assert config.user
        verify = verify_cluster(config.cluster, config.user, config.abs_file)
        self._inner = httpx2.AsyncHTTPTransport(verify=verify)
        self.lose: Callable[[httpx2.Request], bool] = lambda _: False
        self.refuse: Callable[[httpx2.Request], httpx2.Response | None] = lambda _: None
        self.sends_again = False
        self.events_can_be_read = asyncio.Event()
        self.events_can_be_read.set()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET" and request.url.path.endswith("/events"):
            await self.events_can_be_read.wait()
        refusal = self.refuse(request)
        if refusal is not None:
            return refusal
        response = await self._inner.handle_async_request(request)
        if self.lose(request):
            await response.aclose()
            if self.sends_again:
                return await self._inner.handle_async_request(request)
            raise httpx2.ReadTimeout("lost", request=request)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


def _refusal(code: int, message: str) -> httpx2.Response:
    """An answer of the API server."""
    return httpx2.Response(code, json={"kind": "Status", "code": code, "message": message})


@pytest.fixture
async def lossy(cluster: SingleConfig) -> AsyncIterator[tuple[AsyncClient, _Lossy]]:
    transport = _Lossy(cluster)
    async with AsyncClient(cluster, transport=transport) as client:
        yield client, transport


@pytest.mark.parametrize("is_sent_again", [False, True], ids=["lost", "sent again"])
async def test_pod_of_an_unconfirmed_creation_is_awaited(
    lossy: tuple[AsyncClient, _Lossy],
    kubelet: Kubelet,
    is_sent_again: bool,
) -> None:
    client, transport = lossy
    transport.lose = lambda request: request.method == "POST"
    transport.sends_again = is_sent_again
    kubelet.gate.clear()
    async with deadline(), pool_of(client) as pool, asyncio.TaskGroup() as tasks:
        tasks.create_task(pool.make(at("/a"), PLAIN))
        await pool_idle(kubelet)
        tasks.create_task(pool.make(at("/b"), PLAIN))
        await pool_idle(kubelet)
        kubelet.gate.set()
    assert kubelet.most_at_once == {"fs-1": 1}
    assert (kubelet.root("fs-1") / "b").is_dir()


async def test_pod_that_was_never_created_fails_its_directories(lossy: tuple[AsyncClient, _Lossy]) -> None:
    client, transport = lossy
    transport.refuse = lambda request: httpx2.Response(503) if request.method == "POST" else None
    async with deadline(), pool_of(client) as pool:
        with pytest.raises(WorkerFailed) as caught:
            await pool.make(at("/a"), PLAIN)
    assert caught.value.problem == "was deleted before it ended, or was never created"


async def test_unreadable_log_is_reported(
    lossy: tuple[AsyncClient, _Lossy], kubelet: Kubelet, eventually: Eventually
) -> None:
    client, transport = lossy
    transport.refuse = lambda request: httpx2.Response(502) if request.url.path.endswith("/log") else None
    async with deadline(), pool_of(client) as pool:
        with pytest.raises(KubeUnavailable) as caught:
            await pool.children(at("/"))
        await eventually(lambda: none_left(client))
    assert caught.value.field == f"log of worker pod {name_of(kubelet.pods[0])}"


async def test_log_of_a_pod_with_an_added_container_is_read(
    lossy: tuple[AsyncClient, _Lossy], kubelet: Kubelet
) -> None:
    client, transport = lossy
    transport.refuse = lambda request: (
        _refusal(400, "a container name must be specified")
        if request.url.path.endswith("/log") and request.url.params.get("container") != "worker"
        else None
    )
    (kubelet.root("fs-1") / "found").mkdir(parents=True)
    async with deadline(), pool_of(client) as pool:
        assert [child.name for child in await pool.children(at("/"))] == ["found"]


def test_message_of_a_pod_is_that_of_the_worker() -> None:
    states = {"added": "proxy ended", "worker": "worker ended"}
    statuses = [
        ContainerStatus(
            name=name,
            image="",
            imageID="",
            ready=False,
            restartCount=0,
            state=ContainerState(terminated=ContainerStateTerminated(exitCode=1, message=message)),
        )
        for name, message in states.items()
    ]
    pod = Pod(metadata=ObjectMeta(name="one"), status=PodStatus(containerStatuses=statuses))
    assert worker_objects.observe_pod(pod, since=0.0).message == "worker ended"


async def test_refused_pod_is_reported(lossy: tuple[AsyncClient, _Lossy]) -> None:
    client, transport = lossy
    transport.refuse = lambda request: _refusal(403, "no pods for you") if request.method == "POST" else None
    async with deadline(), pool_of(client) as pool:
        with pytest.raises(KubeDenied):
            await pool.make(at("/a"), PLAIN)


@given(st.lists(st.text(min_size=1), max_size=5), st.sampled_from(Action), st.integers(1, 40))
def test_kubernetes_accepts_the_pod_names(parts: list[str], action: Action, digits: int) -> None:
    file_system_id = FileSystemId("fs-" + "f" * digits)
    name = worker_objects._pod_name(file_system_id, action, Directory(tuple(parts)))
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name)
    assert len(name) <= 63
    words = {Action.MAKE: "init", Action.REMOVE: "clean", Action.LIST: "list", Action.MEASURE: "usage"}
    word = words.get(action, str(action))
    assert name.startswith(f"efs-{word}-{file_system_id}"[:50])


async def test_separate_pod_measures_directories(
    kube: AsyncClient, kubelet: Kubelet, eventually: Eventually
) -> None:
    folder = kubelet.root("fs-1") / "data"
    folder.mkdir(parents=True)
    (folder / "file").write_bytes(b"x" * 10_000)
    directories = [parse_directory("/data"), parse_directory("/missing")]
    async with deadline(), pool_of(kube) as pool:
        found = await pool.measure(at("/"), directories, MeasuringTerms())
        await eventually(lambda: none_left(kube))

    assert [one.directory for one in found] == directories
    size, problem = found[0].size, found[1].problem
    assert size is not None
    assert size.used_bytes >= 10_000
    assert (size.entries, size.complete) == (2, True)
    assert "could not be measured (No such file or directory)" in problem


async def test_claims_do_not_wait_for_a_measuring_pod(kube: AsyncClient, kubelet: Kubelet) -> None:
    await leave(kube, "efs-usage-fs-1-data-abcde", "Running", arguments="worker measure --root /efs -- /data")
    async with deadline(), pool_of(kube) as pool:
        await pool.make(at("/data"), PLAIN)
    assert (kubelet.root("fs-1") / "data").is_dir()


async def test_separate_pod_empties_the_trash(
    kube: AsyncClient, kubelet: Kubelet, eventually: Eventually
) -> None:
    root = kubelet.root("fs-1")
    (root / "data/deep").mkdir(parents=True)
    removed: list[str] = []
    async with deadline(), pool_of(kube) as pool:
        pool.on_removed(removed.append)
        await pool.remove(at("/data"), ROOT, stands)
        assert removed[0] == "fs-1"
        assert [path.name for path in root.glob(f"{TRASH}/*/*")] == ["deep"]
        report = await pool.empty(at("/"), EmptyingTerms(seconds=60))
        await eventually(lambda: none_left(kube))
    assert report == TrashReport(removed=2)
    assert list((root / TRASH).iterdir()) == []
    assert kubelet.arguments[1][:3] == ["worker", "empty", "--root"]


async def test_claims_and_removals_do_not_wait_for_the_pod_that_empties_the_trash(
    kube: AsyncClient, kubelet: Kubelet
) -> None:
    await leave(kube, "efs-empty-fs-1-abcde", "Running", arguments="worker empty --root /efs -- /")
    async with deadline(), pool_of(kube) as pool:
        await pool.make(at("/data"), PLAIN)
        await pool.remove(at("/data"), ROOT, stands)
    assert not (kubelet.root("fs-1") / "data").exists()


async def test_removals_of_other_processes_are_detected(kube: AsyncClient, eventually: Eventually) -> None:
    removed: list[str] = []
    async with deadline(), pool_of(kube) as pool:
        pool.on_removed(removed.append)
        for name, file_system, action in (("clean", "fs-2", "remove"), ("init", "fs-3", "make")):
            arguments = f"worker {action} --root /efs -- /data"
            await leave(kube, f"efs-{name}-data-abcde", "Succeeded", file_system, arguments)

        async def noticed() -> bool:
            return "fs-2" in removed

        await eventually(noticed)
        await eventually(lambda: none_left(kube))
    assert set(removed) == {"fs-2"}


async def test_removal_by_a_terminating_pod_is_detected_once(
    kube: AsyncClient, eventually: Eventually
) -> None:
    removed: list[str] = []
    name, arguments = "efs-clean-data-abcde", "worker remove --root /efs -- /data"
    async with deadline(), pool_of(kube) as pool:
        pool.on_removed(removed.append)
        await leave(kube, name, "Running", "fs-2", arguments)
        await kube.patch(Pod, name, {"metadata": {"finalizers": ["example.com/node"]}}, namespace="default")
        await kube.delete(Pod, name, namespace="default")
        await set_status(kube, name, {"phase": "Succeeded"})

        async def noticed() -> bool:
            return bool(removed)

        await eventually(noticed)
        await kube.patch(Pod, name, {"metadata": {"finalizers": None}}, namespace="default")
        await eventually(lambda: none_left(kube))
    assert removed == ["fs-2"]


async def test_pods_of_no_volume_do_not_start_while_their_file_system_is_removed(
    kube: AsyncClient, kubelet: Kubelet, eventually: Eventually
) -> None:
    ending, asked = VolumePending("is being removed", field="file system", value="fs-1"), []

    async def check_stays(file_system_id: FileSystemId) -> None:
        # A removal that begins from now on finds the pod.
        asked.append([name_of(pod) async for pod in kube.list(Pod, namespace="default")])
        if file_system_id == "fs-1":
            raise ending

    (kubelet.root("fs-1") / "data").mkdir()
    async with deadline(), pool_of(kube, check_stays=check_stays) as pool:
        with pytest.raises(VolumePending):
            await pool.empty(at("/"), EmptyingTerms(seconds=60))
        with pytest.raises(VolumePending):
            await pool.measure(at("/"), [parse_directory("/data")], MeasuringTerms())
        with pytest.raises(VolumePending):
            await pool.copy(at("/new"), CopyTerms(key="snapshot.a", source=parse_directory("/data")))
        await eventually(lambda: none_left(kube))
        assert [len(names) for names in asked] == [1, 1, 1]
        assert kubelet.pods == []
        assert len(await pool.children(at("/"))) == 1  # A removal lists the snapshots.
        await pool.empty(at("/", "fs-2"), EmptyingTerms(seconds=60))


async def test_only_volumes_of_other_accounts_are_on_file_systems_that_do_not_exist(
    kube: AsyncClient, kubelet: Kubelet
) -> None:
    async def check_stays(file_system_id: FileSystemId) -> None:
        raise AwsNotFound("does not exist", field="file system", value=file_system_id)

    (kubelet.root("fs-1") / "data").mkdir()
    async with deadline(), pool_of(kube, check_stays=check_stays) as pool:
        with pytest.raises(AwsNotFound):
            await pool.empty(at("/"), EmptyingTerms(seconds=60))
        assert kubelet.pods == []
        assert await pool.measure(at("/"), [parse_directory("/data")], MeasuringTerms())


@pytest.mark.parametrize(
    ("error", "starts"), [(AwsNotPermitted, True), (AwsDenied, False), (AwsThrottled, False)]
)
async def test_trash_is_emptied_without_permissions_in_aws_but_not_without_its_answer(
    kube: AsyncClient, kubelet: Kubelet, error: type[AwsError], starts: bool
) -> None:
    async def check_stays(file_system_id: FileSystemId) -> None:
        raise error("has failed", field="DescribeFileSystems", value=file_system_id)

    async with deadline(), pool_of(kube, check_stays=check_stays) as pool:
        with nullcontext() if starts else pytest.raises(error):
            await pool.empty(at("/"), EmptyingTerms(seconds=60))
    assert len(kubelet.pods) == starts


@pytest.mark.parametrize("action", ["empty", "measure", "make", "copy", "of-a-newer-version"])
async def test_file_system_is_unused_when_its_last_pod_has_ended(
    kube: AsyncClient, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    await leave(kube, "efs-one", "Running", arguments=f"worker {action} --root /efs -- /data")
    await leave(kube, "efs-list", "Running", arguments="worker list --root /efs -- /")
    await leave(kube, "efs-failed", "Failed", arguments="worker empty --root /efs -- /")
    monkeypatch.setattr(worker_pods, "_UNUSED_SECONDS", 0.0)
    has_listed, list_pods = asyncio.Event(), WorkerPods._list

    async def noted(self: WorkerPods) -> Sequence[ObservedPod]:
        found = await list_pods(self)
        has_listed.set()
        return found

    monkeypatch.setattr(WorkerPods, "_list", noted)
    async with deadline(), pool_of(kube) as pool:
        with pytest.raises(WorkerFailed if action == "copy" else NotYet, match="'efs-one' works on its file"):
            await pool.unused(FileSystemId("fs-1"))
        await pool.unused(FileSystemId("fs-2"))
        monkeypatch.setattr(worker_pods, "_UNUSED_SECONDS", 60.0)
        async with asyncio.TaskGroup() as tasks:
            has_listed.clear()
            waiting = tasks.create_task(pool.unused(FileSystemId("fs-1")))
            # With the second list, it has waited after the first.
            for _ in range(2):
                await has_listed.wait()
                has_listed.clear()
            assert not waiting.done()
            await set_status(kube, "efs-one", {"phase": "Failed"})


async def test_pod_that_may_never_end_is_told_apart(
    kube: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pods, "_UNUSED_SECONDS", 0.0)
    await leave(kube, "stuck", "Running", arguments="worker empty --root /efs -- /")
    finalizers = {"metadata": {"finalizers": ["example.com/a-node-that-is-off"]}}
    await kube.patch(Pod, "stuck", finalizers, namespace="default")
    async with deadline(), pool_of(kube) as pool:
        with pytest.raises(NotYet):
            await pool.unused(FileSystemId("fs-1"))
        await kube.delete(Pod, "stuck", namespace="default")
        with pytest.raises(WorkerFailed, match="'stuck' works on its file system"):
            await pool.unused(FileSystemId("fs-1"))


async def test_unreported_trash_is_not_considered_empty(kube: AsyncClient, kubelet: Kubelet) -> None:
    kubelet.ending = lambda _: ("Succeeded", "")
    async with deadline(), pool_of(kube) as pool:
        with pytest.raises(WorkerFailed) as caught:
            await pool.empty(at("/"), EmptyingTerms())
    assert str(caught.value) == "trash: 'fs-1' did not report what is left; it is retried"


# --- no pod changes a directory that another pod or leader owns


GATE = f"{PREFIX}/order"
POOL = f"{PREFIX}/worker-pool"


class _Late(_Lossy):
    """Sends the requests that the test selects only on ``carry_out``, after their timeout."""

    def __init__(self, config: SingleConfig) -> None:
        super().__init__(config)
        self.late: Callable[[httpx2.Request], bool] = lambda _: False
        self.kept: list[httpx2.Request] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self.late(request):
            await request.aread()
            self.kept.append(request)
            raise httpx2.ReadTimeout("given up", request=request)
        return await super().handle_async_request(request)

    async def carry_out(self) -> list[int]:
        """Send the requests, and return the status of each answer."""
        answers = [await self._inner.handle_async_request(request) for request in self.kept]
        for answer in answers:
            await answer.aclose()
        return [answer.status_code for answer in answers]


@pytest.fixture
async def late(cluster: SingleConfig) -> AsyncIterator[tuple[AsyncClient, _Late]]:
    transport = _Late(cluster)
    async with AsyncClient(cluster, transport=transport) as client:
        yield client, transport


def gated(name: str, arguments: str, *, pool: str = "another") -> Pod:
    """A gated worker pod of another pool."""
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace="default",
            labels={"component": "efs-worker"},
            annotations={FILE_SYSTEM_ID: "fs-1", POOL: pool},
        ),
        spec=PodSpec(
            restartPolicy="Never",
            schedulingGates=[PodSchedulingGate(name=GATE)],
            containers=[Container(name="worker", image="i", args=arguments.split())],
        ),
    )


@pytest.mark.parametrize("action", ["make", "remove"])
async def test_pod_created_late_never_runs(
    late: tuple[AsyncClient, _Late], kubelet: Kubelet, eventually: Eventually, action: str
) -> None:
    client, transport = late
    transport.late = lambda request: request.method == "POST" and not transport.kept
    (kubelet.root("fs-1") / "data").mkdir()
    async with deadline(), pool_of(client) as pool:
        work = pool.make(at("/data"), PLAIN) if action == "make" else pool.remove(at("/data"), ROOT, stands)
        with pytest.raises(WorkerFailed, match="or was never created"):
            await work
        assert await transport.carry_out() == [201]
        await eventually(lambda: none_left(client))
    assert kubelet.pods == []
    assert (kubelet.root("fs-1") / "data").is_dir()


async def test_late_removal_of_the_scheduling_gate_finds_no_pod(
    late: tuple[AsyncClient, _Late], kubelet: Kubelet
) -> None:
    client, transport = late
    transport.late = lambda request: request.method == "PATCH" and b"schedulingGates" in request.content
    async with deadline(), pool_of(client) as pool:
        with pytest.raises(WorkerFailed, match="could not be started"):
            await pool.make(at("/data"), PLAIN)
        assert set(await transport.carry_out()) == {404}
    assert kubelet.pods == []


async def test_pod_with_an_unconfirmed_gate_removal_is_awaited(
    lossy: tuple[AsyncClient, _Lossy], kubelet: Kubelet
) -> None:
    client, transport = lossy
    transport.lose = lambda request: request.method == "PATCH" and b"schedulingGates" in request.content
    async with deadline(), pool_of(client) as pool:
        await pool.make(at("/data"), PLAIN)
    assert len(kubelet.pods) == 1


async def test_order_is_confirmed_while_its_pod_is_gated(kube: AsyncClient, kubelet: Kubelet) -> None:
    seen: list[tuple[bool, int]] = []

    async def confirm() -> None:
        (pod,) = [pod async for pod in kube.list(Pod, namespace="default")]
        seen.append((bool(pod.spec and pod.spec.schedulingGates), len(kubelet.pods)))

    (kubelet.root("fs-1") / "data").mkdir()
    async with deadline(), pool_of(kube) as pool:
        await pool.remove(at("/data"), ROOT, confirm)
    assert seen == [(True, 0)]
    assert not (kubelet.root("fs-1") / "data").exists()


async def test_withdrawn_order_fails_alone(kube: AsyncClient, kubelet: Kubelet) -> None:
    async def withdrawn() -> None:
        raise RemovalRefused("is retained", field="volume")

    for name in ("kept", "removed"):
        (kubelet.root("fs-1") / name).mkdir()
    async with deadline(), pool_of(kube) as pool:
        results = await asyncio.gather(
            pool.remove(at("/kept"), ROOT, withdrawn),
            pool.remove(at("/removed"), ROOT, stands),
            return_exceptions=True,
        )
    assert [type(result) for result in results] == [RemovalRefused, type(None)]
    assert kubelet.arguments == [["worker", "remove", "--root", "/efs", "--", "/removed"]]
    assert (kubelet.root("fs-1") / "kept").is_dir()


@pytest.mark.parametrize("path", ["/team", "/team/data", "/team/data/deep"])
async def test_running_pod_of_another_pool_is_awaited(kube: AsyncClient, kubelet: Kubelet, path: str) -> None:
    kubelet.gate.clear()
    kubelet.ending = lambda pod: ("Succeeded", "") if name_of(pod) == "former" else None
    await leave(kube, "former", "Running", arguments=f"worker remove --root /efs -- {path}")
    async with deadline(), pool_of(kube) as pool, asyncio.TaskGroup() as tasks:
        tasks.create_task(pool.make(at("/team/data"), PLAIN))
        await pool_idle(kubelet)
        kubelet.gate.set()
    assert name_of(kubelet.pods[0]) == "former"
    assert kubelet.most_at_once == {"fs-1": 1}


async def test_pod_that_never_ends_blocks_only_its_own_directory(kube: AsyncClient, kubelet: Kubelet) -> None:
    kubelet.ending = lambda pod: ("Running", "") if name_of(pod) == "stuck" else None
    await leave(kube, "stuck", "Running", arguments="worker remove --root /efs -- /team/stuck")
    options = replace(OPTIONS, timeout_seconds=1, start_seconds=3)
    async with deadline(), pool_of(kube, options) as pool:
        await kube.patch(
            Pod,
            "stuck",
            {"metadata": {"finalizers": ["example.com/a-node-that-is-off"]}},
            namespace="default",
        )
        with pytest.raises(WorkerFailed, match="works on this directory") as caught:
            await asyncio.gather(pool.make(at("/team/other"), PLAIN), pool.make(at("/team/stuck"), PLAIN))
        assert "node.kubernetes.io/out-of-service" in caught.value.remedy
        assert [labels for labels, _ in pool._pods._metrics.worker_pods_overdue.read()] == [["fs-1"]]
    assert (kubelet.root("fs-1") / "team/other").is_dir()
    assert not (kubelet.root("fs-1") / "team/stuck").exists()


async def test_gated_pod_of_another_pool_is_deleted(kube: AsyncClient, kubelet: Kubelet) -> None:
    await kube.create(gated("zz-later-in-the-alphabet", "worker remove --root /efs -- /team/data"))
    async with deadline(), pool_of(kube) as pool:
        await pool.make(at("/team/data"), PLAIN)
    assert await pods(kube) == []


async def test_young_gated_pod_with_the_lower_name_goes_first(
    kube: AsyncClient, kubelet: Kubelet, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kube.create(gated("aa-earlier-in-the-alphabet", "worker remove --root /efs -- /team/data"))
    async with deadline(), pool_of(kube) as pool:
        with capture_logs() as logs:

            async def has_given_way() -> bool:
                return len([line for line in logs if line["event"] == "worker-started"]) > 1

            making = asyncio.create_task(pool.make(at("/team/data"), PLAIN))
            await eventually(has_given_way)
            assert kubelet.pods == []
            monkeypatch.setattr(worker_pods, "_YOUNG_SECONDS", 0.0)  # as half a minute later
            await making
    assert await pods(kube) == []


async def test_two_pools_do_not_change_one_directory_concurrently(
    kube: AsyncClient, kubelet: Kubelet
) -> None:
    async with (
        deadline(40),
        pool_of(kube) as one,
        pool_of(kube, SOCKET) as other,
        asyncio.TaskGroup() as tasks,
    ):
        for number in range(5):
            tasks.create_task(one.make(at(f"/team/d{number}"), PLAIN))
            tasks.create_task(other.make(at(f"/team/d{number}"), PLAIN))
    assert kubelet.most_at_once == {"fs-1": 1}


async def test_pool_does_not_delete_an_unread_pod_of_another_pool(
    kube: AsyncClient, kubelet: Kubelet, eventually: Eventually
) -> None:
    (kubelet.root("fs-1") / "data").mkdir()
    async with deadline(40), pool_of(kube) as one, pool_of(kube, SOCKET) as other:
        found = await asyncio.gather(
            *(pool.children(at("/")) for _ in range(5) for pool in (one, other)), return_exceptions=True
        )
    assert [[child.name for child in children] for children in found if isinstance(children, tuple)] == [
        ["data"]
    ] * 10


async def test_leader_deletes_the_pods_of_the_former_leader_at_once(
    kube: AsyncClient, eventually: Eventually
) -> None:
    await kube.create(gated("never-started", "worker remove --root /efs -- /team/data", pool=LEADER))
    await leave(kube, "done", "Succeeded")
    async with deadline(), pool_of(kube):
        await eventually(lambda: none_left(kube))


async def test_directory_is_settled_when_no_pod_of_another_pool_can_change_it(
    kube: AsyncClient, kubelet: Kubelet
) -> None:
    kubelet.gate.clear()
    await leave(kube, "runs", "Running", arguments="worker remove --root /efs -- /team/runs")
    await kube.create(gated("aa-waits", "worker remove --root /efs -- /team/waits", pool=SOCKET.pool))
    async with deadline(), pool_of(kube) as pool:
        for path in ("/team/runs", "/team", "/team/runs/deep"):
            with pytest.raises(WorkerFailed, match="works on this directory"):
                await pool.settled(at(path))
        await pool.settled(at("/team/other"))
        await pool.settled(at("/team/runs", "fs-2"))
        await pool.settled(at("/team/waits"))
        assert await pods(kube) == ["runs"]


async def test_directory_is_not_settled_while_a_removal_goes_on_without_its_caller(
    kube: AsyncClient, kubelet: Kubelet
) -> None:
    (kubelet.root("fs-1") / "team/data").mkdir(parents=True)
    kubelet.gate.clear()
    async with deadline(), pool_of(kube) as pool:
        removing = asyncio.create_task(pool.remove(at("/team/data"), Directory(), stands))
        await kubelet.has_started_one.wait()
        removing.cancel()
        await asyncio.gather(removing, return_exceptions=True)
        with pytest.raises(WorkerFailed, match="works on this directory"):
            await pool.settled(at("/team/data"))
        kubelet.gate.set()
        while (kubelet.root("fs-1") / "team/data").exists() or await pods(kube):
            await pool._pods.changed(within_seconds=0.1)
        await pool.settled(at("/team/data"))


async def test_directory_is_settled_while_this_pool_creates_it(kube: AsyncClient, kubelet: Kubelet) -> None:
    kubelet.gate.clear()
    async with deadline(), pool_of(kube) as pool:
        making = asyncio.create_task(pool.make(at("/team/data"), PLAIN))
        await kubelet.has_started_one.wait()
        await pool.settled(at("/team/data"))
        kubelet.gate.set()
        await making


async def test_pod_mounts_the_root_with_the_driver_by_a_claim_of_its_own(
    kube: AsyncClient, kubelet: Kubelet
) -> None:
    async with deadline(), pool_of(kube, replace(OPTIONS, with_driver=True)) as pool:
        await pool.make(at("/team/data"), PLAIN)
    (pod,) = kubelet.pods
    assert pod.metadata
    assert pod.spec
    assert pod.spec.volumes
    name = name_of(pod)
    (mounted,) = pod.spec.volumes
    assert mounted.persistentVolumeClaim
    assert mounted.persistentVolumeClaim.claimName == name
    volume = (await kube.get(PersistentVolume, name)).to_dict()
    assert volume["spec"]["csi"] == {"driver": "efs.csi.aws.com", "volumeHandle": "fs-1"}
    assert volume["spec"]["mountOptions"] == ["tls", "iam=auto"]
    reference = volume["spec"]["claimRef"]
    assert (reference["namespace"], reference["name"]) == ("default", name)
    assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
    claim = (await kube.get(PersistentVolumeClaim, name, namespace="default")).to_dict()
    assert claim["spec"]["volumeName"] == name
    assert claim["spec"]["storageClassName"] == "efs-stunnel-system"
    (owner,) = claim["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Pod", name, pod.metadata.uid)


async def test_pod_mounts_the_root_of_s3_files_with_its_handle_and_options(
    kube: AsyncClient, kubelet: Kubelet
) -> None:
    async def check_stays(file_system_id: FileSystemId) -> None:
        # EFS does not know it.
        raise AwsNotFound("does not exist", field="file system", value=file_system_id)

    place = replace(at("/team/data"), kind=FileSystemKind.S3_FILES)
    (kubelet.root("fs-1") / "team/data").mkdir(parents=True)
    options = replace(OPTIONS, with_driver=True)
    async with deadline(), pool_of(kube, options, check_stays=check_stays) as pool:
        await pool.remove(place, ROOT, stands)
        await pool.empty(place.root, EmptyingTerms(seconds=60))
        await pool.measure(place.root, [place.directory], MeasuringTerms())
    assert len(kubelet.pods) == 3
    for pod in kubelet.pods:
        volume = (await kube.get(PersistentVolume, name_of(pod))).to_dict()
        assert volume["spec"]["csi"]["volumeHandle"] == "s3files:fs-1"
        # The driver refuses iam=auto there: an identity is always needed.
        assert volume["spec"]["mountOptions"] == ["tls"]
        parse_mount_flags(volume["spec"]["mountOptions"], FileSystemKind.S3_FILES)


async def test_s3_files_has_no_port_for_pods_without_the_driver(kube: AsyncClient, kubelet: Kubelet) -> None:
    place = replace(at("/team/data"), kind=FileSystemKind.S3_FILES)
    async with deadline(), pool_of(kube) as pool:
        with pytest.raises(PlatformError) as caught:
            await pool.remove(place, ROOT, stands)
    assert str(caught.value) == (
        "file system: 'fs-1' has no port, through which worker pods could mount it; install the CSI driver, "
        "and set KUBE_EFS_WORKER_MOUNTS=csi for the controller"
    )
    assert kubelet.pods == []


async def test_pod_without_its_volume_is_deleted(
    lossy: tuple[AsyncClient, _Lossy], eventually: Eventually
) -> None:
    client, transport = lossy
    transport.refuse = lambda request: (
        _refusal(403, "no volumes for you") if request.url.path.endswith("/persistentvolumes") else None
    )
    async with deadline(), pool_of(client, replace(OPTIONS, with_driver=True)) as pool:
        with pytest.raises(KubeDenied):
            await pool.children(at("/"))
        await eventually(lambda: none_left(client))


async def _first_pod(client: AsyncClient) -> Pod:
    """The pod that appears."""
    async for change in follow(client, Pod, namespace="default"):
        for pod in change.objects if isinstance(change, Listed) else [change.object]:
            return pod
    raise AssertionError


async def _write_event(
    client: AsyncClient,
    pod: Pod,
    message: str,
    *,
    kind: str = "Warning",
    scheduled_at: datetime | None = None,
) -> None:
    assert pod.metadata
    await client.create(
        Event(
            metadata=ObjectMeta(name=f"why-{secrets.token_hex(4)}", namespace="default"),
            involvedObject=ObjectReference(kind="Pod", namespace="default", uid=pod.metadata.uid),
            type=kind,
            message=message,
            eventTime=scheduled_at,
        )
    )


async def _waits_for_its_volume(transport: _Lossy, client: AsyncClient, message: str) -> None:
    """The pod that appears does not start, and the kubelet reports this reason."""
    transport.events_can_be_read.clear()
    pod = await _first_pod(client)
    await set_status(client, name_of(pod), {"phase": "Pending"})
    await _write_event(client, pod, message)
    transport.events_can_be_read.set()


DENIED = "rpc error: code = Internal desc = mount.nfs4: access denied by server while mounting 127.0.0.1:/"


async def test_denied_mount_is_reported_and_not_tried_again_at_once(
    lossy: tuple[AsyncClient, _Lossy], kube: AsyncClient, eventually: Eventually
) -> None:
    client, transport = lossy
    options = replace(OPTIONS, start_seconds=1, with_driver=True)
    async with deadline(), pool_of(client, options) as pool:
        waiting = asyncio.create_task(_waits_for_its_volume(transport, kube, DENIED))
        with pytest.raises(WorkerDenied) as caught:
            await pool.children(at("/"))
        await waiting
        assert (caught.value.field, caught.value.value) == ("file system", "fs-1")
        assert caught.value.problem == f"cannot be mounted by worker pods ({DENIED})"
        await eventually(lambda: none_left(kube))

        with capture_logs() as logs, pytest.raises(WorkerDenied):
            await pool.make(at("/data"), PLAIN)
        assert [one for one in logs if one["event"] == "worker-started"] == []


async def test_pods_that_are_denied_at_the_same_time_give_one_reason(
    lossy: tuple[AsyncClient, _Lossy], kube: AsyncClient
) -> None:
    """The texts contain the names of the pods, and each text is another event of a claim."""
    client, transport = lossy
    transport.events_can_be_read.clear()

    async def deny(number: int) -> None:
        seen: set[str] = set()
        async for change in follow(kube, Pod, namespace="default"):
            for pod in change.objects if isinstance(change, Listed) else [change.object]:
                if name_of(pod) not in seen:
                    seen.add(name_of(pod))
                    await set_status(kube, name_of(pod), {"phase": "Pending"})
                    await _write_event(kube, pod, f"{DENIED}{name_of(pod)}")
            if len(seen) == number:
                transport.events_can_be_read.set()
                return

    options = replace(OPTIONS, start_seconds=1, with_driver=True)
    async with deadline(), pool_of(client, options) as pool:
        denying = asyncio.create_task(deny(2))
        ended = await asyncio.gather(
            pool.children(at("/")),
            pool.measure(at("/"), [parse_directory("/data")], MeasuringTerms()),
            return_exceptions=True,
        )
        await denying
        with pytest.raises(WorkerDenied) as later:
            await pool.make(at("/data"), PLAIN)
    assert {str(one) for one in ended} == {str(later.value)}


async def test_file_system_without_a_root_claim_is_reported_before_the_timeout(
    kube: AsyncClient, eventually: Eventually
) -> None:
    options = replace(OPTIONS, start_seconds=0.5, timeout_seconds=600)
    async with deadline(), pool_of(kube, options) as pool:
        with pytest.raises(WorkerFailed, match="is not known to this controller") as caught:
            await pool.make(at("/data"), PLAIN)
        assert (caught.value.field, caught.value.value) == ("file system", "fs-1")
        await eventually(lambda: none_left(kube))


async def test_other_failed_mounts_are_waited_for(
    lossy: tuple[AsyncClient, _Lossy], kube: AsyncClient
) -> None:
    client, transport = lossy
    options = replace(OPTIONS, start_seconds=1, timeout_seconds=1, with_driver=True)
    async with deadline(), pool_of(client, options) as pool:
        waiting = asyncio.create_task(_waits_for_its_volume(transport, kube, "Connection timed out"))
        with pytest.raises(WorkerFailed) as caught:
            await pool.children(at("/"))
        await waiting
    assert caught.value.problem == "did not end after 2 s (Connection timed out)"


async def test_reason_why_a_pod_does_not_start_is_the_last_warning(
    lossy: tuple[AsyncClient, _Lossy], kube: AsyncClient
) -> None:
    """The pod itself is deleted by then."""
    client, transport = lossy
    transport.events_can_be_read.clear()
    impatient = replace(OPTIONS, timeout_seconds=1, start_seconds=1, with_driver=True)
    times = [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in range(3)]
    taint = "0/3 nodes are available: 3 node(s) had untolerated taint(s)"

    async def write_events() -> None:
        pod = await _first_pod(kube)
        # As the scheduler writes them, the last one first.
        await _write_event(kube, pod, taint, scheduled_at=times[1])
        await _write_event(kube, pod, "0/3 nodes have room", scheduled_at=times[0])
        await _write_event(kube, pod, "a node may come", kind="Normal", scheduled_at=times[2])
        transport.events_can_be_read.set()

    async with deadline(), pool_of(client, impatient) as pool:
        writing = asyncio.create_task(write_events())
        with pytest.raises(WorkerFailed) as caught:
            await pool.make(at("/a"), PLAIN)
        await writing
    assert caught.value.problem == f"did not end after 2 s ({taint})"


# --- copies

TERMS = CopyTerms(key="pvc-1", source=parse_directory("/old"))


def filled(kubelet: Kubelet) -> Path:
    """A source with a file; returns the root of its file system."""
    root = kubelet.root("fs-1")
    (root / "old").mkdir()
    (root / "old/file").write_text("data")
    return root


async def test_pod_copies_a_directory(kube: AsyncClient, kubelet: Kubelet, eventually: Eventually) -> None:
    root = filled(kubelet)
    async with deadline(), pool_of(kube) as pool:
        copied = await pool.copy(at("/new"), TERMS)
        assert copied.progress == CopyProgress(entries=1, copied_bytes=4)
        assert (root / "new/file").read_text() == "data"
        await eventually(lambda: none_left(kube))
        metrics = pool._metrics
        assert not pool._copy_slots
        again = await pool.copy(at("/new"), TERMS)
        assert (again.finished, again.progress) == (copied.finished, CopyProgress())
    assert metrics.copied_bytes._value.get() == 4
    assert metrics.copies.labels("succeeded")._value.get() == 2
    (pod, _) = kubelet.pods
    assert re.fullmatch(r"efs-copy-fs-1-new-[a-z0-9]{5}", name_of(pod))
    assert pod.spec
    assert pod.spec.activeDeadlineSeconds == 24 * 3600


async def test_repeated_calls_join_the_copy_that_runs(kube: AsyncClient, kubelet: Kubelet) -> None:
    filled(kubelet)
    kubelet.gate.clear()
    async with deadline(), pool_of(kube) as pool:
        first = asyncio.ensure_future(pool.copy(at("/new"), TERMS))
        await kubelet.has_started_one.wait()
        # As when the deadline of a call of csi-provisioner ends.
        first.cancel()
        second = asyncio.ensure_future(pool.copy(at("/new"), TERMS))
        await asyncio.sleep(0)
        kubelet.gate.set()
        assert (await second).progress.entries == 1
    assert len(kubelet.pods) == 1


@pytest.mark.parametrize(
    ("terms", "target", "error", "text"),
    [
        pytest.param(TERMS, "/full", WorkerRefused, "exists and is not empty", id="target with contents"),
        pytest.param(
            CopyTerms(key="a", source=parse_directory("/missing")),
            "/new",
            WorkerRefused,
            "/missing' does not exist",
            id="missing source",
        ),
        pytest.param(
            CopyTerms(key="taken", source=parse_directory("/full")),
            "/other",
            CopyDiffers,
            "'taken' is the name of a copy of another directory",
            id="taken key",
        ),
    ],
)
async def test_copy_fails_with_the_reason_of_its_pod(
    kube: AsyncClient, kubelet: Kubelet, terms: CopyTerms, target: str, error: type[WorkerFailed], text: str
) -> None:
    root = filled(kubelet)
    (root / "full").mkdir()
    (root / "full/file").touch()
    async with deadline(), pool_of(kube) as pool:
        await pool.copy(at("/other"), replace(TERMS, key="taken"))
        with pytest.raises(error, match=re.escape(text)) as caught:
            await pool.copy(at(target), terms)
    assert type(caught.value) is error


@asynccontextmanager
async def during_a_copy(
    kube: AsyncClient, kubelet: Kubelet, work: Callable[[WorkerPool], Coroutine[None, None, object]]
) -> AsyncIterator[None]:
    """That work is requested while a copy runs; both can end after the context."""
    filled(kubelet)
    kubelet.gate.clear()
    async with deadline(), pool_of(kube) as pool, asyncio.TaskGroup() as tasks:
        tasks.create_task(pool.copy(at("/new"), TERMS))
        await kubelet.has_started_one.wait()
        tasks.create_task(work(pool))
        yield
        kubelet.gate.set()


@pytest.mark.parametrize("path", ["/old", "/old/below", "/new", "/new/below"])
async def test_source_and_target_of_a_copy_are_not_removed_meanwhile(
    kube: AsyncClient, kubelet: Kubelet, path: str
) -> None:
    async with during_a_copy(kube, kubelet, lambda pool: pool.remove(at(path), ROOT, stands)):
        await pool_idle(kubelet)
    assert [arguments[1] for arguments in kubelet.arguments] == ["copy", "remove"]


@pytest.mark.parametrize("path", ["/other", "/old", "/old/below"])
async def test_claims_do_not_wait_for_a_copy(
    kube: AsyncClient, kubelet: Kubelet, eventually: Eventually, path: str
) -> None:
    async def are_two() -> bool:
        return len(kubelet.pods) == 2

    async with during_a_copy(kube, kubelet, lambda pool: pool.make(at(path), PLAIN)):
        await eventually(are_two)


async def test_two_copies_of_one_source_run_at_the_same_time(
    kube: AsyncClient, kubelet: Kubelet, eventually: Eventually
) -> None:
    async def are_two() -> bool:
        return len(kubelet.pods) == 2

    second = replace(TERMS, key="pvc-2")
    async with during_a_copy(kube, kubelet, lambda pool: pool.copy(at("/second"), second)):
        await eventually(are_two)


async def test_internal_error_of_a_copy_goes_to_its_caller_alone(
    kube: AsyncClient, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("missing")

    async with deadline(), pool_of(kube) as pool:
        with monkeypatch.context() as patched:
            patched.setattr(pool._pods, "in_the_way", broken)
            with pytest.raises(KeyError):
                await pool.copy(at("/new"), TERMS)
        await pool.make(at("/other"), PLAIN)
        assert pool._copy_tasks == set()
    assert (kubelet.root("fs-1") / "other").is_dir()


async def test_only_some_copies_of_a_file_system_run_at_the_same_time(
    kube: AsyncClient, kubelet: Kubelet, eventually: Eventually
) -> None:
    filled(kubelet)
    kubelet.gate.clear()

    async def are_four() -> bool:
        return len(kubelet.pods) == 4

    async with deadline(), pool_of(kube) as pool, asyncio.TaskGroup() as tasks:
        for number in range(6):
            tasks.create_task(pool.copy(at(f"/new-{number}"), replace(TERMS, key=f"pvc-{number}")))
        await eventually(are_four)
        await asyncio.sleep(0.3)
        assert len(kubelet.pods) == 4
        kubelet.gate.set()
    assert len(kubelet.pods) == 6


async def test_tenants_take_turns_with_their_copies(kube: AsyncClient, kubelet: Kubelet) -> None:
    filled(kubelet)
    kubelet.gate.clear()
    order: list[str] = []

    async def copy(pool: WorkerPool, tenant: str, number: int) -> None:
        terms = replace(TERMS, key=f"pvc-{tenant}-{number}")
        await pool.copy(at(f"/{tenant}-{number}"), terms, tenant=tenant)
        order.append(tenant)

    async with deadline(), pool_of(kube) as pool, asyncio.TaskGroup() as tasks:
        for number in range(9):
            tasks.create_task(copy(pool, "many", number))
        tasks.create_task(copy(pool, "few", 0))
        await kubelet.has_started_one.wait()
        kubelet.gate.set()
    # Four that ran already, and others that end together with it.
    assert order.index("few") < len(order) - 2


WAITING = at("/new-4")
WAITING_TERMS = replace(TERMS, key="pvc-4")


@asynccontextmanager
async def with_a_copy_that_waits(
    kube: AsyncClient, kubelet: Kubelet, eventually: Eventually
) -> AsyncIterator[tuple[WorkerPool, asyncio.Task[Copied]]]:
    """The pool, and a copy that waits for its turn; the others end after the context."""
    filled(kubelet)
    kubelet.gate.clear()

    async def are_four() -> bool:
        return len(kubelet.pods) == 4

    async with deadline(), pool_of(kube) as pool:
        copies = [
            asyncio.create_task(pool.copy(at(f"/new-{number}"), replace(TERMS, key=f"pvc-{number}")))
            for number in range(5)
        ]
        await eventually(are_four)
        yield pool, copies[4]
        kubelet.gate.set()
        await asyncio.gather(*copies[:4])
        # The slots are free now, so a copy that still waits would begin.
        await asyncio.gather(*pool._copy_tasks)


async def cancelled(copying: asyncio.Task[Copied]) -> None:
    """Let the caller of the copy go, as at its deadline."""
    copying.cancel()
    await asyncio.wait([copying])


async def test_copy_that_waits_for_its_turn_can_be_stopped(
    kube: AsyncClient, kubelet: Kubelet, eventually: Eventually
) -> None:
    async with with_a_copy_that_waits(kube, kubelet, eventually) as (pool, copying):
        await pool.stop_copy(WAITING)
        with pytest.raises(WorkerFailed, match="'/new-4' was stopped"):
            await copying
    assert len(kubelet.pods) == 4


async def test_copy_can_be_stopped_before_it_waits_for_its_turn(
    kube: AsyncClient, kubelet: Kubelet, eventually: Eventually
) -> None:
    async with with_a_copy_that_waits(kube, kubelet, eventually) as (pool, _):
        copying = asyncio.create_task(pool.copy(at("/new-5"), replace(TERMS, key="pvc-5")))
        await asyncio.sleep(0)
        await pool.stop_copy(at("/new-5"))
        with pytest.raises(WorkerFailed, match="'/new-5' was stopped"):
            await copying


@pytest.mark.parametrize("is_discarded", [False, True])
async def test_copy_that_waits_for_its_turn_does_not_begin_after_its_end(
    kube: AsyncClient, kubelet: Kubelet, eventually: Eventually, *, is_discarded: bool
) -> None:
    """Nobody follows it any more when it is discarded, or its directory removed, before it has its turn."""
    async with with_a_copy_that_waits(kube, kubelet, eventually) as (pool, copying):
        await cancelled(copying)
        # Pods that start from now on end, but those of the four copies do not yet.
        running, kubelet.gate = kubelet.gate, asyncio.Event()
        kubelet.gate.set()
        await (pool.discard_copy(WAITING, "pvc-4") if is_discarded else pool.remove(WAITING, ROOT, stands))
        running.set()
    assert "/new-4" not in [arguments[-1] for arguments in kubelet.arguments if "copy" in arguments]
    assert not (kubelet.root("fs-1") / "new-4").exists()


async def test_source_of_a_copy_that_waits_is_protected_until_the_end_of_the_copy(
    kube: AsyncClient, kubelet: Kubelet, eventually: Eventually
) -> None:
    reserved: list[bool] = []

    @asynccontextmanager
    async def reserve() -> AsyncIterator[None]:
        reserved.append(True)
        try:
            yield
        finally:
            reserved.append(False)

    async def refuse() -> None:
        raise NotYet("is being removed", field="volume")

    protection = Protection(reserved=reserve, confirm=refuse)
    async with with_a_copy_that_waits(kube, kubelet, eventually) as (pool, _):
        copying = asyncio.create_task(
            pool.copy(at("/new-5"), replace(TERMS, key="pvc-5"), protection=protection)
        )
        await asyncio.sleep(0)  # it begins
        await cancelled(copying)
        # Its task has begun, too.
        await pool.copy_ended(at("/new-5"))
        assert reserved == [True]
        again = asyncio.create_task(pool.copy(at("/new-5"), replace(TERMS, key="pvc-5")))
    # Checked when it has its turn, by the confirmation of the call that began it.
    with pytest.raises(NotYet, match="is being removed"):
        await again
    assert reserved == [True, False]
    assert "/new-5" not in [arguments[-1] for arguments in kubelet.arguments if "copy" in arguments]


async def test_repeated_request_joins_the_copy_that_waits_for_its_turn(
    kube: AsyncClient, kubelet: Kubelet, eventually: Eventually
) -> None:
    async with with_a_copy_that_waits(kube, kubelet, eventually) as (pool, copying):
        await cancelled(copying)
        await pool.copy_ended(WAITING)
        again = asyncio.create_task(pool.copy(WAITING, WAITING_TERMS))
    # Another pod would have found nothing to do.
    assert (await again).progress == CopyProgress(entries=1, copied_bytes=4)
    assert len(kubelet.pods) == 5
    assert (kubelet.root("fs-1") / "new-4/file").read_text() == "data"


@pytest.mark.parametrize("is_discarded", [False, True])
async def test_copy_whose_pod_is_not_created_yet_can_be_stopped(
    kube: AsyncClient, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch, *, is_discarded: bool
) -> None:
    root = filled(kubelet)
    reached, goes_on = asyncio.Event(), asyncio.Event()
    former = WorkerPods._create

    async def slow(self: WorkerPods, pod: ObservedPod) -> ObservedPod:
        if pod.order.action is Action.COPY:
            reached.set()
            await goes_on.wait()
        return await former(self, pod)

    monkeypatch.setattr(WorkerPods, "_create", slow)
    async with deadline(), pool_of(kube) as pool:
        copying = asyncio.create_task(pool.copy(at("/new"), TERMS))
        await reached.wait()
        stop = pool.discard_copy(at("/new"), TERMS.key) if is_discarded else pool.stop_copy(at("/new"))
        stopping = asyncio.create_task(stop)
        await asyncio.sleep(0.05)
        goes_on.set()
        await stopping
        with pytest.raises(WorkerFailed, match="'/new' was stopped"):
            await copying
    assert "copy" not in [arguments[1] for arguments in kubelet.arguments]
    assert not (root / "new").exists()


def _start_slowly(monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Events that tell when a pod begins to start, and that let it continue."""
    reached, goes_on = asyncio.Event(), asyncio.Event()
    former = WorkerPods._lift

    async def slow(self: WorkerPods, pod: ObservedPod) -> None:
        reached.set()
        await goes_on.wait()
        await former(self, pod)

    monkeypatch.setattr(WorkerPods, "_lift", slow)
    return reached, goes_on


async def test_copy_whose_pod_is_just_starting_is_not_discarded_before_its_end(
    kube: AsyncClient, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(kubelet)
    kubelet.gate.clear()
    reached, goes_on = _start_slowly(monkeypatch)
    async with deadline(), pool_of(kube) as pool:
        copying = asyncio.create_task(pool.copy(at("/new"), TERMS))
        await reached.wait()
        discarding = asyncio.create_task(pool.discard_copy(at("/new"), TERMS.key))
        await asyncio.sleep(0)  # it begins
        goes_on.set()
        with pytest.raises(WorkerFailed, match="works on this directory"):
            await discarding
        kubelet.gate.set()
        await copying


async def test_copy_that_does_not_end_does_not_block_those_who_discard_it(
    kube: AsyncClient, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the API server does not answer while its pod starts: the pod may then work for a day."""
    root = filled(kubelet)
    reached, goes_on = _start_slowly(monkeypatch)
    monkeypatch.setattr(worker_pool, "_STOPPED_SECONDS", 0.05)
    async with deadline(), pool_of(kube) as pool:
        copying = asyncio.create_task(pool.copy(at("/new"), TERMS))
        await reached.wait()
        with pytest.raises(WorkerFailed, match="'fs-1:/new' has not ended"):
            await pool.discard_copy(at("/new"), TERMS.key)
        goes_on.set()
        await copying
    assert (root / "new/file").read_text() == "data"


async def test_copy_waits_while_its_source_is_removed(kube: AsyncClient, kubelet: Kubelet) -> None:
    kubelet.ending = lambda _: ("Running", "")
    await leave(kube, "former", "Running", arguments="worker remove --root /efs -- /old")
    async with deadline(), pool_of(kube) as pool:
        await kubelet.has_started_one.wait()
        with pytest.raises(WorkerFailed, match="works on this directory"):
            await pool.copy(at("/new"), TERMS)


async def test_copy_of_a_former_leader_is_joined(kube: AsyncClient, kubelet: Kubelet) -> None:
    root = filled(kubelet)
    kubelet.gate.clear()
    await leave(
        kube, "former", "Running", arguments="worker copy --root /efs --key pvc-1 --source /old -- /new"
    )
    async with deadline(), pool_of(kube) as pool:
        await kubelet.has_started_one.wait()
        copying = asyncio.ensure_future(pool.copy(at("/new"), TERMS))
        await pool_idle(kubelet)
        kubelet.gate.set()
        # The second pod has nothing to do.
        assert (await copying).progress == CopyProgress()
    assert (root / "new/file").read_text() == "data"
    assert len(kubelet.pods) == 2


async def test_copy_on_a_node_that_is_off_is_reported(kube: AsyncClient, kubelet: Kubelet) -> None:
    kubelet.ending = lambda _: ("Running", "")
    arguments = "worker copy --root /efs --key pvc-1 --source /old -- /new"
    await leave(kube, "stuck", "Running", arguments=arguments)
    finalizers = {"metadata": {"finalizers": ["example.com/a-node-that-is-off"]}}
    await kube.patch(Pod, "stuck", finalizers, namespace="default")
    await kube.delete(Pod, "stuck", namespace="default")
    async with deadline(), pool_of(kube) as pool:
        with pytest.raises(WorkerFailed, match="works on this directory") as caught:
            await pool.copy(at("/new"), TERMS)
        assert "node.kubernetes.io/out-of-service" in caught.value.remedy
        # Its program may still write there.
        with pytest.raises(WorkerFailed, match="works on this directory"):
            await pool.discard_copy(at("/new"), "pvc-1")


async def test_progress_of_a_former_leaders_copy_is_known_and_it_can_be_stopped(
    kube: AsyncClient, kubelet: Kubelet, logs: Logs, eventually: Eventually
) -> None:
    kubelet.ending = lambda _: ("Running", "")
    await leave(
        kube, "former", "Running", arguments="worker copy --root /efs --key pvc-1 --source /old -- /new"
    )
    logs.texts["former"] = '{"entries": 1, "copied": 10}\n{"entries": 7, "copied": 4096}\n'
    async with deadline(), pool_of(kube) as pool:

        async def is_known() -> bool:
            return await pool.copy_progress(at("/new")) == CopyProgress(entries=7, copied_bytes=4096)

        await eventually(is_known)
        assert await pool.copy_progress(at("/other")) is None
        await pool.stop_copy(at("/other"))
        assert await pods(kube) == ["former"]
        await pool.stop_copy(at("/new"))
        await eventually(lambda: none_left(kube))


async def test_unfinished_copy_is_discarded(kube: AsyncClient, kubelet: Kubelet) -> None:
    root = kubelet.root("fs-1")
    (root / COPIES / "pvc-1/tree").mkdir(parents=True)
    (root / COPIES / "pvc-2").mkdir(parents=True)
    async with deadline(), pool_of(kube) as pool:
        await pool.discard_copy(at("/new"), "pvc-1")
    assert [path.name for path in (root / COPIES).iterdir()] == ["pvc-2"]
