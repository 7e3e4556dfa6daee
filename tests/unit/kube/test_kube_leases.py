"""Leadership on the embedded API server, with a clock that jumps."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from lightkube import AsyncClient
from lightkube.models.coordination_v1 import LeaseSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import Endpoints
from structlog.testing import capture_logs

from kube_efs.kube.lease_objects import LeaseObject, LockKind
from kube_efs.kube.leases import Leadership, LeaseTerms

ClientOf = Callable[[Callable[[httpx2.Request], Coroutine[Any, Any, httpx2.Response]]], AsyncClient]
Eventually = Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]


class Clock:
    """A monotonic clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def terms(identity: str) -> LeaseTerms:
    return LeaseTerms(namespace="default", name="lead", identity=identity, retry_period_seconds=0.01)


class Candidate(Leadership):
    """Counts its attempts."""

    attempts = 0

    async def _try(self) -> Any:
        try:
            return await super()._try()
        finally:
            self.attempts += 1


def candidate(client: AsyncClient, identity: str, clock: Clock) -> Candidate:
    return Candidate(client, terms(identity), clock)


async def spec(client: AsyncClient) -> LeaseSpec:
    found = (await client.get(Lease, "lead", namespace="default")).spec
    assert found is not None
    return found


@asynccontextmanager
async def running(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def attempts(*candidates: Candidate) -> None:
    """Wait until each of them has made an attempt that begins now or later."""
    wanted = {one: one.attempts + 2 for one in candidates}  # one may be under way
    async with asyncio.timeout(30):
        while any(one.attempts < number for one, number in wanted.items()):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_first_candidate_leads(kube: AsyncClient) -> None:
    leader = candidate(kube, "a", Clock())
    async with asyncio.timeout(30):
        await leader.acquire()
    found = await spec(kube)
    assert leader.is_leader
    # A user may have deleted the Lease of an earlier leader.
    assert leader.follows_a_crash
    assert (found.holderIdentity, found.leaseDurationSeconds, found.leaseTransitions) == ("a", 15, 0)


async def test_second_candidate_waits_from_the_last_observed_change(kube: AsyncClient) -> None:
    clock = Clock()
    first, second = candidate(kube, "a", clock), candidate(kube, "b", clock)
    await first.acquire()
    async with running(second.acquire()) as waiting:
        await attempts(second)
        clock.now += 14.9
        await attempts(second)
        assert not waiting.done()
        clock.now += 0.2
        async with asyncio.timeout(30):
            await waiting
    found = await spec(kube)
    assert (found.holderIdentity, found.leaseTransitions) == ("b", 1)


async def test_each_renewal_restarts_the_wait_of_the_second_candidate(kube: AsyncClient) -> None:
    clock = Clock()
    first, second = candidate(kube, "a", clock), candidate(kube, "b", clock)
    await first.acquire()
    async with running(second.acquire()) as waiting, running(first.keep()) as keeping:
        for _ in range(4):
            clock.now += 5
            await attempts(first, second)
            await attempts(second)
        assert not waiting.done()
        assert not keeping.done()


async def test_lease_lasts_for_the_duration_that_its_holder_wrote(kube: AsyncClient) -> None:
    clock = Clock()
    slow = Leadership(
        kube, LeaseTerms(namespace="default", name="lead", identity="a", duration_seconds=60), clock
    )
    await slow.acquire()
    second = candidate(kube, "b", clock)
    async with running(second.acquire()) as waiting:
        await attempts(second)
        clock.now += 59
        await attempts(second)
        assert not waiting.done()


async def test_restarted_leader_takes_its_own_lease_at_once(kube: AsyncClient) -> None:
    await candidate(kube, "a", Clock()).acquire()
    again = candidate(kube, "a", Clock())
    async with asyncio.timeout(30):
        await again.acquire()
    assert again.follows_a_crash
    assert (await spec(kube)).leaseTransitions == 0


async def test_released_lease_is_taken_at_once(kube: AsyncClient) -> None:
    first = candidate(kube, "a", Clock())
    await first.acquire()
    first.release_at_end()
    await first.release()
    assert not first.is_leader
    assert (await spec(kube)).holderIdentity == ""
    second = candidate(kube, "b", Clock())
    async with asyncio.timeout(30):
        await second.acquire()
    assert not second.follows_a_crash


async def test_candidate_does_not_release_the_lease_of_another(kube: AsyncClient) -> None:
    first = candidate(kube, "a", Clock())
    await first.acquire()
    await candidate(kube, "b", Clock()).release()
    assert (await spec(kube)).holderIdentity == "a"


async def test_one_of_several_concurrent_candidates_leads(kube: AsyncClient) -> None:
    clock = Clock()
    several = [candidate(kube, identity, clock) for identity in "abcde"]
    tasks = [asyncio.create_task(one.acquire()) for one in several]
    async with asyncio.timeout(30):
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    await attempts(*(one for one in several if not one.is_leader))
    assert sum(one.is_leader for one in several) == 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_lease_taken_by_another_is_lost(kube: AsyncClient) -> None:
    clock = Clock()
    leader = candidate(kube, "a", clock)
    await leader.acquire()
    async with running(leader.keep()) as keeping:
        with capture_logs() as logs:
            # Independent of its current version.
            await kube.patch(Lease, "lead", {"spec": {"holderIdentity": "b"}}, namespace="default")
            async with asyncio.timeout(30):
                await keeping
    assert not leader.is_leader
    assert (await spec(kube)).holderIdentity == "b"
    assert "leadership-lost" in [line["event"] for line in logs]


async def test_lease_that_was_deleted_under_a_leader_counts_as_that_of_a_crashed_one(
    kube: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a candidate that has lost the race for a released Lease before."""
    clock = Clock()
    former, late, faster = (candidate(kube, name, clock) for name in ("former", "late", "faster"))
    await former.acquire()
    former.release_at_end()
    await former.release()
    replace_lease = LeaseObject.replace

    async def replace_late(self: LeaseObject, lease: Lease) -> Lease:
        monkeypatch.setattr(LeaseObject, "replace", replace_lease)
        await faster.acquire()
        return await replace_lease(self, lease)

    monkeypatch.setattr(LeaseObject, "replace", replace_late)
    await late._try()
    assert faster.is_leader
    assert not faster.follows_a_crash
    assert late.follows_a_crash
    await late._try()
    await kube.delete(Lease, "lead", namespace="default")
    await late.acquire()
    assert late.follows_a_crash


async def test_deleted_lease_is_recreated(kube: AsyncClient, eventually: Eventually) -> None:
    leader = candidate(kube, "a", Clock())
    await leader.acquire()
    async with running(leader.keep()) as keeping:
        await kube.delete(Lease, "lead", namespace="default")
        await eventually(lambda: _holders(kube))
        assert await _holders(kube) == ["a"]
        assert not keeping.done()


async def _holders(client: AsyncClient) -> list[str | None]:
    return [
        lease.spec.holderIdentity if lease.spec else None
        async for lease in client.list(Lease, namespace="default")
    ]


async def test_hanging_release_delays_the_end_only_briefly(client_of: ClientOf) -> None:
    async def hang(_: httpx2.Request) -> httpx2.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with client_of(hang) as client, asyncio.timeout(4):
        with capture_logs() as logs:
            await candidate(client, "a", Clock()).release()
    assert [(line["event"], line["reason"]) for line in logs] == [("lease-not-released", "no answer in time")]


@pytest.mark.parametrize("code", [500, 409, 403])
async def test_leader_that_cannot_renew_stops_before_others_can_take_over(
    client_of: ClientOf, code: int
) -> None:
    clock = Clock()

    async def refuse(_: httpx2.Request) -> httpx2.Response:
        clock.now += 1
        await asyncio.sleep(0)
        return httpx2.Response(code, json={"kind": "Status", "code": code, "message": "no"})

    async with client_of(refuse) as client:
        leader = candidate(client, "a", clock)
        leader.is_leader = True
        async with asyncio.timeout(30):
            await leader.keep()
    assert not leader.is_leader
    assert clock.now - 1000 <= 11


async def test_hanging_renewal_ends_at_the_deadline(client_of: ClientOf) -> None:
    async def hang(_: httpx2.Request) -> httpx2.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with client_of(hang) as client:
        short = LeaseTerms(
            namespace="default",
            name="lead",
            identity="a",
            renew_deadline_seconds=0.05,
            retry_period_seconds=0.01,
        )
        async with asyncio.timeout(30):
            await Leadership(client, short, time.monotonic).keep()


async def test_hanging_renewal_leaves_time_for_another(
    kube: AsyncClient, client_of: ClientOf, eventually: Eventually
) -> None:
    requests = 0

    async def hang_once(_: httpx2.Request) -> httpx2.Response:
        nonlocal requests
        requests += 1
        if requests == 1:
            await asyncio.Event().wait()
        lease = (await kube.get(Lease, "lead", namespace="default")).to_dict()
        return httpx2.Response(200, json=lease)

    await candidate(kube, "a", Clock()).acquire()
    patient = LeaseTerms(
        namespace="default", name="lead", identity="a", renew_deadline_seconds=4, retry_period_seconds=0.01
    )
    async with (
        client_of(hang_once) as client,
        running(Leadership(client, patient, Clock()).keep()) as keeping,
    ):

        async def has_renewed() -> bool:
            return requests > 2

        await eventually(has_renewed)
        assert not keeping.done()


async def test_lease_time_starts_before_the_request(client_of: ClientOf) -> None:
    clock = Clock()

    async def answer_late(request: httpx2.Request) -> httpx2.Response:
        await asyncio.sleep(0)
        if request.method == "GET":
            return httpx2.Response(
                404, json={"kind": "Status", "code": 404, "reason": "NotFound", "message": "not found"}
            )
        clock.now += 9
        return httpx2.Response(201, json=json.loads(request.content))

    async with client_of(answer_late) as client:
        leader = candidate(client, "a", clock)
        await leader.acquire()
        clock.now += 1.1
        async with asyncio.timeout(30):
            await leader.keep()
    assert not leader.is_leader


async def test_failed_release_of_the_lease_is_only_logged(client_of: ClientOf) -> None:
    async def refuse(_: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("down")

    async with client_of(refuse) as client:
        with capture_logs() as logs:
            await candidate(client, "a", Clock()).release()
    assert [line["event"] for line in logs] == ["lease-not-released"]


async def test_all_later_leaders_know_that_requests_of_a_crashed_leader_are_possible(
    kube: AsyncClient,
) -> None:
    clock = Clock()
    leaders = [candidate(kube, name, clock) for name in "abc"]
    for leader in leaders[:2]:
        async with running(leader.acquire()) as waiting:
            if leader is not leaders[0]:
                await attempts(leader)
            clock.now += 16
            async with asyncio.timeout(30):
                await waiting
        await leader.release()
        assert leader.follows_a_crash
        assert (await spec(kube)).holderIdentity
    leaders[1].release_at_end()
    await leaders[1].release()
    await leaders[2].acquire()
    assert not leaders[2].follows_a_crash
    await leaders[2].release()
    assert not (await spec(kube)).holderIdentity


async def test_lease_left_to_expire_is_not_released(kube: AsyncClient) -> None:
    leader = candidate(kube, "a", Clock())
    await leader.acquire()
    leader.leave_to_expire()
    await leader.release()
    assert not leader.is_leader
    assert (await spec(kube)).holderIdentity == "a"


# --- a lock of the older kind


OLDER_RECORD = "control-plane.alpha.kubernetes.io/leader"


def older_candidate(client: AsyncClient, identity: str, clock: Clock) -> Candidate:
    return Candidate(client, replace(terms(identity), kind=LockKind.ENDPOINTS), clock)


async def test_endpoints_object_is_held_as_older_clients_hold_it(kube: AsyncClient) -> None:
    clock = Clock()
    first, second = older_candidate(kube, "a", clock), older_candidate(kube, "b", clock)
    async with asyncio.timeout(30):
        await first.acquire()
        lock = await kube.get(Endpoints, "lead", namespace="default")
        assert lock.metadata
        record = json.loads((lock.metadata.annotations or {})[OLDER_RECORD])
        assert (record["holderIdentity"], record["leaseDurationSeconds"]) == ("a", 15)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", record["renewTime"])
        async with running(second.acquire()) as waiting:
            await attempts(second)
            assert not waiting.done()
            first.release_at_end()
            await first.release()
            await waiting
    assert second.is_leader
    assert not second.follows_a_crash
    assert [one async for one in kube.list(Lease, namespace="default")] == []


async def test_lock_of_an_older_process_is_respected_until_it_expires(kube: AsyncClient) -> None:
    record = {
        "holderIdentity": "efs-provisioner-1_0f3b",
        "leaseDurationSeconds": 15,
        "acquireTime": "2019-05-01T10:00:00Z",
        "renewTime": "2019-05-01T10:00:02Z",
        "leaderTransitions": 3,
    }
    metadata = ObjectMeta(
        name="lead", namespace="default", annotations={OLDER_RECORD: json.dumps(record), "owner": "team"}
    )
    await kube.create(Endpoints(metadata=metadata))
    clock = Clock()
    next_one = older_candidate(kube, "b", clock)
    async with asyncio.timeout(30), running(next_one.acquire()) as waiting:
        await attempts(next_one)
        assert not waiting.done()
        clock.now += 16
        await waiting
    assert next_one.follows_a_crash
    lock = await kube.get(Endpoints, "lead", namespace="default")
    assert lock.metadata
    annotations = lock.metadata.annotations or {}
    assert annotations["owner"] == "team"
    taken = json.loads(annotations[OLDER_RECORD])
    assert (taken["holderIdentity"], taken["leaderTransitions"]) == ("b", 4)


@pytest.mark.parametrize("text", ["", "[]", "not JSON", '{"holderIdentity": 5, "leaseDurationSeconds": "x"}'])
async def test_unreadable_record_gives_way_after_the_usual_time(kube: AsyncClient, text: str) -> None:
    metadata = ObjectMeta(name="lead", namespace="default", annotations={OLDER_RECORD: text})
    await kube.create(Endpoints(metadata=metadata))
    clock = Clock()
    next_one = older_candidate(kube, "b", clock)
    async with asyncio.timeout(30), running(next_one.acquire()) as waiting:
        while not waiting.done():
            clock.now += 16
            await asyncio.sleep(0.005)
    assert next_one.is_leader


async def test_renewal_needs_one_request(client_of: ClientOf) -> None:
    methods: list[str] = []

    async def handle(request: httpx2.Request) -> httpx2.Response:
        methods.append(request.method)
        body = json.loads(request.content or "{}") or {"metadata": {"name": "lead"}, "spec": {}}
        if request.method == "PUT":
            # As the API server: only what has the current version is accepted.
            assert body["metadata"]["resourceVersion"] == str(len(methods) - 1)
        body["metadata"]["resourceVersion"] = str(len(methods))
        return httpx2.Response(200, json=body)

    leader = candidate(client_of(handle), "a", Clock())
    await leader.acquire()
    async with running(leader.keep()), asyncio.timeout(30):
        while len(methods) < 5:  # noqa: ASYNC110 - the leader sends no event
            await asyncio.sleep(0.005)
    assert methods[:5] == ["GET", *["PUT"] * 4]
