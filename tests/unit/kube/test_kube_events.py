"""Events, written to the embedded API server."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import httpx2
import pytest
from lightkube import AsyncClient
from lightkube.resources.core_v1 import Event
from structlog.testing import capture_logs

from kube_efs.kube import events
from kube_efs.kube.events import EventRecorder, EventType, Subject

ClientOf = Callable[[Callable[[httpx2.Request], Coroutine[Any, Any, httpx2.Response]]], AsyncClient]
Eventually = Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]

CLAIM = Subject(
    api_version="v1",
    kind="PersistentVolumeClaim",
    namespace="default",
    name="data",
    uid="4a2b",
    resource_version="71",
)


def recorder(client: AsyncClient) -> EventRecorder:
    return EventRecorder(client, component="kube-efs-controller", host="pod-1")


async def written(client: AsyncClient, namespace: str = "default") -> list[Event]:
    return [event async for event in client.list(Event, namespace=namespace)]


async def test_event_names_its_object_and_its_reporter(kube: AsyncClient) -> None:
    async with recorder(kube) as events_of:
        events_of.publish(CLAIM, EventType.WARNING, "ProvisioningFailed", "no such file system")
    (event,) = await written(kube)
    body = event.to_dict()
    assert body["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": "default",
        "name": "data",
        "uid": "4a2b",
        "resourceVersion": "71",
    }
    assert {key: body[key] for key in ("type", "reason", "message", "count")} == {
        "type": "Warning",
        "reason": "ProvisioningFailed",
        "message": "no such file system",
        "count": 1,
    }
    assert body["source"] == {"component": "kube-efs-controller", "host": "pod-1"}
    assert body["firstTimestamp"] == body["lastTimestamp"]


async def test_concurrent_repetitions_are_counted(kube: AsyncClient) -> None:
    async with recorder(kube) as events_of:
        for _ in range(5):
            events_of.publish(CLAIM, EventType.NORMAL, "Provisioning", "again")
    assert [event.count for event in await written(kube)] == [5]


async def test_restarted_process_continues_counting(kube: AsyncClient) -> None:
    for _ in range(3):
        async with recorder(kube) as events_of:
            events_of.publish(CLAIM, EventType.NORMAL, "Provisioning", "again")
    assert [event.count for event in await written(kube)] == [3]


async def test_event_to_publish_once_is_not_counted_not_even_after_a_restart(kube: AsyncClient) -> None:
    for _ in range(2):
        async with recorder(kube) as events_of:
            for _ in range(3):
                events_of.publish_once(CLAIM, EventType.WARNING, "NotServed", "because")
    assert [event.count for event in await written(kube)] == [1]


async def test_expired_event_is_recreated(kube: AsyncClient, eventually: Eventually) -> None:
    async with recorder(kube) as events_of:
        events_of.publish(CLAIM, EventType.NORMAL, "Provisioning", "again")
        await eventually(lambda: written(kube))
        (event,) = await written(kube)
        assert event.metadata
        assert event.metadata.name
        await kube.delete(Event, event.metadata.name, namespace="default")
        events_of.publish(CLAIM, EventType.NORMAL, "Provisioning", "again")
    assert [event.count for event in await written(kube)] == [1]


@pytest.mark.parametrize(
    ("subject", "reason", "message"),
    [
        pytest.param(replace(CLAIM, uid="other"), "Failed", "x", id="another object"),
        pytest.param(CLAIM, "Other", "x", id="another reason"),
        pytest.param(CLAIM, "Failed", "y", id="another message"),
    ],
)
async def test_different_object_reason_or_message_is_another_event(
    kube: AsyncClient, subject: Subject, reason: str, message: str
) -> None:
    async with recorder(kube) as events_of:
        events_of.publish(CLAIM, EventType.WARNING, "Failed", "x")
        events_of.publish(subject, EventType.WARNING, reason, message)
    assert [event.count for event in await written(kube)] == [1, 1]


async def test_events_of_cluster_scoped_objects_are_in_default(kube: AsyncClient) -> None:
    volume = Subject(api_version="v1", kind="PersistentVolume", name="pv", uid="u")
    async with recorder(kube) as events_of:
        events_of.publish(volume, EventType.NORMAL, "DirectoryKept", "kept")
    (event,) = await written(kube)
    assert "namespace" not in event.involvedObject.to_dict()


async def test_long_messages_and_names_are_truncated(kube: AsyncClient) -> None:
    long = replace(CLAIM, name="a" * 199 + ".b" * 20)
    async with recorder(kube) as events_of:
        events_of.publish(long, EventType.NORMAL, "Provisioning", "x" * 2000)
    (event,) = await written(kube)
    assert event.metadata
    assert event.message == "x" * 1003 + "... (2000 characters)"
    assert (event.metadata.name or "").startswith("a" * 199 + ".")


async def test_refused_event_is_logged_and_the_next_is_written(kube: AsyncClient) -> None:
    with capture_logs() as logs:
        async with recorder(kube) as events_of:
            events_of.publish(replace(CLAIM, namespace="gone"), EventType.NORMAL, "Provisioning", "x")
            events_of.publish(CLAIM, EventType.NORMAL, "Provisioning", "y")
    assert [event.message for event in await written(kube)] == ["y"]
    (line,) = [line for line in logs if line["event"] == "event-not-written"]
    assert (line["object"], line["event_reason"]) == ("data", "Provisioning")


@pytest.mark.parametrize(("failures", "is_written"), [(1, True), (5, True), (6, False)])
async def test_failed_write_is_retried(
    client_of: ClientOf,
    monkeypatch: pytest.MonkeyPatch,
    failures: int,
    is_written: bool,
) -> None:
    monkeypatch.setattr(events, "_TRY_AGAIN_SECONDS", (0,) * 5)
    written: list[Any] = []
    left = failures

    async def answer(request: httpx2.Request) -> httpx2.Response:
        nonlocal left
        left -= 1
        if left >= 0:
            return httpx2.Response(500, json={"kind": "Status", "code": 500, "message": "a bad day"})
        written.append(json.loads(request.content))
        return httpx2.Response(201, json=written[-1])

    with capture_logs() as logs:
        async with client_of(answer) as client, recorder(client) as events_of:
            events_of.publish(CLAIM, EventType.WARNING, "ProvisioningFailed", "no such file system")
    assert [event["message"] for event in written] == (["no such file system"] if is_written else [])
    assert ("event-not-written" in [line["event"] for line in logs]) is not is_written


async def test_event_that_must_be_retried_holds_up_no_other(
    client_of: ClientOf, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    monkeypatch.setattr(events, "_TRY_AGAIN_SECONDS", (3600, 3600))
    monkeypatch.setattr(events, "_FLUSH_SECONDS", 0)
    written: list[str] = []

    async def answer(request: httpx2.Request) -> httpx2.Response:
        if "/namespaces/broken/" in request.url.path:
            return httpx2.Response(500, json={"kind": "Status", "code": 500, "message": "a webhook fails"})
        written.append(json.loads(request.content)["message"])
        return httpx2.Response(201, content=request.content)

    async def is_written() -> bool:
        return bool(written)

    with capture_logs() as logs:
        async with client_of(answer) as client, recorder(client) as events_of:
            broken = replace(CLAIM, namespace="broken")
            events_of.publish(broken, EventType.WARNING, "ProvisioningFailed", "first")
            events_of.publish(CLAIM, EventType.WARNING, "ProvisioningFailed", "second")
            await eventually(is_written)
    assert written == ["second"]
    assert [(line["event"], line["count"]) for line in logs] == [("events-dropped", 1)]


async def publish_claims(events_of: EventRecorder, count: int) -> None:
    """Both events of so many claims; the first one is being written when the last one waits."""
    claims = [replace(CLAIM, name=f"data-{number}", uid=str(number)) for number in range(count)]
    for claim in claims:
        events_of.publish(claim, EventType.NORMAL, "Provisioning", "begins")
    await asyncio.sleep(0)
    for claim in claims:
        events_of.publish(claim, EventType.NORMAL, "Succeeded", "done", ends="Provisioning")


@pytest.mark.parametrize(("claims", "left_out"), [(5, 0), (20, 19)])
async def test_burst_leaves_out_the_beginning_of_what_has_ended(
    client_of: ClientOf, monkeypatch: pytest.MonkeyPatch, claims: int, left_out: int
) -> None:
    monkeypatch.setattr(events, "_FLUSH_SECONDS", 60)
    written: list[Any] = []

    async def answer(request: httpx2.Request) -> httpx2.Response:
        written.append(json.loads(request.content))
        return httpx2.Response(201, content=request.content)

    async with client_of(answer) as client, recorder(client) as events_of:
        await publish_claims(events_of, claims)

    reasons = [event["reason"] for event in written]
    assert reasons.count("Succeeded") == claims
    assert claims - reasons.count("Provisioning") == left_out
    assert not events_of._begun
    assert not events_of._ended


async def test_event_is_not_left_out_if_its_end_was_dropped(
    client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_FLUSH_SECONDS", 60)
    monkeypatch.setattr(events, "_NORMAL_WAITING_MAX", 150)
    claims = set[str]()

    async def answer(request: httpx2.Request) -> httpx2.Response:
        claims.add(json.loads(request.content)["involvedObject"]["name"])
        return httpx2.Response(201, content=request.content)

    with capture_logs() as logs:
        async with client_of(answer) as client, recorder(client) as events_of:
            await publish_claims(events_of, 100)
    assert {line["event"] for line in logs} == {"event-dropped"}
    assert len(claims) == 100


async def test_writer_pauses_in_a_burst_for_three_times_as_long_as_it_writes(
    client_of: ClientOf, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    monkeypatch.setattr(events, "_FLUSH_SECONDS", 0)
    monkeypatch.setattr(events, "_PAUSE_MAX_SECONDS", 3600)
    clock = asyncio.get_running_loop().time
    moments: list[tuple[float, float]] = []

    async def answer(request: httpx2.Request) -> httpx2.Response:
        begun = clock()
        await asyncio.sleep(0.02)  # the time of a write
        moments.append((begun, clock()))
        return httpx2.Response(201, content=request.content)

    async def has_written_some() -> bool:
        return len(moments) > 5

    async with client_of(answer) as client, recorder(client) as events_of:
        await publish_claims(events_of, 60)
        await eventually(has_written_some)
    assert all(later - ended >= 3 * (ended - begun) for (begun, ended), (later, _) in pairwise(moments))


async def test_publish_never_waits_and_never_fails(client_of: ClientOf) -> None:
    client = client_of(_never)
    events_of = recorder(client)
    with capture_logs() as logs:
        for _ in range(20_001):
            events_of.publish(CLAIM, EventType.NORMAL, "Provisioning", "x")
    assert logs[-1] == {
        "event": "event-dropped",
        "log_level": "warning",
        "object": "data",
        "reason": "Provisioning",
    }
    with capture_logs() as logs:
        for _ in range(2_501):  # for which there is room of their own
            events_of.publish(CLAIM, EventType.WARNING, "ProvisioningFailed", "x")
    assert [line["reason"] for line in logs] == ["ProvisioningFailed"]
    await client.close()


async def test_bytes_of_a_file_name_that_are_not_utf8_are_shown(kube: AsyncClient) -> None:
    async with recorder(kube) as events_of:
        events_of.publish(CLAIM, EventType.WARNING, "TrashNotEmptied", "such as a\udcffb")
    assert [event.message for event in await written(kube)] == ["such as a\\udcffb"]


async def test_internal_error_of_an_event_is_logged_and_the_next_is_written(client_of: ClientOf) -> None:
    messages: list[str] = []

    async def answer(request: httpx2.Request) -> httpx2.Response:
        messages.append(json.loads(request.content)["message"])
        if len(messages) == 1:
            raise ZeroDivisionError
        return httpx2.Response(201, content=request.content)

    with capture_logs() as logs:
        async with client_of(answer) as client, recorder(client) as events_of:
            events_of.publish(CLAIM, EventType.NORMAL, "Provisioning", "first")
            events_of.publish(CLAIM, EventType.NORMAL, "Provisioning", "second")
    assert messages == ["first", "second"]
    assert [line["error"] for line in logs] == ["ZeroDivisionError()"]


async def test_warnings_overtake_what_waits_and_keep_their_time(client_of: ClientOf) -> None:
    written: list[Any] = []
    first_arrived, may_be_answered = asyncio.Event(), asyncio.Event()

    async def answer(request: httpx2.Request) -> httpx2.Response:
        first_arrived.set()
        await may_be_answered.wait()
        written.append(json.loads(request.content))
        return httpx2.Response(201, json=written[-1])

    async with client_of(answer) as client, recorder(client) as events_of:
        events_of.publish(CLAIM, EventType.NORMAL, "Provisioning", "first")
        await first_arrived.wait()
        events_of.publish(CLAIM, EventType.NORMAL, "ProvisioningSucceeded", "later")
        for message in ("one", "two"):
            events_of.publish(CLAIM, EventType.WARNING, "ProvisioningFailed", message)
        published = datetime.now(UTC)
        may_be_answered.set()

    assert [event["message"] for event in written] == ["first", "one", "two", "later"]
    assert all(datetime.fromisoformat(event["firstTimestamp"]) <= published for event in written)


async def test_shutdown_waits_only_briefly_for_a_hanging_server(
    client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_FLUSH_SECONDS", 0.05)
    with capture_logs() as logs:
        async with client_of(_never) as client, recorder(client) as events_of:
            # The first write is in progress; it may succeed or fail.
            for _ in range(3):
                events_of.publish(CLAIM, EventType.NORMAL, "Provisioning", "x")
    assert [(line["event"], line["count"]) for line in logs] == [("events-dropped", 2)]


async def _never(_: httpx2.Request) -> httpx2.Response:
    await asyncio.Event().wait()
    raise AssertionError


async def test_event_contains_no_part_of_a_secret(kube: AsyncClient) -> None:
    secret = "FwoGZXIvYXdzE" + "aB3dE5gH7j" * 300
    async with recorder(kube) as events_of:
        events_of.publish(
            CLAIM, EventType.WARNING, "ProvisioningFailed", f"{'x' * 990} DB_PASS={secret} {secret}"
        )
    (event,) = await written(kube)
    assert "aB3d" not in (event.message or "")
    assert len(event.message or "") <= 1024
