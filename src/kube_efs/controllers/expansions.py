"""Claims whose volumes must be expanded: each is handled until it has what it requests."""

import asyncio
from collections.abc import Sequence

from kube_efs.controllers.events import ProvisioningEvents
from kube_efs.controllers.queue import Controller
from kube_efs.model.claims import Claim
from kube_efs.model.efs.ids import ClaimUid
from kube_efs.model.errors import KubeEfsError
from kube_efs.provisioning.expansion import Expansions, wants_expansion
from kube_efs.telemetry.duties import Duties


class ExpansionController(Controller[ClaimUid]):
    """Expands the volumes of claims, after ``begin`` is set; use as ``async with``."""

    def __init__(
        self,
        *,
        expansions: Expansions,
        events: ProvisioningEvents,
        backoff_seconds: float,
        duties: Duties,
        begin: asyncio.Event,
    ) -> None:
        super().__init__("expansions", self._handle, duties)
        self._expansions = expansions
        self._events = events
        self._backoff_seconds = backoff_seconds
        self._begin = begin
        self._waiting: dict[ClaimUid, Claim] = {}

    def listed(self, claims: Sequence[Claim]) -> None:
        """Replace the known claims with a full list."""
        self._waiting.clear()
        for claim in claims:
            self.seen(claim)

    def seen(self, claim: Claim) -> None:
        """A claim is new or has changed."""
        if not wants_expansion(claim):
            self.gone(claim)
            return
        self._waiting[claim.uid] = claim
        self._queue.add(claim.uid)

    def gone(self, claim: Claim) -> None:
        """A claim was deleted, or has what it requests."""
        self._waiting.pop(claim.uid, None)

    async def _handle(self, uid: ClaimUid) -> float | None:
        await self._begin.wait()
        claim = self._waiting.get(uid)
        if claim is None:
            return None
        try:
            volume = await self._expansions.expand(claim)
        except KubeEfsError as error:
            self._events.not_expanded(claim, error)
            return self._backoff_seconds
        if volume is not None:
            self._events.expanded(claim, volume)
        return None
