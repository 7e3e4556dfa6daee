"""The queue of SharedVolumes after failed steps, and the reports to users."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest
from lightkube import AsyncClient
from lightkube.models.core_v1 import PersistentVolumeClaimSpec, VolumeResourceRequirements
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, PersistentVolumeClaim
from lightkube.types import PatchType
from prometheus_client import CollectorRegistry
from tests.unit.controllers.events import Events
from tests.unit.kube.shared_volume_definition import define

from kube_efs.controllers.shared_volume_events import SharedVolumeEvents
from kube_efs.controllers.shared_volumes import (
    SharedVolumeController,
    _watch_claims,
    _watch_shared_volumes,
    watch_limits,
)
from kube_efs.kube.events import EventRecorder
from kube_efs.kube.shared_volume_store import SharedVolumeStore
from kube_efs.kube.shared_volumes import SharedVolumeResource
from kube_efs.model.claims import Claim, ClaimPhase
from kube_efs.model.efs.ids import ClaimUid
from kube_efs.model.errors import KubeConflict, KubeDenied, KubeInvalid, KubeUnavailable
from kube_efs.model.shared_volumes.limits import ANNOTATION, Allowance, Limits
from kube_efs.model.shared_volumes.shared_volume import (
    FINALIZER,
    OWNED,
    MarkedClaim,
    MarkedVolume,
    Owner,
    SharedVolume,
    SharedVolumePhase,
    SharedVolumeSource,
    Status,
    marks_of,
)
from kube_efs.model.volumes import ClaimReference, CsiSource, Volume
from kube_efs.provisioning.shared_volumes import SharedVolumeSteps
from kube_efs.telemetry.duties import Duties
from kube_efs.telemetry.metrics import SharedVolumeMetrics

Eventually = Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]

OWNER = Owner(namespace="proj2", name="sv1")
REAL = Owner(namespace="default", name="sv1")
SOURCE = SharedVolumeSource(file_system_id="fs-1234cdef", access_point_id="fsap-0123456789abcdef")
OTHER = replace(SOURCE, access_point_id="fsap-fedcba9876543210")
NEW = SharedVolume(owner=OWNER, uid="u", generation=1, source=SOURCE)


class Api(SharedVolumeStore):
    """The objects of the cluster; each write raises the next error of its name in ``faults``."""

    def __init__(self) -> None:
        self.shared: SharedVolume | None = NEW
        self.there: MarkedVolume | None = None
        self.claimed: MarkedClaim | None = None
        self.faults: dict[str, list[Exception]] = {}
        self.writes: list[str] = []
        self.allowed: str | None = None
        self.used_by = ("worker",)
        self.looked = 0
        self.by_owner: Counter[Owner] = Counter()

    def _write(self, name: str) -> None:
        if self.faults.get(name):
            raise self.faults[name].pop(0)
        self.writes.append(name)

    def _changed(self, shared: SharedVolume) -> SharedVolume:
        self.shared = shared
        return shared

    async def get(self, owner: Owner) -> SharedVolume | None:
        self.looked += 1
        self.by_owner[owner] += 1
        if self.faults.get("get"):
            raise self.faults["get"].pop(0)
        return self.shared and replace(self.shared, owner=owner)

    async def volume(self, owner: Owner) -> MarkedVolume | None:
        if self.faults.get("volume"):
            raise self.faults["volume"].pop(0)
        return self.there

    async def claim(self, owner: Owner) -> MarkedClaim | None:
        return self.claimed

    async def annotation(self, namespace: str, key: str) -> str | None:
        return self.allowed

    async def users(self, owner: Owner) -> tuple[str, ...]:
        if self.faults.get("users"):
            raise self.faults["users"].pop(0)
        return self.used_by

    async def hold(self, shared: SharedVolume) -> SharedVolume:
        self._write("hold")
        return self._changed(replace(shared, finalizers=(FINALIZER,)))

    async def release(self, shared: SharedVolume) -> None:
        self._write("release")
        self.shared = None

    async def restore(self, shared: SharedVolume, source: SharedVolumeSource) -> SharedVolume:
        self._write("restore")
        return self._changed(replace(shared, source=source))

    async def write_status(self, shared: SharedVolume, status: Status) -> SharedVolume:
        self._write(f"status {status.phase}")
        return self._changed(replace(shared, status=status))

    async def make_volume(self, shared: SharedVolume, claim: MarkedClaim | None) -> MarkedVolume:
        self._write("make_volume")
        reference = ClaimReference(namespace=OWNER.namespace, name=OWNER.claim_name)
        volume = Volume(name=OWNER.volume_name, csi=CsiSource(handle=shared.source.handle), claim=reference)
        self.there = MarkedVolume(volume=volume, marks=marks_of(OWNER))
        return self.there

    async def make_claim(self, shared: SharedVolume) -> MarkedClaim:
        self._write("make_claim")
        self.claimed = _claim(ClaimPhase.PENDING)
        return self.claimed

    async def remove_volume(self, volume: MarkedVolume) -> None:
        self._write("remove_volume")
        self.there = None

    async def remove_claim(self, claim: MarkedClaim) -> None:
        self._write("remove_claim")
        self.claimed = replace(claim, claim=replace(claim.claim, deleting=True))


def _claim(phase: ClaimPhase) -> MarkedClaim:
    claim = Claim(
        namespace=OWNER.namespace,
        name=OWNER.claim_name,
        uid=ClaimUid("c"),
        phase=phase,
        volume_name=OWNER.volume_name,
    )
    return MarkedClaim(claim=claim, marks=marks_of(OWNER))


class Scene:
    def __init__(self, backoff_seconds: float, limits: Limits) -> None:
        self.api, self.events, self.registry = Api(), Events(), CollectorRegistry()
        events = SharedVolumeEvents(cast("EventRecorder", self.events), SharedVolumeMetrics(self.registry))
        self.controller = SharedVolumeController(
            self.api,
            SharedVolumeSteps(self.api, limits),
            events,
            backoff_seconds=backoff_seconds,
            duties=Duties(self.registry),
        )

    @property
    def status(self) -> Status:
        assert self.api.shared
        return self.api.shared.status

    async def until(self, is_so: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not is_so():  # noqa: ASYNC110 - asked from outside
                await asyncio.sleep(0.01)

    async def is_in(self, phase: SharedVolumePhase) -> Status:
        await self.until(lambda: self.api.shared and self.status.phase is phase)
        return self.status

    def sample(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@asynccontextmanager
async def scene(*, backoff_seconds: float = 3600, limits: Limits | None = None) -> AsyncIterator[Scene]:
    made = Scene(backoff_seconds, limits or Limits())
    async with made.controller:
        yield made


READY, FAILED = SharedVolumePhase.READY, SharedVolumePhase.FAILED
IN_ORDER = ["hold", "status Pending", "make_volume", "make_claim", "status Ready"]


async def test_new_shared_volume_is_served_with_five_writes() -> None:
    async with scene() as one:
        one.controller.seen(OWNER)
        assert (await one.is_in(READY)).claim_name == "pvc-sv1"
        assert one.api.writes == IN_ORDER
        assert one.events.told == [
            "Normal Created Created PersistentVolume pv-proj2-sv1",
            "Normal Created Created PersistentVolumeClaim pvc-sv1",
            "Normal Ready Claim pvc-sv1 uses access point fsap-0123456789abcdef of fs-1234cdef",
        ]
        assert one.sample("kube_efs_shared_volumes", phase="Ready") == 1
        assert one.sample("sharedvolume_info", namespace="proj2", sharedvolume="sv1") == 1


async def test_served_shared_volume_costs_no_write() -> None:
    async with scene() as one:
        one.controller.seen(OWNER)
        await one.is_in(READY)
        for look in (one.controller.reconcile_all, lambda: one.controller.touched(OWNER)):
            look()
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        assert one.api.writes == IN_ORDER


@pytest.mark.parametrize("written", ["hold", "status Pending", "make_volume", "make_claim"])
async def test_concurrent_change_causes_another_reconcile(written: str) -> None:
    async with scene() as one:
        one.api.faults[written] = [KubeConflict("has changed")]
        one.controller.seen(OWNER)
        await one.is_in(READY)
        assert one.api.writes == IN_ORDER
        assert not [text for text in one.events.told if text.startswith("Warning")]


async def test_refusal_of_the_api_server_is_reported_and_retried() -> None:
    async with scene(backoff_seconds=0.05) as one:
        one.api.faults["make_claim"] = [KubeDenied("exceeded quota: 0"), KubeDenied("exceeded quota: 0")]
        one.controller.seen(OWNER)
        await one.until(lambda: "Warning Failed exceeded quota: 0" in one.events.told)
        assert (await one.is_in(READY)).message == ""
        assert one.events.told.count("Warning Failed exceeded quota: 0") == 1
        assert one.sample("kube_efs_shared_volumes", phase="Failed") == 0


@pytest.mark.parametrize("written", ["get", "status Pending", "status Ready"])
async def test_request_is_retried_while_the_api_server_is_unavailable(written: str) -> None:
    async with scene(backoff_seconds=0.05) as one:
        one.api.faults[written] = [KubeUnavailable("is away")]
        one.controller.seen(OWNER)
        await one.is_in(READY)


async def test_edit_is_undone_with_an_event() -> None:
    async with scene() as one:
        one.controller.seen(OWNER)
        await one.is_in(READY)
        assert one.api.shared
        one.api.shared = replace(one.api.shared, source=OTHER)
        one.controller.seen(OWNER)
        await one.until(lambda: one.api.shared and one.api.shared.source == SOURCE)
        assert one.events.told[-1] == (
            "Warning EditUndone spec.accessPointID: 'fsap-fedcba9876543210' was reset to"
            " 'fsap-0123456789abcdef'; create another SharedVolume for another access point"
        )
        assert one.sample("kube_efs_shared_volume_edits_undone_total") == 1


async def test_edit_that_cannot_be_undone_is_reported() -> None:
    async with scene() as one:
        one.controller.seen(OWNER)
        await one.is_in(READY)
        assert one.api.shared
        one.api.shared = replace(one.api.shared, source=OTHER)
        one.api.faults["restore"] = [KubeInvalid("cannot be changed")]
        one.controller.seen(OWNER)
        status = await one.is_in(FAILED)
        assert "differs from the handle of its volume pv-proj2-sv1" in status.message
        assert (status.matches, status.claim_name) == (False, "pvc-sv1")


async def test_deletion_waits_and_reports_the_reason() -> None:
    async with scene(backoff_seconds=0.05) as one:
        one.controller.seen(OWNER)
        await one.is_in(READY)
        assert one.api.shared
        one.api.shared = replace(one.api.shared, deleting=True)
        one.controller.seen(OWNER)
        status = await one.is_in(SharedVolumePhase.DELETING)
        assert status.message == "waits until claim pvc-sv1 is gone, which pod worker uses"
        assert "release" not in one.api.writes
        one.api.claimed = None
        await one.until(lambda: one.api.shared is None)
        one.controller.gone(OWNER)
        assert one.api.writes[-1] == "release"
        assert one.sample("kube_efs_shared_volumes", phase="Deleting") == 0
        assert one.sample("sharedvolume_info", namespace="proj2", sharedvolume="sv1") is None


@pytest.mark.virtual_time
async def test_waiting_shared_volume_is_checked_ever_less_until_something_changes() -> None:
    """Users can let any number of them wait without end."""
    async with scene() as one:
        one.api.shared = replace(NEW, deleting=True, finalizers=(FINALIZER,))
        one.api.claimed = _claim(ClaimPhase.BOUND)
        one.controller.seen(OWNER)
        for seconds, looked in ((15, 2), (15, 3), (30, 4), (60, 5), (3600, 18)):
            await asyncio.sleep(seconds)
            assert one.api.looked == looked
        one.api.used_by = ("other",)
        await asyncio.sleep(300)
        assert one.status.message == "waits until claim pvc-sv1 is gone, which pod other uses"
        assert one.api.looked == 23
        # Kubernetes deletes the claim when no pod uses it any more, and the watch of claims shows that.
        one.api.claimed = None
        one.controller.touched(OWNER)
        await asyncio.sleep(0.01)
        assert one.api.writes[-1] == "release"
        one.controller.gone(OWNER)
        assert not one.controller._waiting


@pytest.mark.virtual_time
async def test_failed_shared_volume_is_retried_ever_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users can let any number of them fail without end, such as with a quota."""

    async def refuse(_: SharedVolume) -> MarkedClaim:
        raise KubeDenied(f"exceeded quota: {one.api.looked}")

    async with scene(backoff_seconds=60) as one:
        monkeypatch.setattr(one.api, "make_claim", refuse)
        one.controller.seen(OWNER)
        for seconds, looked in ((59, 1), (2, 2), (60, 3), (120, 4), (240, 5), (3600, 17)):
            await asyncio.sleep(seconds)
            assert one.api.looked == looked
        # A change is noticed at once.
        monkeypatch.undo()
        one.controller.touched(OWNER)
        await asyncio.sleep(1)
        assert one.status.phase is READY
        assert not one.controller._waiting


@pytest.mark.virtual_time
@pytest.mark.parametrize("phase", SharedVolumePhase)
async def test_deleted_shared_volume_with_a_finalizer_of_others_is_not_checked_again(
    phase: SharedVolumePhase,
) -> None:
    async with scene(backoff_seconds=60) as one:
        status = Status(phase=phase, message="is not allowed")
        one.api.shared = replace(NEW, deleting=True, finalizers=("example.com/hold",), status=status)
        one.controller.seen(OWNER)
        await asyncio.sleep(3600)
        assert (one.api.looked, one.api.writes) == (1, [])


@pytest.mark.virtual_time
async def test_unknown_users_of_a_claim_hold_up_no_deletion() -> None:
    async with scene() as one:
        one.api.shared = replace(NEW, deleting=True, finalizers=(FINALIZER,))
        one.api.there = MarkedVolume(volume=Volume(name=OWNER.volume_name), marks=marks_of(OWNER))
        one.api.claimed = _claim(ClaimPhase.BOUND)
        one.api.faults["users"] = [KubeUnavailable("is down")] * 100
        one.controller.seen(OWNER)
        await asyncio.sleep(60)
        assert one.api.writes[:2] == ["remove_claim", "remove_volume"]
        assert one.status.message == "waits until claim pvc-sv1 is gone"


@pytest.mark.virtual_time
async def test_failed_deletion_is_retried_at_an_unchanged_pace() -> None:
    async with scene() as one:
        one.api.shared = replace(NEW, deleting=True, finalizers=(FINALIZER,))
        one.api.claimed = _claim(ClaimPhase.BOUND)
        one.api.faults["remove_claim"] = [KubeDenied("no right") for _ in range(30)]
        one.controller.seen(OWNER)
        await asyncio.sleep(295)
        assert "remove_claim" not in one.api.writes
        await asyncio.sleep(10)
        assert "remove_claim" in one.api.writes


async def test_refused_deletion_is_reported_and_retried() -> None:
    async with scene(backoff_seconds=0.05) as one:
        one.api.shared = replace(NEW, deleting=True, finalizers=(FINALIZER,))
        one.api.claimed = _claim(ClaimPhase.BOUND)
        one.api.faults["remove_claim"] = [KubeDenied("no right")]
        one.controller.seen(OWNER)
        await one.until(lambda: "Normal Waiting no right" in one.events.told)
        await one.until(lambda: "remove_claim" in one.api.writes)


async def test_forbidden_shared_volume_creates_nothing() -> None:
    async with scene(limits=Limits(others=Allowance(frozenset()))) as one:
        one.controller.seen(OWNER)
        status = await one.is_in(FAILED)
        assert "is not allowed in namespace proj2, which may use nothing" in status.message
        assert "make_volume" not in one.api.writes


async def test_changed_limits_retry_the_shared_volumes_of_the_namespace() -> None:
    async with scene() as one:
        one.api.allowed = ""
        one.controller.seen(OWNER)
        await one.is_in(FAILED)
        one.api.allowed = "*"
        one.controller.limits_changed("proj3")
        await asyncio.sleep(0.05)
        assert one.status.phase is FAILED
        one.controller.limits_changed("proj2")
        await one.is_in(READY)


class _Told:
    """Records the namespaces with changed limits."""

    def __init__(self) -> None:
        self.namespaces: list[str] = []

    def limits_changed(self, namespace: str) -> None:
        self.namespaces.append(namespace)


async def test_only_the_limit_annotation_of_a_namespace_is_watched(
    kube: AsyncClient, eventually: Eventually
) -> None:
    told, numbers = _Told(), itertools.count()

    async def patch(namespace: str, kind: str, **values: str) -> None:
        await kube.patch(Namespace, namespace, {"metadata": {kind: values}}, patch_type=PatchType.MERGE)

    async def is_followed() -> bool:
        await patch("proj2", "annotations", **{ANNOTATION: f"fs-{next(numbers):08x}"})
        return bool(told.namespaces)

    for name in ("proj2", "proj3"):
        await kube.create(Namespace(metadata=ObjectMeta(name=name)))
    watch = asyncio.create_task(watch_limits(kube, cast("SharedVolumeController", told)))
    await eventually(is_followed)
    await patch("proj3", "labels", a="b")
    await patch("proj3", "annotations", other="c")
    await patch("proj3", "annotations", **{ANNOTATION: "*"})

    async def is_reported() -> bool:
        return told.namespaces.count("proj3") == 1

    await eventually(is_reported)
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)


class Refusing(SharedVolumeStore):
    """The store of an API server that refuses claims, each time in other words."""

    def __init__(self, client: AsyncClient) -> None:
        super().__init__(client)
        self.looked = 0

    async def get(self, owner: Owner) -> SharedVolume | None:
        self.looked += 1
        return await super().get(owner)

    async def make_claim(self, shared: SharedVolume) -> MarkedClaim:
        raise KubeInvalid(f"is refused to port {self.looked}")


@asynccontextmanager
async def real_controller(
    kube: AsyncClient, store: SharedVolumeStore
) -> AsyncIterator[SharedVolumeController]:
    """The controller of the embedded API server, with its watch and one SharedVolume."""
    await define(kube)
    registry = CollectorRegistry()
    async with (
        EventRecorder(kube, component="kube-efs-controller") as recorder,
        SharedVolumeController(
            store,
            SharedVolumeSteps(store, Limits()),
            SharedVolumeEvents(recorder, SharedVolumeMetrics(registry)),
            backoff_seconds=3600,
            duties=Duties(registry),
        ) as controller,
    ):
        watch = asyncio.create_task(_watch_shared_volumes(kube, controller))
        metadata = ObjectMeta(name=REAL.name, namespace=REAL.namespace)
        spec = {"fileSystemID": SOURCE.file_system_id, "accessPointID": SOURCE.access_point_id}
        await kube.create(SharedVolumeResource(metadata=metadata, spec=spec))
        yield controller
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


async def patch_shared(kube: AsyncClient, kind: type[Any], patch: dict[str, Any]) -> None:
    await kube.patch(kind, REAL.name, patch, namespace=REAL.namespace, patch_type=PatchType.MERGE)


async def test_text_of_a_status_is_no_reason_to_try_again(kube: AsyncClient, eventually: Eventually) -> None:
    """Else an error whose text differs each time, such as one with a port, would be retried at once."""
    store = Refusing(kube)

    async def is_seen(finalizer: str) -> None:
        """Events come in the order of the changes, so all those before this one are seen, too."""
        before = store.looked
        await patch_shared(kube, SharedVolumeResource, {"metadata": {"finalizers": [FINALIZER, finalizer]}})

        async def has_looked() -> bool:
            return store.looked > before and not controller._queue._running

        await eventually(has_looked)

    async with real_controller(kube, store) as controller:

        async def is_failed() -> bool:
            found = await SharedVolumeStore(kube).get(REAL)
            return found is not None and found.status.phase is FAILED

        await eventually(is_failed)
        await is_seen("example.com/one")
        looked = store.looked
        for message in ("one", "another"):
            await patch_shared(kube, SharedVolumeResource.Status, {"status": {"message": message}})
        await is_seen("example.com/two")
        assert store.looked == looked + 1


async def test_status_that_is_carried_out_late_is_replaced(kube: AsyncClient, eventually: Eventually) -> None:
    store = SharedVolumeStore(kube)

    async def is_ready() -> bool:
        found = await store.get(REAL)
        return found is not None and found.status.phase is READY

    async with real_controller(kube, store):
        await eventually(is_ready)
        # The request of an attempt that failed, with the version of the SharedVolume that is still Ready.
        late = {"status": {"phase": "Failed", "message": "the API server did not answer"}}
        await patch_shared(kube, SharedVolumeResource.Status, late)
        await eventually(is_ready)


async def test_freed_name_retries_the_shared_volume_that_it_blocked() -> None:
    async with scene() as one:
        one.api.there = MarkedVolume(
            volume=Volume(name=OWNER.volume_name), marks=marks_of(Owner(namespace="a", name="b"))
        )
        one.controller.seen(OWNER)
        await one.is_in(FAILED)
        one.api.there = None
        looked = one.api.looked
        # Any user can delete as many of these as they want.
        one.controller.name_freed("pv-proj2-sv2")
        await asyncio.sleep(0)
        assert (one.controller._queue.waiting, one.api.looked) == (1, looked)
        one.controller.name_freed(OWNER.volume_name)
        await one.is_in(READY)
        assert not one.controller._failed


@pytest.mark.parametrize("is_told", [True, False], ids=["by the watch", "only by the API server"])
async def test_deleted_shared_volume_is_not_retried(is_told: bool) -> None:
    async with scene(limits=Limits(others=Allowance(frozenset()))) as one:
        one.controller.seen(OWNER)
        await one.is_in(FAILED)
        assert one.controller._failed == {OWNER.volume_name: {OWNER}}
        one.api.shared = None
        if is_told:
            one.controller.gone(OWNER)
        else:
            one.controller.seen(OWNER)
            await one.until(lambda: not one.controller._queue.waiting)
        assert not one.controller._failed


async def test_two_shared_volumes_with_one_volume_name_are_retried_together() -> None:
    twins = [Owner(namespace="a", name="b-c"), Owner(namespace="a-b", name="c")]
    async with scene(limits=Limits(others=Allowance(frozenset()))) as one:
        for owner in twins:
            one.controller.seen(owner)
        await one.until(lambda: one.controller._failed == {"pv-a-b-c": set(twins)})
        looked = one.api.looked
        one.controller.name_freed("pv-a-b-c")
        await one.until(lambda: one.api.looked == looked + len(twins))
        one.controller.gone(twins[0])
        assert one.controller._failed == {"pv-a-b-c": {twins[1]}}


async def test_invalid_shared_volume_waits_for_a_change() -> None:
    async with scene(backoff_seconds=0.01) as one:
        one.api.shared = replace(NEW, source=replace(SOURCE, file_system_id="fs-1"))
        one.controller.seen(OWNER)
        status = await one.is_in(FAILED)
        assert "is not a valid file system ID" in status.message
        await one.until(lambda: not one.controller._queue.waiting)
        assert one.api.looked == 1
        one.api.shared = replace(NEW, source=SOURCE)
        one.controller.seen(OWNER)
        await one.is_in(READY)


async def test_invalid_shared_volume_is_retried_after_a_failed_call() -> None:
    async with scene(backoff_seconds=0.01) as one:
        invalid = replace(NEW, source=replace(SOURCE, file_system_id="fs-1"))
        one.api.shared = replace(invalid, finalizers=(FINALIZER,), status=Status(phase=FAILED))
        one.api.faults["volume"] = [KubeUnavailable("is away")]
        one.controller.seen(OWNER)
        await one.until(lambda: "is not a valid file system ID" in one.status.message)
        assert one.api.looked == 2


async def test_deletion_of_an_unrelated_claim_checks_no_shared_volume(
    kube: AsyncClient, eventually: Eventually
) -> None:
    async with scene(limits=Limits(others=Allowance(frozenset()))) as one:
        owners = [Owner(namespace="evil", name=f"sv{number}") for number in range(5)]
        one.controller.listed(owners)
        watch = asyncio.create_task(_watch_claims(kube, one.controller))

        async def deleted(name: str, namespace: str) -> None:
            metadata = ObjectMeta(name=name, namespace=namespace, labels={OWNED: "true"})
            resources = VolumeResourceRequirements(requests={"storage": "1Gi"})
            spec = PersistentVolumeClaimSpec(
                accessModes=["ReadWriteMany"], resources=resources, storageClassName="none"
            )
            await kube.create(PersistentVolumeClaim(metadata=metadata, spec=spec))
            none = {"metadata": {"finalizers": None}}
            await kube.patch(PersistentVolumeClaim, name, none, namespace=namespace)
            await kube.delete(PersistentVolumeClaim, name, namespace=namespace)

        await kube.create(Namespace(metadata=ObjectMeta(name="evil")))
        looked = one.api.by_owner

        async def is_watching() -> bool:
            # A claim of the last one is queued as soon as the watch has begun.
            await deleted("pvc-sv4", "evil")
            return looked[owners[4]] > 2

        await one.until(lambda: len(looked) == len(owners) and not one.controller._queue._running)
        await eventually(is_watching)
        before = dict(looked)
        await deleted("any", "default")
        await deleted("pvc-sv0", "evil")
        # Events come in the order of the deletions.
        await one.until(lambda: looked[owners[0]] > before[owners[0]])
        assert [looked[owner] for owner in owners[1:4]] == [before[owner] for owner in owners[1:4]]
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


async def test_only_listed_shared_volumes_are_reconciled() -> None:
    async with scene() as one:
        one.controller.touched(OWNER)
        one.controller.reconcile_all()
        await asyncio.sleep(0.05)
        assert one.api.writes == []
        one.controller.listed([OWNER])
        await one.is_in(READY)
        one.controller.listed([])
        assert one.sample("kube_efs_shared_volumes", phase="Ready") == 0


async def test_conflict_with_another_client_ends_in_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene() as one:
        stolen = MarkedVolume(volume=Volume(name=OWNER.volume_name), marks=marks_of(OWNER))

        async def never(*_: object) -> MarkedVolume:
            return stolen

        make: Callable[..., Awaitable[MarkedVolume]] = never
        monkeypatch.setattr(one.api, "make_volume", make)
        monkeypatch.setattr(one.api, "tie", make)
        one.controller.seen(OWNER)
        status = await one.is_in(FAILED)
        assert status.message == "another client reverts the changes to its volume or claim"
