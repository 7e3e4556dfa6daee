"""Leads only while no other installation of kube-efs serves the same provisioners.

Two of them would choose different ports for a file system, and their tunnels would use the same ports of the
nodes. A cluster gets a second one by other names, whose namespace has its own Lease.

A Lease says what its holder serves. A candidate first takes its own Lease, and then reads those in the
namespaces of the other names: of two candidates at the same moment, at least one sees that the other holds
its Lease. If one of them is held, the candidate gives its own back, and waits. Other namespaces are not read:
a tenant with a Lease of that name could keep every controller from leading.

A Lease counts as held until it has not been renewed for two of its durations; a standby would have taken it
by then. The time is that of this process since it saw the last change. It never compares the clocks of two
machines. A candidate that has waited for another installation cannot know how that one ended, so it expects
late requests, as after a crash.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import structlog
from lightkube import AsyncClient
from lightkube.models.coordination_v1 import LeaseSpec
from lightkube.resources.coordination_v1 import Lease

from kube_efs.kube.errors import translated
from kube_efs.kube.events import EventRecorder, EventType, Subject
from kube_efs.kube.lease_objects import LockKind
from kube_efs.kube.leases import SERVES, Leadership, LeaseTerms
from kube_efs.model.errors import KubeDenied, KubeError, KubeNotFound
from kube_efs.model.names import NameSet
from kube_efs.model.volumes import DRIVER
from kube_efs.settings.controller import DEFAULT_LEASE, DEFAULT_PROVISIONER

log = structlog.get_logger(__name__)

# Among what a Lease serves: the tunnels of two installations use the same ports of the nodes, whatever the
# names of their provisioners are.
TUNNELS: Final = "tunnels"
# Controllers of versions whose Leases do not say what they serve, with the usual settings.
_USUALLY_SERVED: Final = frozenset({DEFAULT_PROVISIONER, DRIVER, TUNNELS})
_QUIET_DURATIONS: Final = 2
# More than any usual duration. With a longer one, a leftover Lease could stop this installation indefinitely.
_LONGEST_DURATION_SECONDS: Final = 300.0
# Candidates that have seen each other must not try again at the same moment.
_LONGEST_PAUSE_PERIODS: Final = 4
_LONGEST_PAUSE_SECONDS: Final = 8.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """The state of a Lease since the last change, and whether its holder has renewed it since the start."""

    renewed: datetime | None
    is_held: bool
    at: float
    is_live: bool


class SoleLeader:
    """Acquires a Lease like ``Leadership``, when no other installation serves one of its provisioners."""

    def __init__(
        self,
        client: AsyncClient,
        leadership: Leadership,
        terms: LeaseTerms,
        recorder: EventRecorder,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._leadership = leadership
        self._terms = terms
        self._recorder = recorder
        self._clock = clock
        self._seen: dict[str, _Seen] = {}
        self._told: set[str] = set()
        self._has_read = False
        self._denied_since: float | None = None

    async def acquire(self) -> None:
        """Wait until this candidate leads, and is the only one in the cluster that serves its provisioners.

        Without the permission to get the other Leases, and with a lock of the older kind, it leads beside
        others.
        """
        has_waited = False
        while True:
            await self._leadership.acquire()
            is_alone = False
            try:
                is_alone = not await self._has_others()
            finally:
                # Also after an error or a cancellation: others would wait for the Lease to expire.
                if not is_alone:
                    await self._leadership.withdraw()
            if is_alone:
                if has_waited:
                    self._leadership.expect_late_requests()
                return
            has_waited = True
            while not is_alone:
                await asyncio.sleep(self._terms.retry_period_seconds)
                is_alone = not await self._has_others()
            longest = min(_LONGEST_PAUSE_PERIODS * self._terms.retry_period_seconds, _LONGEST_PAUSE_SECONDS)
            await asyncio.sleep(random.uniform(0.0, longest))  # noqa: S311

    async def _has_others(self) -> bool:
        """Whether another installation holds a Lease; also if the API server does not answer."""
        if self._terms.kind is not LockKind.LEASE:
            return False
        try:
            async with asyncio.timeout(self._terms.renew_deadline_seconds / 2):
                leases = await self._read()
        except KubeDenied as error:
            return not self._lacks_permission(error)
        except (KubeError, TimeoutError) as error:
            log.warning("other-installations-unknown", reason=str(error) or "no answer in time")
            return True
        self._has_read, self._denied_since = True, None
        others = {namespace: lease for namespace, lease in leases.items() if self._shared_with(lease)}
        # A leader creates its Lease again if somebody has deleted it.
        deleted = {namespace: Lease() for namespace in self._seen if namespace not in leases}
        # Each one is checked, so that their times begin at the same moment.
        held = [
            namespace for namespace, lease in (others | deleted).items() if self._is_held(namespace, lease)
        ]
        for namespace in held:
            if self._seen[namespace].is_live and namespace in others:
                await self._tell(namespace, others[namespace])
        return bool(held)

    def _lacks_permission(self, error: KubeDenied) -> bool:
        """Whether the role of this controller is of an earlier version.

        An API server that has just started also denies calls, for some seconds. So a call that was ever
        allowed does not count, nor a denial that has just begun.
        """
        now = self._clock()
        since = self._denied_since
        if since is None:
            self._denied_since = since = now
            log.warning(
                "other-installations-unknown",
                reason=str(error),
                remedy="apply the ClusterRole of this version; meanwhile, check that there is no other one",
            )
        return not self._has_read and now - since >= _QUIET_DURATIONS * self._terms.duration_seconds

    async def _read(self) -> dict[str, Lease]:
        """The Leases of other controllers, by their namespaces."""
        found: dict[str, Lease] = {}
        own = (self._terms.namespace, self._terms.name)
        for namespace in sorted({self._terms.namespace, *(one.names.namespace for one in NameSet)}):
            if (namespace, DEFAULT_LEASE) != own:
                with suppress(KubeNotFound):
                    found[namespace] = await self._lease(namespace, DEFAULT_LEASE)
        return found

    async def _lease(self, namespace: str, name: str) -> Lease:
        with translated(f"lease {namespace}/{name}"):
            return await self._client.get(Lease, name, namespace=namespace)

    def _shared_with(self, lease: Lease) -> frozenset[str]:
        """The provisioners that both serve."""
        said = ((lease.metadata and lease.metadata.annotations) or {}).get(SERVES)
        served = _USUALLY_SERVED if said is None else frozenset(said.split())
        return served & self._terms.serves

    def _is_held(self, namespace: str, lease: Lease) -> bool:
        spec, now = lease.spec or LeaseSpec(), self._clock()
        is_held = bool(spec.holderIdentity)
        seen = self._seen.get(namespace)
        if seen is None or (spec.renewTime, is_held) != (seen.renewed, seen.is_held):
            is_live = seen is not None and (is_held or seen.is_live)
            if seen is None and is_held:
                log.info("other-lease-checked", lease=f"{namespace}/{DEFAULT_LEASE}")
            self._seen[namespace] = seen = _Seen(spec.renewTime, is_held, now, is_live)
        quiet_seconds = _QUIET_DURATIONS * max(
            self._terms.duration_seconds,
            min(float(spec.leaseDurationSeconds or 0), _LONGEST_DURATION_SECONDS),
        )
        return (is_held or seen.is_live) and now - seen.at <= quiet_seconds

    async def _tell(self, namespace: str, lease: Lease) -> None:
        """Say once that this candidate waits for another installation, and what to do."""
        if namespace in self._told:
            return
        served = ", ".join(sorted(self._shared_with(lease)))
        holder = f"the leader of the Lease {namespace}/{DEFAULT_LEASE}"
        remedy = (
            "remove one of the two installations; if that is the other one, delete its worker pods with its "
            f"controller (kubectl delete pods --namespace {namespace} --selector component=efs-worker), and "
            "this one continues"
        )
        if SERVES in ((lease.metadata and lease.metadata.annotations) or {}):
            reason = f"{holder} serves {served}, too"
        else:
            reason = f"{holder} is of an earlier version, and may serve {served}, too"
            remedy = f"upgrade the other installation, or {remedy}"
        try:
            own = await self._lease(self._terms.namespace, self._terms.name)
        except KubeError as error:
            log.info("event-not-written", reason=str(error))
            return
        self._told.add(namespace)
        log.error("leadership-refused", lease=self._terms.name, reason=reason, remedy=remedy)
        subject = Subject(
            api_version="coordination.k8s.io/v1",
            kind="Lease",
            namespace=self._terms.namespace,
            name=self._terms.name,
            uid=(own.metadata and own.metadata.uid) or "",
        )
        message = f"This installation of kube-efs does nothing, because {reason}. To do: {remedy}."
        self._recorder.publish_once(subject, EventType.WARNING, "NotLeading", message)
