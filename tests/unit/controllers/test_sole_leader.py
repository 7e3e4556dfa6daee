"""A controller beside another installation, on the embedded API server with a clock that jumps."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
from lightkube import AsyncClient
from lightkube.models.coordination_v1 import LeaseSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import Event, Namespace
from structlog.testing import capture_logs

from kube_efs.controllers.sole_leader import SoleLeader
from kube_efs.kube.events import CONTROLLER, EventRecorder
from kube_efs.kube.leases import SERVES, Leadership, LeaseTerms
from kube_efs.model.names import NameSet
from kube_efs.settings.controller import DEFAULT_LEASE, DEFAULT_PROVISIONER

Eventually = Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]

OURS, OTHER = NameSet.KUBE_EFS.names.namespace, NameSet.OPENSHIFT_EFS_STUNNEL.names.namespace
DURATION_SECONDS = 15.0
REFUSED = "leadership-refused"


class Clock:
    """A monotonic clock that the test moves; ``read`` is set when the candidate looks at it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.read = asyncio.Event()

    def __call__(self) -> float:
        self.read.set()
        return self.now


def terms(namespace: str, *serves: str) -> LeaseTerms:
    return LeaseTerms(
        namespace=namespace,
        name=DEFAULT_LEASE,
        identity=f"{namespace}-0",
        duration_seconds=DURATION_SECONDS,
        retry_period_seconds=0.01,
        serves=frozenset(serves or (DEFAULT_PROVISIONER,)),
    )


class Candidate:
    """A controller that waits to lead, until the end of the context."""

    def __init__(self, client: AsyncClient, of: LeaseTerms) -> None:
        self.clock = Clock()
        self.leadership = Leadership(client, of, self.clock)
        self._client = client
        self._terms = of
        self.leads = False

    async def run(self) -> None:
        async with EventRecorder(self._client, component=CONTROLLER) as recorder:
            sole = SoleLeader(self._client, self.leadership, self._terms, recorder, self.clock)
            await sole.acquire()
            self.leads = True
            await self.leadership.keep()

    async def looks_again(self) -> None:
        """Wait until it has looked at the other Leases several more times."""
        async with asyncio.timeout(10):
            for _ in range(5):
                self.clock.read.clear()
                await self.clock.read.wait()


@asynccontextmanager
async def running(candidate: Candidate) -> AsyncIterator[Candidate]:
    task = asyncio.create_task(candidate.run())
    try:
        yield candidate
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def installs(kube: AsyncClient, namespace: str) -> None:
    await kube.create(Namespace(metadata=ObjectMeta(name=namespace)))


async def holds(kube: AsyncClient, serves: str | None = DEFAULT_PROVISIONER, namespace: str = OTHER) -> None:
    """Create the Lease of a leader of the other installation."""
    await installs(kube, namespace)
    annotations = None if serves is None else {SERVES: serves}
    now = datetime.now(UTC)
    spec = LeaseSpec(holderIdentity="efs-manager-0", leaseDurationSeconds=15, renewTime=now, acquireTime=now)
    metadata = ObjectMeta(name=DEFAULT_LEASE, namespace=namespace, annotations=annotations)
    await kube.create(Lease(metadata=metadata, spec=spec))


async def changes(kube: AsyncClient, **spec: Any) -> None:
    patch = {"spec": {"renewTime": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}", **spec}}
    await kube.patch(Lease, DEFAULT_LEASE, patch, namespace=OTHER)


async def own_lease(kube: AsyncClient) -> Lease:
    return await kube.get(Lease, DEFAULT_LEASE, namespace=OURS)


async def refusals(kube: AsyncClient) -> list[Event]:
    return [one async for one in kube.list(Event, namespace=OURS) if one.reason == "NotLeading"]


async def test_only_installation_leads_and_says_what_it_serves(
    kube: AsyncClient, eventually: Eventually
) -> None:
    await installs(kube, OURS)
    async with running(Candidate(kube, terms(OURS, "b.example/efs", "a.example/efs"))) as ours:
        await eventually(lambda: _leads(ours))
    lease = await own_lease(kube)
    assert lease.metadata
    assert lease.metadata.annotations == {SERVES: "a.example/efs b.example/efs"}


async def _leads(candidate: Candidate) -> bool:
    return candidate.leads


@pytest.mark.parametrize("serves", [DEFAULT_PROVISIONER, f"x.example/efs {DEFAULT_PROVISIONER}", None])
async def test_candidate_waits_while_another_installation_renews_its_lease(
    kube: AsyncClient, eventually: Eventually, serves: str | None
) -> None:
    await installs(kube, OURS)
    # The last leader of its own Lease ended in order.
    metadata = ObjectMeta(name=DEFAULT_LEASE, namespace=OURS)
    await kube.create(Lease(metadata=metadata, spec=LeaseSpec(holderIdentity="")))
    await holds(kube, serves)
    with capture_logs() as logs:
        async with running(Candidate(kube, terms(OURS))) as ours:
            for _ in range(4):
                await ours.looks_again()
                ours.clock.now += 2 * DURATION_SECONDS - 1
                await changes(kube)
            await ours.looks_again()
            assert not ours.leads
            (event,) = await refusals(kube)
            assert event.message is not None
            assert f"the leader of the Lease {OTHER}/kube-efs-controller " in event.message
            is_earlier = "is of an earlier version, and may serve" in event.message
            assert is_earlier is (serves is None)
            assert "gnuthought.com/efs-stunnel, too" in event.message
            assert "remove one of the two installations" in event.message
            # Its own Lease says nothing that another candidate would wait for.
            own = await own_lease(kube)
            assert own.metadata
            assert own.metadata.annotations == {SERVES: ""}

            # The other one is removed; a standby of it would have taken its Lease.
            await changes(kube, holderIdentity="", leaseDurationSeconds=1)
            await ours.looks_again()
            assert not ours.leads
            ours.clock.now += 2 * DURATION_SECONDS + 1
            await eventually(lambda: _leads(ours))
            # Nobody knows how the other one ended.
            assert ours.leadership.follows_a_crash
    assert [one["event"] for one in logs].count(REFUSED) == 1


async def test_lease_of_a_leader_can_be_deleted_and_come_back(
    kube: AsyncClient, eventually: Eventually
) -> None:
    await installs(kube, OURS)
    await holds(kube)
    async with running(Candidate(kube, terms(OURS))) as ours:
        await ours.looks_again()
        await changes(kube)
        await ours.looks_again()
        await kube.delete(Lease, DEFAULT_LEASE, namespace=OTHER)
        await ours.looks_again()
        assert not ours.leads
        ours.clock.now += 2 * DURATION_SECONDS + 1
        await eventually(lambda: _leads(ours))


async def test_lease_that_a_removed_installation_left_is_outlasted_in_silence(
    kube: AsyncClient, eventually: Eventually
) -> None:
    await installs(kube, OURS)
    await holds(kube)
    with capture_logs() as logs:
        async with running(Candidate(kube, terms(OURS))) as ours:
            await ours.looks_again()
            assert not ours.leads
            ours.clock.now += 2 * DURATION_SECONDS + 1
            await eventually(lambda: _leads(ours))
    assert REFUSED not in {one["event"] for one in logs}
    assert await refusals(kube) == []


async def test_lease_that_was_released_before_delays_nothing(
    kube: AsyncClient, eventually: Eventually
) -> None:
    await installs(kube, OURS)
    await holds(kube)
    await changes(kube, holderIdentity="")
    async with running(Candidate(kube, terms(OURS))) as ours:
        await eventually(lambda: _leads(ours))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("example.com/efs", DEFAULT_PROVISIONER), (DEFAULT_PROVISIONER, ""), ("example.com/efs", None)],
)
async def test_controllers_of_different_provisioners_lead_at_the_same_time(
    kube: AsyncClient, eventually: Eventually, ours: str, theirs: str | None
) -> None:
    await installs(kube, OURS)
    await holds(kube, theirs)
    async with running(Candidate(kube, terms(OURS, ours))) as candidate:
        await eventually(lambda: _leads(candidate))


async def test_tenant_with_such_a_lease_keeps_nobody_from_leading(
    kube: AsyncClient, eventually: Eventually
) -> None:
    await installs(kube, OURS)
    await holds(kube, namespace="tenant")
    async with running(Candidate(kube, terms(OURS))) as ours:
        await eventually(lambda: _leads(ours))


async def test_candidates_that_start_at_the_same_moment_never_lead_together(
    kube: AsyncClient, eventually: Eventually
) -> None:
    for namespace in (OURS, OTHER):
        await installs(kube, namespace)
    for _ in range(10):
        pair = [Candidate(kube, terms(namespace)) for namespace in (OURS, OTHER)]
        async with running(pair[0]), running(pair[1]):

            async def one_leads(pair: list[Candidate] = pair) -> bool:
                return any(one.leads for one in pair)

            await eventually(one_leads)
            for one in pair:
                if not one.leads:
                    await one.looks_again()
            assert [one.leads for one in pair].count(True) == 1
        for namespace in (OURS, OTHER):
            await kube.delete(Lease, DEFAULT_LEASE, namespace=namespace)


def refused(code: int) -> httpx2.Response:
    return httpx2.Response(code, json={"kind": "Status", "code": code, "message": "leases is forbidden"})


async def test_controller_without_the_permission_leads_as_before_and_says_so_once(
    client_of: Callable[[Any], AsyncClient], kube: AsyncClient
) -> None:
    async def answer(_: httpx2.Request) -> httpx2.Response:
        clock.now += 1
        return refused(403)

    await installs(kube, OURS)
    of = terms(OURS)
    clock = Clock()
    began = clock.now
    with capture_logs() as logs:
        async with EventRecorder(kube, component=CONTROLLER) as recorder, asyncio.timeout(10):
            leadership = Leadership(kube, of, clock)
            await SoleLeader(client_of(answer), leadership, of, recorder, clock).acquire()
    assert leadership.is_leader
    # An API server that has just started denies such calls, too.
    assert clock.now >= began + 2 * DURATION_SECONDS
    unknown = [one for one in logs if one["event"] == "other-installations-unknown"]
    assert len(unknown) == 1
    assert "apply the ClusterRole of this version" in unknown[0]["remedy"]


@pytest.mark.parametrize("code", [401, 403])
async def test_denial_after_an_answer_does_not_let_a_candidate_lead(
    client_of: Callable[[Any], AsyncClient], kube: AsyncClient, code: int
) -> None:
    is_denied, denials, denied_often = False, 0, asyncio.Event()

    async def answer(request: httpx2.Request) -> httpx2.Response:
        nonlocal denials
        if not is_denied:
            read.set()
            namespace = request.url.path.split("/")[5]
            if namespace != OTHER:
                return httpx2.Response(
                    404, json={"kind": "Status", "code": 404, "reason": "NotFound", "message": "not found"}
                )
            spec = {"holderIdentity": "efs-manager-0", "leaseDurationSeconds": 15}
            return httpx2.Response(200, json={"metadata": {"name": DEFAULT_LEASE}, "spec": spec})
        clock.now += 1
        denials += 1
        if denials > 5 * DURATION_SECONDS:
            denied_often.set()
        return refused(code)

    await installs(kube, OURS)
    of, clock, read = terms(OURS), Clock(), asyncio.Event()
    leadership = Leadership(kube, of, clock)
    async with EventRecorder(kube, component=CONTROLLER) as recorder, asyncio.timeout(10):
        acquiring = asyncio.create_task(
            SoleLeader(client_of(answer), leadership, of, recorder, clock).acquire()
        )
        await read.wait()
        is_denied = True
        await denied_often.wait()
        assert not acquiring.done()
        acquiring.cancel()
        await asyncio.gather(acquiring, return_exceptions=True)


async def test_candidate_that_cannot_read_the_other_leases_waits(
    client_of: Callable[[Any], AsyncClient], kube: AsyncClient, eventually: Eventually
) -> None:
    is_down = True

    async def answer(_: httpx2.Request) -> httpx2.Response:
        if is_down:
            return httpx2.Response(500, json={"kind": "Status", "code": 500, "message": "etcd"})
        return httpx2.Response(
            404, json={"kind": "Status", "code": 404, "reason": "NotFound", "message": "not found"}
        )

    await installs(kube, OURS)
    of, clock = terms(OURS), Clock()
    leadership = Leadership(kube, of, clock)
    async with EventRecorder(kube, component=CONTROLLER) as recorder:
        acquiring = asyncio.create_task(
            SoleLeader(client_of(answer), leadership, of, recorder, clock).acquire()
        )

        async def withdrawn() -> bool:
            leases = [one async for one in kube.list(Lease, namespace=OURS)]
            return any((one.metadata and one.metadata.annotations) == {SERVES: ""} for one in leases)

        await eventually(withdrawn)
        assert not leadership.is_leader
        is_down = False
        async with asyncio.timeout(10):
            await acquiring
    assert leadership.is_leader
