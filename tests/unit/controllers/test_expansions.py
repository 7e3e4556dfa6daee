"""Claims whose volumes must be expanded: when an expansion is tried, and which events are published."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from kube_efs.controllers.events import ProvisioningEvents
from kube_efs.controllers.expansions import ExpansionController
from kube_efs.model.claims import Claim, ClaimPhase
from kube_efs.model.efs.ids import ClaimUid
from kube_efs.model.errors import KubeDenied, KubeEfsError
from kube_efs.model.volumes import Volume
from kube_efs.provisioning.expansion import Expansions
from kube_efs.telemetry.duties import Duties

pytestmark = pytest.mark.virtual_time

SMALL = Claim(
    namespace="team",
    name="data",
    uid=ClaimUid("u"),
    phase=ClaimPhase.BOUND,
    volume_name="pv",
    requested_storage="1Gi",
    capacity="1Gi",
)
LARGER = replace(SMALL, requested_storage="5Gi")


class Scene(Expansions, ProvisioningEvents):
    """Records expansions and events; each expansion raises ``fault`` if it is set."""

    def __init__(self, backoff_seconds: float) -> None:
        self.lines: list[str] = []
        self.fault: KubeEfsError | None = None
        self.begin = asyncio.Event()
        self.controller = ExpansionController(
            expansions=self,
            events=self,
            backoff_seconds=backoff_seconds,
            begin=self.begin,
            duties=Duties(CollectorRegistry()),
        )

    async def expand(self, claim: Claim) -> Volume | None:
        if self.fault:
            raise self.fault
        return Volume(name=claim.volume_name, capacity=claim.requested_storage)

    def expanded(self, claim: Claim, volume: Volume) -> None:
        self.lines.append(f"{claim.key} has {volume.capacity}")

    def not_expanded(self, claim: Claim, error: KubeEfsError) -> None:
        self.lines.append(f"{claim.key} failed: {error}")

    async def rest(self) -> None:
        """Run every task until it waits."""
        for _ in range(20):
            await asyncio.sleep(0)


@asynccontextmanager
async def scene(backoff_seconds: float = 3600) -> AsyncIterator[Scene]:
    made = Scene(backoff_seconds)
    async with asyncio.timeout(10), made.controller:
        yield made


async def test_only_claims_that_request_more_are_expanded() -> None:
    async with scene() as here:
        here.begin.set()
        pending = replace(LARGER, uid=ClaimUid("p"), phase=ClaimPhase.PENDING, capacity=None)
        leaving = replace(LARGER, uid=ClaimUid("l"), deleting=True)
        here.controller.listed([SMALL, pending, leaving])
        await here.rest()
        assert here.lines == []
        here.controller.seen(LARGER)
        await here.rest()
        assert here.lines == ["team/data has 5Gi"]


async def test_expansion_waits_until_claims_are_served() -> None:
    async with scene() as here:
        here.controller.listed([LARGER])
        await here.rest()
        assert here.lines == []
        here.begin.set()
        await here.rest()
        assert here.lines == ["team/data has 5Gi"]


async def test_claim_that_was_deleted_meanwhile_is_not_expanded() -> None:
    async with scene() as here:
        here.controller.seen(LARGER)
        here.controller.gone(LARGER)
        here.begin.set()
        await here.rest()
        assert here.lines == []


async def test_failed_expansion_is_reported_and_repeated() -> None:
    async with scene(backoff_seconds=1) as here:
        here.begin.set()
        here.fault = KubeDenied("answered 403", field="status of claim team/data", remedy="check the roles")
        here.controller.seen(LARGER)
        await here.rest()
        assert here.lines == ["team/data failed: status of claim team/data: answered 403; check the roles"]
        here.fault = None
        await asyncio.sleep(1)
        assert here.lines[1:] == ["team/data has 5Gi"]
