"""The objects of a SharedVolume, and the steps to its desired state."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias, TypeVar

from kube_efs.kube.shared_volume_store import SharedVolumeStore
from kube_efs.model.errors import InvalidValue, KubeError, KubeInvalid
from kube_efs.model.shared_volumes.limits import ANNOTATION, Limits
from kube_efs.model.shared_volumes.plan import Found, Step
from kube_efs.model.shared_volumes.shared_volume import SharedVolume, SharedVolumePhase

_T = TypeVar("_T")
_Action: TypeAlias = Callable[[Found], Awaitable[Found | None]]


class SharedVolumeSteps:
    """Reads the objects and runs steps, without state between calls; all methods raise KubeError."""

    def __init__(self, store: SharedVolumeStore, limits: Limits) -> None:
        self._store = store
        self._limits = limits
        self._actions: Mapping[Step, _Action] = {
            Step.HOLD: self._hold,
            Step.BEGIN: self._begin,
            Step.RESTORE: self._restore,
            Step.MAKE_VOLUME: self._make_volume,
            Step.MAKE_CLAIM: self._make_claim,
            Step.TIE_VOLUME: self._tie_volume,
            Step.MARK_VOLUME: self._mark_volume,
            Step.MARK_CLAIM: self._mark_claim,
            Step.REMOVE_VOLUME: self._remove_volume,
            Step.REMOVE_CLAIM: self._remove_claim,
            Step.RELEASE: self._release,
        }

    async def look(self, shared: SharedVolume) -> Found:
        """The current objects of the SharedVolume."""
        owner = shared.owner
        found = Found(
            shared=shared, volume=await self._store.volume(owner), claim=await self._store.claim(owner)
        )
        # The limits apply to new volumes only: a changed limit must not take data from pods.
        if found.volume is None and not shared.deleting:
            found = replace(found, refusal=await self._refusal(shared))
        # Not always, because this may list all pods of the namespace.
        if found.own_claim and found.own_claim.claim.deleting:
            # For the message only, so a failure must not keep the next step.
            with suppress(KubeError):
                found = replace(found, users=await self._store.users(owner))
        return found

    async def take(self, step: Step, found: Found) -> Found | None:
        """The state after the step; None when nothing of the SharedVolume is left."""
        return await self._actions[step](found)

    async def _refusal(self, shared: SharedVolume) -> str:
        namespace = shared.owner.namespace
        annotation = await self._store.annotation(namespace, ANNOTATION)
        try:
            self._limits.check(namespace, annotation, shared.source)
        except InvalidValue as error:
            return str(error)
        return ""

    async def _hold(self, found: Found) -> Found:
        return replace(found, shared=await self._store.hold(found.shared))

    async def _begin(self, found: Found) -> Found:
        begun = replace(
            found.shared.status, phase=SharedVolumePhase.PENDING, generation=found.shared.generation
        )
        return replace(found, shared=await self._store.write_status(found.shared, begun))

    async def _restore(self, found: Found) -> Found:
        volume = _there(found.volume)
        source = volume.source
        if source is None:
            return found
        try:
            return replace(found, shared=await self._store.restore(found.shared, source))
        except KubeInvalid as error:
            problem = f"differs from the handle of its volume {volume.volume.name}, {source.handle}"
            remedy = (
                "the API server rejects every change of the spec: delete this SharedVolume and create it "
                "again"
            )
            handle = found.shared.source.handle
            raise KubeInvalid(problem, field="spec", value=handle, remedy=remedy) from error

    async def _make_volume(self, found: Found) -> Found:
        made = await self._store.make_volume(found.shared, found.own_claim)
        return replace(found, volume=made)

    async def _make_claim(self, found: Found) -> Found:
        return replace(found, claim=await self._store.make_claim(found.shared))

    async def _tie_volume(self, found: Found) -> Found:
        tied = await self._store.tie(found.shared.owner, _there(found.volume), found.own_claim)
        return replace(found, volume=tied)

    async def _mark_volume(self, found: Found) -> Found:
        marked = await self._store.mark_volume(found.shared.owner, _there(found.volume))
        return replace(found, volume=marked)

    async def _mark_claim(self, found: Found) -> Found:
        marked = await self._store.mark_claim(found.shared.owner, _there(found.claim))
        return replace(found, claim=marked)

    async def _remove_volume(self, found: Found) -> Found:
        await self._store.remove_volume(_there(found.volume))
        return await self.look(found.shared)

    async def _remove_claim(self, found: Found) -> Found:
        await self._store.remove_claim(_there(found.claim))
        return await self.look(found.shared)

    async def _release(self, found: Found) -> None:
        await self._store.release(found.shared)


def _there(found: _T | None) -> _T:
    """The object of the step; a step is chosen only if its object exists."""
    if found is None:
        raise LookupError("the object of the step does not exist")
    return found
